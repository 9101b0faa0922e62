"""Helpers for labels, seeds, datasets and sequences."""

from __future__ import annotations

import collections.abc
import random
from collections.abc import Iterator, Sized
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from meshflow.core.variables.random_streams import set_seed
from meshflow.data import Dataset
from meshflow.environment.types import ArrayLike, PyTree


def set_random_seed(seed: int) -> None:
    """Set the seeds of Python, NumPy and Meshflow, which makes results reproducible.

    Args:
      seed: An integer.

    Raises:
      ValueError: If it is not an integer.

    Example:
      >>> tf.keras.utils.set_random_seed(3)
      >>> before = tf.random.uniform([2])
      >>> tf.keras.utils.set_random_seed(3)
      >>> bool(tf.reduce_all(before == tf.random.uniform([2])))
      True
    """
    if not isinstance(seed, int):
        raise ValueError(
            f"Expected `seed` argument to be an integer. Received: seed={seed} (of type {type(seed)})"
        )
    random.seed(seed)
    np.random.seed(seed % 2**32)
    set_seed(seed)


def to_categorical(
    y: ArrayLike, num_classes: int | None = None, dtype: DTypeLike = "float32"
) -> np.ndarray:
    """One-hot encode class indices.

    Args:
      y: Class indices.
      num_classes: Number of classes; the largest index plus 1 by default.
      dtype: Dtype of the result.

    Returns:
      An array with a new last axis.

    Raises:
      ValueError: If a class index is out of range.

    Example:
      >>> tf.keras.utils.to_categorical([0, 2])
      array([[1., 0., 0.],
             [0., 0., 1.]], dtype=float32)
    """
    y = np.array(y, dtype="int64")
    if y.ndim > 1 and y.shape[-1] == 1:
        y = y[..., 0]
    count = int(y.max()) + 1 if num_classes is None else num_classes
    if y.size and (y.min() < 0 or y.max() >= count):
        raise ValueError(
            f"to_categorical: class indices must be in [0, {count}), got {y.min()} to {y.max()}."
        )
    return np.eye(count, dtype=dtype)[y]


def to_ordinal(
    y: ArrayLike, num_classes: int | None = None, dtype: DTypeLike = "float32"
) -> np.ndarray:
    """Encode class index n as n ones followed by zeros, `num_classes - 1` values in total.

    Args:
      y: Class indices.
      num_classes: Number of classes; the largest index plus 1 by default.
      dtype: Dtype of the result.

    Returns:
      An array with a new last axis.

    Example:
      >>> tf.keras.utils.to_ordinal([0, 2, 1])
      array([[0., 0.],
             [1., 1.],
             [1., 0.]], dtype=float32)
    """
    y = np.array(y, dtype="int64")
    if y.ndim > 1 and y.shape[-1] == 1:
        y = y[..., 0]
    count = int(y.max()) + 1 if num_classes is None else num_classes
    return (np.arange(count - 1) < y[..., None]).astype(dtype)


def split_dataset(
    dataset: Dataset | PyTree,
    left_size: float | int | None = None,
    right_size: float | int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
) -> tuple[Dataset, Dataset]:
    """Split a dataset into its first and last samples.

    Args:
      dataset: A `tf.data.Dataset`, an array, or tuples, lists or dictionaries of arrays.
      left_size: Number or fraction of the samples in the first part; the remaining ones by default.
      right_size: Number or fraction of the samples in the second part; the remaining ones by
        default.
      shuffle: Whether to shuffle the samples first.
      seed: Seed of the shuffling.

    Returns:
      Two `tf.data.Dataset`s.

    Raises:
      ValueError: If the sizes are too large or missing.
      TypeError: If a size is not a number, or `dataset` has another type.

    Example:
      >>> import numpy as np
      >>> left, right = tf.keras.utils.split_dataset(np.arange(10), left_size=0.7)
      >>> len(left), [int(x) for x in right]
      (7, [7, 8, 9])
    """
    if isinstance(dataset, list):
        dataset = tuple(dataset) if dataset and hasattr(dataset[0], "shape") else np.array(dataset)
    if not isinstance(dataset, Dataset):
        if not isinstance(dataset, (tuple, dict)) and not hasattr(dataset, "shape"):
            raise TypeError(
                f"`dataset` must be a tf.data.Dataset, an array, or arrays, got {type(dataset).__name__}."
            )
        dataset = Dataset.from_tensor_slices(dataset)
    if dataset.infinite:
        raise ValueError("An infinite dataset cannot be split: use take(count) first.")
    total = len(dataset) if dataset.count_elements() >= 0 else sum(1 for _ in dataset)
    left, right = (
        _count_samples(s, total, n) for s, n in ((left_size, "left"), (right_size, "right"))
    )
    if left is None and right is None:
        raise ValueError("At least one of `left_size` and `right_size` must be given.")
    left = total - (right or 0) if left is None else left
    right = total - left if right is None else right
    if left + right > total or not left or not right:
        raise ValueError(
            f"left_size={left_size} and right_size={right_size} do not split {total} samples into two non-empty parts."
        )
    if shuffle:
        shuffle_seed = int(np.random.randint(1_000_000)) if seed is None else seed
        dataset = dataset.shuffle(total, seed=shuffle_seed, reshuffle_each_iteration=False)
    return dataset.take(left), dataset.skip(total - right).take(right)


def _count_samples(size: object, total: int, side: str) -> int | None:
    """Convert a size argument to a number of samples."""
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{side}_size` must be an integer or a float, got {size!r}.")
    if isinstance(size, (float, np.floating)):
        if not 0 < size < 1:
            raise ValueError(f"`{side}_size` as a float must be between 0 and 1, got {size}.")
        return round(size * total)
    if not 0 < size < total:
        raise ValueError(f"`{side}_size` must be between 1 and {total - 1}, got {size}.")
    return int(size)


def normalize(x: ArrayLike, axis: int = -1, order: int = 2) -> np.ndarray:
    """Scale vectors to norm 1.

    Args:
      x: Array.
      axis: Axis of the vectors.
      order: Order of the norm.

    Example:
      >>> tf.keras.utils.normalize([[3.0, 4.0], [0.0, 2.0]]).round(3).tolist()
      [[0.6, 0.8], [0.0, 1.0]]
    """
    norms = np.atleast_1d(np.linalg.norm(x, order, axis))
    norms[norms == 0] = 1
    # A tensor remains a tensor, as in TensorFlow.
    return x / np.expand_dims(norms, axis)


def pad_sequences(
    sequences: collections.abc.Sequence[collections.abc.Sequence[Any]],
    maxlen: int | None = None,
    dtype: DTypeLike = "int32",
    padding: Literal["pre", "post"] = "pre",
    truncating: Literal["pre", "post"] = "pre",
    value: float | str = 0.0,
) -> np.ndarray:
    """Pad or truncate sequences of different lengths to one array.

    Args:
      sequences: List of sequences.
      maxlen: Length of the result; that of the longest sequence by default.
      dtype: Dtype of the result.
      padding: 'pre' or 'post', the side of the padding.
      truncating: 'pre' or 'post', the side of the truncation.
      value: Value of the padding.

    Raises:
      ValueError: If `padding` or `truncating` is invalid, or if the shapes of steps differ.

    Example:
      >>> tf.keras.utils.pad_sequences([[1, 2, 3], [4]], padding="post").tolist()
      [[1, 2, 3], [4, 0, 0]]
      >>> tf.keras.utils.pad_sequences([[1, 2, 3], [4]], maxlen=2).tolist()
      [[2, 3], [0, 4]]
    """
    if padding not in ("pre", "post") or truncating not in ("pre", "post"):
        raise ValueError(
            f"pad_sequences: padding and truncating must be 'pre' or 'post', got {padding!r}, {truncating!r}."
        )
    if not isinstance(sequences, Sized) or not all(isinstance(s, Sized) for s in sequences):
        raise ValueError(
            f"pad_sequences: `sequences` must be iterable and hold sequences, got {sequences!r:.100}."
        )
    length = max((len(s) for s in sequences), default=0) if maxlen is None else maxlen
    inner_shape = next((np.shape(s)[1:] for s in sequences if len(s)), ())
    result = np.full((len(sequences), length, *inner_shape), value, dtype=dtype)
    for i, sequence in enumerate(sequences):
        if not len(sequence) or not length:
            continue
        truncated = np.asarray(
            sequence[-length:] if truncating == "pre" else sequence[:length], dtype=dtype
        )
        if truncated.shape[1:] != inner_shape:
            raise ValueError(
                f"Shape of sample {truncated.shape[1:]} of sequence at position {i} is different from expected shape "
                f"{inner_shape}."
            )
        if padding == "post":
            result[i, : len(truncated)] = truncated
        else:
            result[i, -len(truncated) :] = truncated
    return result


class Sequence:
    """Base class of batches by index; subclasses define `__getitem__` and `__len__`.

    `fit` reads each batch once per epoch, in random order when it shuffles.

    Example:
      >>> class Pairs(tf.keras.utils.Sequence):
      ...     def __len__(self):
      ...         return 3
      ...     def __getitem__(self, index):
      ...         return tf.fill([2, 1], float(index)), tf.zeros([2, 1])
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> model.predict(Pairs(), verbose=0).ravel().tolist()
      [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    """

    def __getitem__(self, index: int) -> PyTree:
        """Return the batch with an index: (x, y) or (x, y, sample_weight)."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of batches."""
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """Run after each epoch; does nothing by default."""

    def __iter__(self) -> Iterator[PyTree]:
        return (self[i] for i in range(len(self)))
