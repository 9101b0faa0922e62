"""Small helpers for arrays, seeds and sequences."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from meshflow.core.variables.random import set_seed
from meshflow.data import Dataset


def set_random_seed(seed: int) -> None:
    """Sets the seeds of Python, NumPy and Meshflow: the program's results are then reproducible.

    Args:
      seed: an integer.

    Raises:
      ValueError: when it is not an integer.

    Example:
      >>> import meshflow as tf
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


def to_categorical(y: Any, num_classes: int | None = None, dtype: Any = "float32") -> np.ndarray:
    """One-hot vectors from class numbers.

    Args:
      y: integers.
      num_classes: default the largest number plus 1.
      dtype: dtype of the result.

    Returns:
      Array with a new last dimension.

    Raises:
      ValueError: for a class number out of range.

    Example:
      >>> import meshflow as tf
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
            f"to_categorical: class numbers must be in [0, {count}), got {y.min()} to {y.max()}."
        )
    return np.eye(count, dtype=dtype)[y]


def to_ordinal(y: Any, num_classes: int | None = None, dtype: Any = "float32") -> np.ndarray:
    """Class numbers as ones up to them: number n has n ones, of one fewer than there are classes.

    Args:
      y: integers.
      num_classes: default the largest number plus 1.
      dtype: dtype of the result.

    Returns:
      Array with a new last dimension.

    Example:
      >>> import meshflow as tf
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
    dataset: Any,
    left_size: float | int | None = None,
    right_size: float | int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
) -> tuple[Any, Any]:
    """Two datasets of the first and the last samples of one.

    Args:
      dataset: a `tf.data.Dataset`, an array, or tuples, lists or dictionaries of arrays.
      left_size: how many samples the first has, or which part of them; default what is left.
      right_size: the same of the second.
      shuffle: whether samples are brought into a random order first.
      seed: of that order.

    Returns:
      Two `tf.data.Dataset`s.

    Raises:
      ValueError: for sizes that do not fit, or without a size.
      TypeError: for a size that is no number, or another kind of dataset.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
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
    total = len(dataset) if dataset._count() >= 0 else sum(1 for _ in dataset)
    left, right = (_size(s, total, n) for s, n in ((left_size, "left"), (right_size, "right")))
    if left is None and right is None:
        raise ValueError("At least one of `left_size` and `right_size` must be given.")
    left = total - (right or 0) if left is None else left
    right = total - left if right is None else right
    if left + right > total or not left or not right:
        raise ValueError(
            f"left_size={left_size} and right_size={right_size} do not split {total} samples into two parts that both "
            "have some."
        )
    if shuffle:
        chosen = int(np.random.randint(1_000_000)) if seed is None else seed
        dataset = dataset.shuffle(total, seed=chosen, reshuffle_each_iteration=False)
    return dataset.take(left), dataset.skip(total - right).take(right)


def _size(size: Any, total: int, side: str) -> int | None:
    """A number of samples."""
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


def normalize(x: Any, axis: int = -1, order: int = 2) -> np.ndarray:
    """Scales vectors to norm 1.

    Args:
      x: an array.
      axis: dimension of the vectors.
      order: order of the norm.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.utils.normalize([[3.0, 4.0], [0.0, 2.0]]).round(3).tolist()
      [[0.6, 0.8], [0.0, 1.0]]
    """
    norms = np.atleast_1d(np.linalg.norm(x, order, axis))
    norms[norms == 0] = 1
    return x / np.expand_dims(norms, axis)


def pad_sequences(
    sequences: Any,
    maxlen: int | None = None,
    dtype: Any = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: Any = 0.0,
) -> np.ndarray:
    """One array from sequences of different lengths.

    Args:
      sequences: list of sequences.
      maxlen: length of the result; default the longest.
      dtype: dtype of the result.
      padding: 'pre' or 'post', where values are added.
      truncating: 'pre' or 'post', where sequences are cut.
      value: the value added.

    Raises:
      ValueError: for other words.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.utils.pad_sequences([[1, 2, 3], [4]], padding="post").tolist()
      [[1, 2, 3], [4, 0, 0]]
      >>> tf.keras.utils.pad_sequences([[1, 2, 3], [4]], maxlen=2).tolist()
      [[2, 3], [0, 4]]
    """
    if padding not in ("pre", "post") or truncating not in ("pre", "post"):
        raise ValueError(
            f"pad_sequences: padding and truncating must be 'pre' or 'post', got {padding!r}, {truncating!r}."
        )
    length = max((len(s) for s in sequences), default=0) if maxlen is None else maxlen
    inner = next((np.shape(s)[1:] for s in sequences if len(s)), ())
    result = np.full((len(sequences), length, *inner), value, dtype=dtype)
    for i, sequence in enumerate(sequences):
        if not len(sequence) or not length:
            continue
        cut = np.asarray(
            sequence[-length:] if truncating == "pre" else sequence[:length], dtype=dtype
        )
        if padding == "post":
            result[i, : len(cut)] = cut
        else:
            result[i, -len(cut) :] = cut
    return result


class Sequence:
    """Batches by number: subclasses define `__getitem__` and `__len__`.

    `fit` asks for every batch once per epoch, in random order when shuffling.

    Example:
      >>> import meshflow as tf
      >>> class Pairs(tf.keras.utils.Sequence):
      ...     def __len__(self):
      ...         return 3
      ...     def __getitem__(self, index):
      ...         return tf.fill([2, 1], float(index)), tf.zeros([2, 1])
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> model.predict(Pairs(), verbose=0).ravel().tolist()
      [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    """

    def __getitem__(self, index: int) -> Any:
        """Batch number `index`: (x, y) or (x, y, sample_weight)."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Number of batches."""
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """Called after every epoch."""

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))
