"""Reductions over dimensions, and cumulative sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.settings import floatx
from meshflow.ops import math, nn

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "in_top_k",
    "l2_normalize",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]

# The functions of this module shadow builtins, which it does not use.


def _cast_booleans(x: TensorLike) -> Any:
    """Cast Booleans to `floatx()`."""
    x = x if isinstance(x, CompositeTensor) else convert_to_tensor(x)
    return math.cast(x, floatx()) if x.dtype.is_bool else x


def max(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the largest elements.

    Example:
      >>> tf.keras.backend.max(tf.constant([[1, 9], [8, 2]]), axis=0).numpy().tolist()
      [8, 9]
    """
    return math.reduce_max(x, axis, keepdims)


def min(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Return the smallest elements.

    Example:
      >>> tf.keras.backend.min(tf.constant([[1, 9], [8, 2]]), axis=0).numpy().tolist()
      [1, 2]
    """
    return math.reduce_min(x, axis, keepdims)


def sum(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Compute sums.

    Example:
      >>> tf.keras.backend.sum(tf.constant([[1, 9], [8, 2]]), axis=1, keepdims=True).numpy().tolist()
      [[10], [10]]
    """
    return math.reduce_sum(x, axis, keepdims)


def prod(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Compute products.

    Example:
      >>> tf.keras.backend.prod(tf.constant([[1, 9], [8, 2]]), axis=1).numpy().tolist()
      [9, 16]
    """
    return math.reduce_prod(x, axis, keepdims)


def mean(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Compute means; the mean of Booleans is the fraction that is True.

    Args:
      x: A tensor.
      axis: Dimension or dimensions to average over; default all.
      keepdims: Whether to keep these dimensions, with size 1.

    Example:
      >>> tf.keras.backend.mean([[1.0, 3.0], [5.0, 7.0]], axis=-1).numpy()
      array([2., 6.], dtype=float32)
    """
    return math.reduce_mean(_cast_booleans(x), axis, keepdims)


def var(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Compute variances.

    Example:
      >>> float(tf.keras.backend.var(tf.constant([1.0, 5.0])))
      4.0
    """
    return math.reduce_variance(_cast_booleans(x), axis, keepdims)


def std(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Compute standard deviations.

    Example:
      >>> float(tf.keras.backend.std(tf.constant([1.0, 5.0])))
      2.0
    """
    return math.reduce_std(_cast_booleans(x), axis, keepdims)


def any(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Check whether any element is nonzero.

    Example:
      >>> tf.keras.backend.any(tf.constant([[1, 0], [0, 0]]), axis=1).numpy().tolist()
      [True, False]
    """
    return math.reduce_any(math.cast(x, "bool"), axis, keepdims)


def all(x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Check whether all elements are nonzero.

    Example:
      >>> tf.keras.backend.all(tf.constant([[1, 0], [2, 3]]), axis=1).numpy().tolist()
      [False, True]
    """
    return math.reduce_all(math.cast(x, "bool"), axis, keepdims)


def argmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the indices of the largest elements.

    Example:
      >>> tf.keras.backend.argmax(tf.constant([[1, 9], [8, 2]])).numpy().tolist()
      [1, 0]
    """
    return math.argmax(x, axis)


def argmin(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the indices of the smallest elements.

    Example:
      >>> tf.keras.backend.argmin(tf.constant([[1, 9], [8, 2]])).numpy().tolist()
      [0, 1]
    """
    return math.argmin(x, axis)


def cumsum(x: TensorLike, axis: int = 0) -> Tensor:
    """Compute cumulative sums.

    Example:
      >>> tf.keras.backend.cumsum(tf.constant([[1, 2], [3, 4]]), axis=1).numpy().tolist()
      [[1, 3], [3, 7]]
    """
    return math.cumsum(x, axis=axis)


def cumprod(x: TensorLike, axis: int = 0) -> Tensor:
    """Compute cumulative products.

    Example:
      >>> tf.keras.backend.cumprod(tf.constant([2, 3, 4])).numpy().tolist()
      [2, 6, 24]
    """
    return math.cumprod(x, axis=axis)


def l2_normalize(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Divide `x` by its Euclidean norm over an axis, or over all elements.

    Example:
      >>> tf.keras.backend.l2_normalize(tf.constant([3.0, 4.0])).numpy().round(3)
      array([0.6, 0.8], dtype=float32)
    """
    return math.l2_normalize(x, axis=axis)


def in_top_k(predictions: TensorLike, targets: TensorLike, k: int) -> Tensor:
    """Check whether each target class is among the `k` largest predictions of its row.

    Example:
      >>> scores = tf.constant([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
      >>> tf.keras.backend.in_top_k(scores, tf.constant([1, 2]), 2).numpy().tolist()
      [True, False]
    """
    return nn.in_top_k(targets, predictions, k)
