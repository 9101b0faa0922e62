"""Reductions over dimensions, and running sums and products."""

from __future__ import annotations

from typing import Any

from meshflow.core.convert import convert_to_tensor
from meshflow.keras.backend.settings import floatx
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

# The names below hide builtins that this module does not use.


def _numbers(x: Any) -> Any:
    """Booleans as numbers, which can be averaged."""
    x = convert_to_tensor(x)
    return math.cast(x, floatx()) if x.dtype.is_bool else x


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Largest elements."""
    return math.reduce_max(x, axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Smallest elements."""
    return math.reduce_min(x, axis, keepdims)


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Sums."""
    return math.reduce_sum(x, axis, keepdims)


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Products."""
    return math.reduce_prod(x, axis, keepdims)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Means; of booleans, the share of True.

    Args:
      x: a tensor.
      axis: the dimension or dimensions to average over; default all.
      keepdims: whether these dimensions stay, with size 1.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.mean([[1.0, 3.0], [5.0, 7.0]], axis=-1).numpy()
      array([2., 6.], dtype=float32)
    """
    return math.reduce_mean(_numbers(x), axis, keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Variances."""
    return math.reduce_variance(_numbers(x), axis, keepdims)


def std(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Standard deviations."""
    return math.reduce_std(_numbers(x), axis, keepdims)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether any element is not zero."""
    return math.reduce_any(math.cast(x, "bool"), axis, keepdims)


def all(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether no element is zero."""
    return math.reduce_all(math.cast(x, "bool"), axis, keepdims)


def argmax(x: Any, axis: int = -1) -> Any:
    """Indices of the largest elements."""
    return math.argmax(x, axis)


def argmin(x: Any, axis: int = -1) -> Any:
    """Indices of the smallest elements."""
    return math.argmin(x, axis)


def cumsum(x: Any, axis: int = 0) -> Any:
    """Running sums."""
    return math.cumsum(x, axis=axis)


def cumprod(x: Any, axis: int = 0) -> Any:
    """Running products."""
    return math.cumprod(x, axis=axis)


def l2_normalize(x: Any, axis: Any = None) -> Any:
    """`x` divided by its Euclidean norm over a dimension, or over all."""
    return math.l2_normalize(x, axis=axis)


def in_top_k(predictions: Any, targets: Any, k: int) -> Any:
    """Whether each target class is among the `k` largest predictions of its row."""
    return nn.in_top_k(targets, predictions, k)
