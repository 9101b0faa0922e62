"""Small helpers for arrays, seeds and sequences."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from meshflow.core.random import set_seed


def set_random_seed(seed: int) -> None:
    """Sets the seeds of Python, NumPy and Meshflow: the program's results are then reproducible.

    Args:
      seed: an integer.

    Raises:
      ValueError: when it is not an integer.
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


def normalize(x: Any, axis: int = -1, order: int = 2) -> np.ndarray:
    """Scales vectors to norm 1.

    Args:
      x: an array.
      axis: dimension of the vectors.
      order: order of the norm.
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
