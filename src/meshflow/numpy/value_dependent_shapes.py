"""Functions with a result size that depends on the values of their arguments.

XLA needs static sizes, so these functions need known values and run eagerly on the host.
`compress`, `extract` and
`trim_zeros` find the indices on the host, and then gather the elements by an op with a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy import manipulation
from meshflow.numpy.conversion import asarray
from meshflow.numpy.jnp_wrappers import wrap_jnp

import jax.numpy as jnp  # isort: skip

__all__ = [
    *("argwhere", "bincount", "compress", "extract", "flatnonzero", "histogram", "intersect1d"),
    *("nonzero", "ravel_multi_index", "setdiff1d", "setxor1d", "trim_zeros", "union1d", "unique"),
    "where",
]

_select = wrap_jnp(jnp.where, "where", operands=["condition", "x", "y"])


def _require_known(value: TensorLike, function: str) -> np.ndarray:
    return asarray(value).require_value(
        f"an argument of tnp.{function}, whose result's size it decides"
    )


def nonzero(a: TensorLike) -> list[Tensor]:
    """Return the indices of nonzero elements: one int64 tensor for each axis.

    Args:
      a: Array-like value with known elements.

    Example:
      >>> tnp.nonzero([5, 0, 7])[0].numpy()
      array([0, 2])
    """
    return [asarray(p) for p in np.nonzero(_require_known(a, "nonzero"))]


def flatnonzero(a: TensorLike) -> Tensor:
    """Return the indices of nonzero elements in the flattened array.

    Example:
      >>> tnp.flatnonzero([[5, 0], [0, 7]]).numpy()
      array([0, 3])
    """
    return asarray(np.flatnonzero(_require_known(a, "flatnonzero")))


def argwhere(a: TensorLike) -> Tensor:
    """Return the indices of nonzero elements, one row for each element.

    Example:
      >>> tnp.argwhere([[5, 0], [0, 7]]).numpy()
      array([[0, 0],
             [1, 1]])
    """
    return asarray(np.argwhere(_require_known(a, "argwhere")))


def where(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None
) -> Tensor | list[Tensor]:
    """Select elements of `x` or `y` by a condition; without them, return the indices where it holds.

    Args:
      condition: Booleans.
      x: Array-like value, for elements where the condition holds.
      y: Array-like value, for the other elements; passed if and only if `x` is.

    Returns:
      A tensor of the common dtype of `x` and `y`; without them, the result of `nonzero`.

    Raises:
      ValueError: If only one of `x` and `y` is passed.

    Example:
      >>> tnp.where([True, False], 1, 2.5).numpy()
      array([1. , 2.5])
    """
    if (x is None) != (y is None):
        raise ValueError("tnp.where: either both `x` and `y` must be given, or neither.")
    return nonzero(condition) if x is None else _select(condition, x, y)


def compress(condition: TensorLike, a: TensorLike, axis: int | None = None) -> Tensor:
    """Select the slices along an axis where a condition holds.

    Args:
      condition: Boolean vector with known elements.
      a: Array-like value.
      axis: Axis; by default `a` is flattened.

    Example:
      >>> tnp.compress([True, False, True], [4, 5, 6]).numpy()
      array([4, 6])
    """
    return manipulation.take(a, np.flatnonzero(_require_known(condition, "compress")), axis)


def extract(condition: TensorLike, arr: TensorLike) -> Tensor:
    """Select the elements where a condition holds.

    Example:
      >>> tnp.extract([[True, False]], [[4, 5]]).numpy()
      array([4])
    """
    return compress(manipulation.ravel(condition), manipulation.ravel(arr))


def unique(
    ar: TensorLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Tensor | tuple[Tensor, ...]:
    """Return the distinct elements, sorted; see `numpy.unique`.

    Example:
      >>> tnp.unique([3, 1, 3]).numpy()
      array([1, 3])
    """
    results: Any = np.unique(  # type: ignore[call-overload]
        _require_known(ar, "unique"),
        return_index,
        return_inverse,
        return_counts,
        axis=axis,
        equal_nan=equal_nan,
    )
    return tuple(asarray(f) for f in results) if isinstance(results, tuple) else asarray(results)


def bincount(x: TensorLike, weights: TensorLike | None = None, minlength: int = 0) -> Tensor:
    """Count the occurrences of each integer; see `numpy.bincount`.

    Example:
      >>> tnp.bincount([0, 2, 2]).numpy()
      array([1, 0, 2])
    """
    known_weights = None if weights is None else _require_known(weights, "bincount")
    return asarray(np.bincount(_require_known(x, "bincount"), known_weights, minlength))


def intersect1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """Return the elements that are in both arrays, sorted; see `numpy.intersect1d`."""
    return asarray(
        np.intersect1d(_require_known(ar1, "intersect1d"), _require_known(ar2, "intersect1d"))
    )


def union1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """Return the elements that are in either array, sorted; see `numpy.union1d`."""
    return asarray(np.union1d(_require_known(ar1, "union1d"), _require_known(ar2, "union1d")))


def setdiff1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """Return the sorted elements that are only in the first array; see `numpy.setdiff1d`."""
    return asarray(np.setdiff1d(_require_known(ar1, "setdiff1d"), _require_known(ar2, "setdiff1d")))


def setxor1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """Return the elements that are in exactly one array, sorted; see `numpy.setxor1d`."""
    return asarray(np.setxor1d(_require_known(ar1, "setxor1d"), _require_known(ar2, "setxor1d")))


def trim_zeros(filt: TensorLike, trim: str = "fb") -> Tensor:
    """Remove zeros from the front ('f') and back ('b') of a vector.

    Example:
      >>> tnp.trim_zeros([0, 1, 0, 2, 0]).numpy()
      array([1, 0, 2])
    """
    indices = np.flatnonzero(_require_known(filt, "trim_zeros"))
    if not indices.size:
        return asarray(filt)[:0]
    first = indices[0] if "f" in trim.lower() else 0
    return asarray(filt)[first : indices[-1] + 1 if "b" in trim.lower() else None]


def histogram(
    a: TensorLike,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    density: bool | None = None,
    weights: TensorLike | None = None,
) -> tuple[Tensor, Tensor]:
    """Count the elements in each bin, and return the counts and edges; see `numpy.histogram`.

    Example:
      >>> tnp.histogram([0, 1, 1, 4], 2)[0].numpy()
      array([3, 1])
    """
    known_weights = None if weights is None else _require_known(weights, "histogram")
    edges = bins if isinstance(bins, (int, str)) else _require_known(bins, "histogram")
    counts, edges = np.histogram(
        _require_known(a, "histogram"), edges, range, density=density, weights=known_weights
    )
    return asarray(counts), asarray(edges)


def ravel_multi_index(
    multi_index: Any, dims: Sequence[int], mode: Any = "raise", order: Any = "C"
) -> Tensor:
    """Convert indices along each axis to flat indices; see `numpy.ravel_multi_index`."""
    indices = tuple(_require_known(p, "ravel_multi_index") for p in multi_index)
    return asarray(np.ravel_multi_index(indices, tuple(dims), mode, order))
