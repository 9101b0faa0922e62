"""Functions whose result has as many elements as their arguments' values say.

Under XLA sizes are static, so these need the values: they run eagerly, on the host. What moves elements
of an argument keeps its gradient, as the positions are found first and the elements gathered then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy import manipulation
from meshflow.numpy.conversion import asarray
from meshflow.numpy.jnp_wrappers import wrap_jnp

import jax.numpy as jnp  # isort: skip

__all__ = [
    *(
        "argwhere",
        "bincount",
        "compress",
        "extract",
        "flatnonzero",
        "histogram",
        "intersect1d",
    ),
    *(
        "nonzero",
        "ravel_multi_index",
        "setdiff1d",
        "setxor1d",
        "trim_zeros",
        "union1d",
        "unique",
    ),
    "where",
]

_choice = wrap_jnp(jnp.where, "where", operands=["condition", "x", "y"])


def _known(value: TensorLike, function: str) -> np.ndarray:
    return asarray(value)._concrete(
        f"an argument of tnp.{function}, whose result's size it decides,"
    )


def nonzero(a: TensorLike) -> list[Tensor]:
    """The positions of elements that are not zero.

    Args:
      a: what `asarray` takes, of known values.

    Returns:
      A list of int64 tensors, one per axis.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.nonzero([5, 0, 7])[0].numpy()
      array([0, 2])
    """
    return [asarray(p) for p in np.nonzero(_known(a, "nonzero"))]


def flatnonzero(a: TensorLike) -> Tensor:
    """The positions in the flat array of elements that are not zero.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.flatnonzero([[5, 0], [0, 7]]).numpy()
      array([0, 3])
    """
    return asarray(np.flatnonzero(_known(a, "flatnonzero")))


def argwhere(a: TensorLike) -> Tensor:
    """The positions of elements that are not zero, a row each.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.argwhere([[5, 0], [0, 7]]).numpy()
      array([[0, 0],
             [1, 1]])
    """
    return asarray(np.argwhere(_known(a, "argwhere")))


def where(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None
) -> Tensor | list[Tensor]:
    """Elements of `x` where a condition holds, of `y` elsewhere; alone, where it holds.

    Args:
      condition: booleans.
      x: what `asarray` takes.
      y: what `asarray` takes; given exactly when `x` is.

    Returns:
      A tensor of the dtype in which `x` and `y` meet; without them what `nonzero` gives.

    Raises:
      ValueError: when only one of `x` and `y` is given.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.where([True, False], 1, 2.5).numpy()
      array([1. , 2.5])
    """
    if (x is None) != (y is None):
        raise ValueError("tnp.where: either both `x` and `y` must be given, or neither.")
    return nonzero(condition) if x is None else _choice(condition, x, y)


def compress(condition: TensorLike, a: TensorLike, axis: int | None = None) -> Tensor:
    """The slices along an axis where a condition holds.

    Args:
      condition: booleans of one dimension, of known values.
      a: what `asarray` takes.
      axis: the axis; by default `a` is taken flat.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.compress([True, False, True], [4, 5, 6]).numpy()
      array([4, 6])
    """
    return manipulation.take(a, np.flatnonzero(_known(condition, "compress")), axis)


def extract(condition: TensorLike, arr: TensorLike) -> Tensor:
    """The elements where a condition holds.

    Example:
      >>> import meshflow.experimental.numpy as tnp
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
    """The different elements, sorted; see `numpy.unique`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.unique([3, 1, 3]).numpy()
      array([1, 3])
    """
    found: Any = np.unique(  # type: ignore[call-overload]
        _known(ar, "unique"),
        return_index,
        return_inverse,
        return_counts,
        axis=axis,
        equal_nan=equal_nan,
    )
    return tuple(asarray(f) for f in found) if isinstance(found, tuple) else asarray(found)


def bincount(x: TensorLike, weights: TensorLike | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on occurs; see `numpy.bincount`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.bincount([0, 2, 2]).numpy()
      array([1, 0, 2])
    """
    shares = None if weights is None else _known(weights, "bincount")
    return asarray(np.bincount(_known(x, "bincount"), shares, minlength))


def intersect1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """The elements that are in both, sorted; see `numpy.intersect1d`."""
    return asarray(np.intersect1d(_known(ar1, "intersect1d"), _known(ar2, "intersect1d")))


def union1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """The elements that are in either, sorted; see `numpy.union1d`."""
    return asarray(np.union1d(_known(ar1, "union1d"), _known(ar2, "union1d")))


def setdiff1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """The elements of the first that are not in the second, sorted; see `numpy.setdiff1d`."""
    return asarray(np.setdiff1d(_known(ar1, "setdiff1d"), _known(ar2, "setdiff1d")))


def setxor1d(ar1: TensorLike, ar2: TensorLike) -> Tensor:
    """The elements that are in one only, sorted; see `numpy.setxor1d`."""
    return asarray(np.setxor1d(_known(ar1, "setxor1d"), _known(ar2, "setxor1d")))


def trim_zeros(filt: TensorLike, trim: str = "fb") -> Tensor:
    """A vector without zeros at its front ('f') and back ('b').

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.trim_zeros([0, 1, 0, 2, 0]).numpy()
      array([1, 0, 2])
    """
    places = np.flatnonzero(_known(filt, "trim_zeros"))
    if not places.size:
        return asarray(filt)[:0]
    first = places[0] if "f" in trim.lower() else 0
    return asarray(filt)[first : places[-1] + 1 if "b" in trim.lower() else None]


def histogram(
    a: TensorLike,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: TensorLike | None = None,
) -> tuple[Tensor, Tensor]:
    """How many elements lie in each bin, and the bins' edges; see `numpy.histogram`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.histogram([0, 1, 1, 4], 2)[0].numpy()
      array([3, 1])
    """
    shares = None if weights is None else _known(weights, "histogram")
    edges = bins if isinstance(bins, (int, str)) else _known(bins, "histogram")
    counts, edges = np.histogram(
        _known(a, "histogram"), edges, range, density=density, weights=shares
    )
    return asarray(counts), asarray(edges)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: Any = "C") -> Tensor:
    """Positions in the flat array from positions along each axis; see `numpy.ravel_multi_index`."""
    places = tuple(_known(p, "ravel_multi_index") for p in multi_index)
    return asarray(np.ravel_multi_index(places, tuple(dims), mode, order))
