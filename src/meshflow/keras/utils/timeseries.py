"""Datasets of the windows of a time series."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.specs import TensorSpec
from meshflow.data import Dataset, structure
from meshflow.data.sources import Indexed

__all__ = ["timeseries_dataset_from_array"]


def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Dataset:
    """Windows of consecutive time steps, and their targets.

    Args:
      data: array [step, ...]; a memory-mapped one is read as windows need it.
      targets: the target of each window, by the window's first step; None for windows alone.
      sequence_length: steps of a window.
      sequence_stride: steps between the beginnings of windows.
      sampling_rate: steps between those that a window takes.
      batch_size: windows of a batch; None for single windows.
      shuffle: whether in random order.
      seed: of the order.
      start_index: the first step that is used.
      end_index: the step before which to stop.

    Returns:
      A dataset of batches of windows [batch, sequence_length, ...], with targets as pairs.

    Raises:
      ValueError: for numbers that are not positive or lie outside the data.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
      >>> windows = tf.keras.utils.timeseries_dataset_from_array(
      ...     np.arange(6), np.arange(6) * 10, sequence_length=3, batch_size=2)
      >>> x, y = next(iter(windows))
      >>> x.numpy().tolist(), y.numpy().tolist()
      ([[0, 1, 2], [1, 2, 3]], [0, 10])
    """
    data = structure.to_array(data)
    steps = len(data)
    for name, number in (("sampling_rate", sampling_rate), ("sequence_stride", sequence_stride)):
        if not 0 < number < steps:
            raise ValueError(
                f"`{name}` must be higher than 0 and lower than the number of steps {steps}, got {number}."
            )
    if start_index and not 0 <= start_index < steps:
        raise ValueError(f"`start_index` must be in [0, {steps}), got {start_index}.")
    if end_index and not (start_index or 0) < end_index < steps:
        raise ValueError(
            f"`end_index` must be higher than `start_index` ({start_index or 0}) and lower than {steps}, got "
            f"{end_index}."
        )
    start, end = start_index or 0, end_index or steps
    count = end - start - (sequence_length - 1) * sampling_rate
    if targets is not None:
        targets = structure.to_array(targets)
        count = min(count, len(targets))
        targets = targets[start:end]
    data = data[start:end]
    beginnings = np.arange(0, count, sequence_stride)
    if shuffle:
        seed = int(np.random.randint(1_000_000)) if seed is None else seed
        np.random.RandomState(seed).shuffle(beginnings)
    offsets = np.arange(sequence_length) * sampling_rate
    spec: Any = TensorSpec([sequence_length, *data.shape[1:]], data.dtype)

    def gather(index: np.ndarray) -> list[Any]:
        first = beginnings[index]
        windows = np.asarray(data[first[:, None] + offsets])
        return [windows] if targets is None else [windows, np.asarray(targets[first])]

    if targets is not None:
        spec = (spec, TensorSpec(targets.shape[1:], structure.dtype_of(targets)))
    dataset: Dataset = Indexed(len(beginnings), gather, spec)
    if shuffle:
        dataset = dataset.shuffle(1024 if batch_size is None else batch_size * 8, seed=seed)
    return dataset.prefetch(-1) if batch_size is None else dataset.batch(batch_size).prefetch(-1)
