"""`tf.keras.preprocessing.sequence`: padding, windows and skip-grams of sequences."""

from __future__ import annotations

import collections.abc
import json
import random
from typing import Any

import numpy as np

from meshflow.keras.utils.arrays import Sequence, pad_sequences

__all__ = ["TimeseriesGenerator", "make_sampling_table", "pad_sequences", "skipgrams"]


class TimeseriesGenerator(Sequence):
    """Batches of windows of a time series, each with the target that follows it.

    Args:
      data: Array [step, ...].
      targets: Array [step, ...]; the target of a window is that of the step after it.
      length: Number of steps that a window covers.
      sampling_rate: Distance between the steps that a window includes.
      stride: Distance between windows, in steps.
      start_index: First step to use.
      end_index: Last step to use.
      shuffle: Whether to draw windows randomly.
      reverse: Whether to reverse the order of steps in a window.
      batch_size: Number of windows in a batch.

    Raises:
      ValueError: If data and targets have different lengths, or no window fits.

    Example:
      >>> import numpy as np
      >>> batches = tf.keras.preprocessing.sequence.TimeseriesGenerator(
      ...     np.arange(6), np.arange(6), length=3, batch_size=2)
      >>> [(x.tolist(), y.tolist()) for x, y in (batches[i] for i in range(len(batches)))]
      [([[0, 1, 2], [1, 2, 3]], [3, 4]), ([[2, 3, 4]], [5])]
    """

    def __init__(
        self,
        data: Any,
        targets: Any,
        length: int,
        sampling_rate: int = 1,
        stride: int = 1,
        start_index: int = 0,
        end_index: int | None = None,
        shuffle: bool = False,
        reverse: bool = False,
        batch_size: int = 128,
    ) -> None:
        if len(data) != len(targets):
            raise ValueError(
                f"Data and targets have to be of same length. Data length is {len(data)} while target length is "
                f"{len(targets)}"
            )
        self.data, self.targets, self.length = data, targets, length
        self.sampling_rate, self.stride, self.batch_size = sampling_rate, stride, batch_size
        self.start_index = start_index + length
        self.end_index = len(data) - 1 if end_index is None else end_index
        self.shuffle, self.reverse = shuffle, reverse
        if self.start_index > self.end_index:
            raise ValueError(
                f"`start_index+length={self.start_index} > end_index={self.end_index}` is disallowed, as no part of the "
                "sequence would be left to be used as current step."
            )

    def __len__(self) -> int:
        steps = self.end_index - self.start_index + 1
        return -(-steps // (self.batch_size * self.stride))

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        last = self.end_index + 1
        if self.shuffle:
            rows = np.random.randint(self.start_index, last, size=self.batch_size)
        else:
            first = self.start_index + self.batch_size * self.stride * index
            rows = np.arange(first, min(first + self.batch_size * self.stride, last), self.stride)
        windows = [self.data[row - self.length : row : self.sampling_rate] for row in rows]
        samples, targets = np.array(windows), np.array([self.targets[row] for row in rows])
        return (samples[:, ::-1] if self.reverse else samples), targets

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with the data as JSON."""
        names = (
            *("length", "sampling_rate", "stride", "start_index", "end_index", "shuffle"),
            *("reverse", "batch_size"),
        )
        config = {name: getattr(self, name) for name in names}
        return {
            "data": json.dumps(np.asarray(self.data).tolist()),
            "targets": json.dumps(np.asarray(self.targets).tolist()),
        } | config

    def to_json(self, **kwargs: Any) -> str:
        """Return the configuration as JSON.

        Args:
          **kwargs: Arguments of `json.dumps`.
        """
        config = {"class_name": type(self).__name__, "config": self.get_config()}
        return json.dumps(config, **kwargs)


def make_sampling_table(size: int, sampling_factor: float = 1e-5) -> np.ndarray:
    """Compute the sampling probability of the word of each rank, if frequencies follow Zipf's law.

    It is min(1, sqrt(s * r)), where s is the factor and r = rank * (log(rank) + gamma) + 1/2 - 1 /
    (12 rank) is the
    inverse of the frequency.

    Args:
      size: Number of words. Word 0 is padding, and is treated as rank 1.
      sampling_factor: The factor s.

    References:
      Mikolov et al., 'Distributed Representations of Words' (2013).

    Example:
      >>> tf.keras.preprocessing.sequence.make_sampling_table(3).round(4)
      array([0.0032, 0.0032, 0.0055])
    """
    rank = np.maximum(np.arange(size), 1)
    inverse = rank * (np.log(rank) + 0.577) + 0.5 - 1 / (12 * rank)
    return np.minimum(1.0, np.sqrt(sampling_factor * inverse))


def skipgrams(
    sequence: collections.abc.Sequence[int],
    vocabulary_size: int,
    window_size: int = 4,
    negative_samples: float = 1.0,
    shuffle: bool = True,
    categorical: bool = False,
    sampling_table: np.ndarray | None = None,
    seed: int | None = None,
) -> tuple[list[list[int]], list[Any]]:
    """Create pairs of neighboring words, and pairs of words with random ones.

    Args:
      sequence: Word ids; 0 is padding.
      vocabulary_size: Number of word ids.
      window_size: Maximum distance between the words of a pair.
      negative_samples: Number of random pairs for each pair of neighbors.
      shuffle: Whether to shuffle the pairs.
      categorical: Whether labels are [1, 0] and [0, 1] instead of 0 and 1.
      sampling_table: Probability to use each word, as `make_sampling_table` returns it.
      seed: Seed of the order.

    Returns:
      The pairs, and their labels: 1 for neighbors, 0 for random pairs.

    Example:
      >>> tf.keras.preprocessing.sequence.skipgrams([1, 2, 3], 4, 1, 0, shuffle=False)
      ([[1, 2], [2, 1], [2, 3], [3, 2]], [1, 1, 1, 1])
    """
    positive_label, negative_label = ([0, 1], [1, 0]) if categorical else (1, 0)
    couples: list[list[int]] = []
    for index, word in enumerate(sequence):
        if not word:
            continue
        if sampling_table is not None and sampling_table[word] < random.random():
            continue
        neighbors = range(max(0, index - window_size), min(len(sequence), index + window_size + 1))
        couples += [[word, sequence[i]] for i in neighbors if i != index and sequence[i]]
    labels: list[Any] = [positive_label] * len(couples)
    if negative_samples > 0:
        num_negatives = int(len(couples) * negative_samples)
        words = [word for word, _ in couples]
        random.shuffle(words)
        max_id = int(vocabulary_size - 1)
        couples += [
            [words[i % len(words)], random.randint(1, max_id)] for i in range(num_negatives)
        ]
        labels += [negative_label] * num_negatives
    if shuffle:
        order_seed = random.randint(0, int(10e6)) if seed is None else seed
        for part in (couples, labels):
            random.seed(order_seed)
            random.shuffle(part)
    return couples, labels
