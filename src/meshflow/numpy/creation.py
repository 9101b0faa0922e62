"""Creation of arrays from sizes and numbers, with 64 bits unless a dtype is passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values import convert
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.conversion import (
    DefaultDtypes,
    asarray,
    get_numpy_dtype,
    is_python_number,
    to_numpy_dtype,
)
from meshflow.numpy.jnp_wrappers import wrap_jnp
from meshflow.numpy.promotion import common_dtype
from meshflow.ops import array as array_ops
from meshflow.ops.array.creation import as_sizes

__all__ = [
    *("arange", "bartlett", "blackman", "diag_indices", "empty", "empty_like", "eye"),
    *("fromfunction", "full", "full_like", "geomspace", "hamming", "hanning", "identity"),
    *("indices", "ix_", "kaiser", "linspace", "logspace", "meshgrid", "ones", "ones_like", "tri"),
    *("tril_indices", "triu_indices", "vander", "zeros", "zeros_like"),
]

T = TypeVar("T")

zeros = wrap_jnp(jnp.zeros)
ones = wrap_jnp(jnp.ones)
empty = wrap_jnp(jnp.zeros, "empty")
eye = wrap_jnp(jnp.eye)
identity = wrap_jnp(jnp.identity)
_tri = wrap_jnp(jnp.tri, "tri")
zeros_like = wrap_jnp(jnp.zeros_like)
ones_like = wrap_jnp(jnp.ones_like)
empty_like = wrap_jnp(jnp.zeros_like, "empty_like")

_linspace = wrap_jnp(jnp.linspace, "linspace", floating=True)
_logspace = wrap_jnp(jnp.logspace, "logspace", floating=True, static=["base"])
_geomspace = wrap_jnp(jnp.geomspace, "geomspace", floating=True)

meshgrid = wrap_jnp(jnp.meshgrid, excluded=["xi"])
vander = wrap_jnp(jnp.vander)
bartlett = wrap_jnp(jnp.bartlett, static=["M"])
blackman = wrap_jnp(jnp.blackman, static=["M"])
hamming = wrap_jnp(jnp.hamming, static=["M"])
hanning = wrap_jnp(jnp.hanning, static=["M"])
kaiser = wrap_jnp(jnp.kaiser, static=["M", "beta"])


def full(shape: ShapeLike, fill_value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor filled with a value.

    Args:
      shape: Integer or sequence of integers.
      fill_value: Array-like value of a shape that broadcasts to `shape`.
      dtype: Dtype; default that of `asarray(fill_value)`.

    Example:
      >>> tnp.full([2], 1.5).numpy()
      array([1.5, 1.5])
    """
    sizes = (shape,) if isinstance(shape, int) else as_sizes(shape)
    return array_ops.broadcast_to(asarray(fill_value, dtype), sizes)


def full_like(
    a: TensorLike,
    fill_value: TensorLike,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
) -> Tensor:
    """Create a tensor filled with a value, in the shape and dtype of another.

    Args:
      a: Array-like value.
      fill_value: Array-like value.
      dtype: Dtype; default that of `a`.
      order: Ignored.
      subok: Ignored.
      shape: Shape; default that of `a`.

    Example:
      >>> tnp.full_like([1, 2], 7).numpy()
      array([7, 7])
    """
    template = asarray(a)
    return full(template.shape if shape is None else shape, fill_value, dtype or template.dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None) -> Tensor:
    """Create a vector of evenly spaced numbers, without the end.

    Args:
      start: First number; the end if `stop` is None, with 0 as the first number.
      stop: End.
      step: Distance.
      dtype: Dtype; default the common dtype of the numbers.

    Raises:
      TypeError: If a number is only known when a traced function runs, because it determines the
        size.
      ValueError: If the step is zero.

    Example:
      >>> tnp.arange(0, 1, 0.25).numpy()
      array([0.  , 0.25, 0.5 , 0.75])
    """
    if dtype is None:
        arguments = [v for v in (start, stop, step) if v is not None]
        target = common_dtype([v if is_python_number(v) else get_numpy_dtype(v) for v in arguments])
        if target == np.float64 and all(is_python_number(v) for v in arguments):
            target = DefaultDtypes.floating
    else:
        target = to_numpy_dtype(dtype)
    names = ("start", "stop", "step")
    first, last, distance = [
        to_static_value(v, n) for v, n in zip((start, stop, step), names, strict=True)
    ]
    if not distance:
        raise ValueError("tnp.arange: `step` must not be zero.")
    if last is None:
        first, last = 0, first
    return convert.convert_python_value(np.arange(first, last, distance, dtype=target), None)


def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Create evenly spaced numbers between two bounds.

    Args:
      start: First numbers.
      stop: Last numbers, of a shape that broadcasts.
      num: Number of values.
      endpoint: Whether to include `stop`.
      retstep: Whether to return the distance, too.
      dtype: Dtype; default a floating-point dtype.
      axis: Index of the new axis.

    Returns:
      A tensor, or a pair of the tensor and the distance if `retstep` is true.

    Example:
      >>> tnp.linspace(0, 1, 3).numpy()
      array([0. , 0.5, 1. ])
    """
    if dtype is None and is_python_number(start) and is_python_number(stop):
        start, stop = asarray(start, DefaultDtypes.floating), asarray(stop, DefaultDtypes.floating)
    return _linspace(start, stop, num, endpoint, retstep, dtype, axis)


def logspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Create powers of `base` with evenly spaced exponents; see `linspace`.

    Example:
      >>> tnp.logspace(0, 2, 3).numpy()
      array([  1.,  10., 100.])
    """
    return _logspace(start, stop, num, endpoint, base, dtype, axis)


def geomspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Create numbers with equal ratios between two bounds; see `linspace`.

    Example:
      >>> tnp.geomspace(1, 4, 3).numpy()
      array([1., 2., 4.])
    """
    return _geomspace(start, stop, num, endpoint, dtype, axis)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = float) -> Tensor:
    """Create a matrix of ones on and below a diagonal, and zeros above it.

    Args:
      N: Number of rows.
      M: Number of columns; default `N`.
      k: Diagonal; 0 is the main one, and positive ones are above it.
      dtype: Dtype.

    Example:
      >>> tnp.tri(2).numpy()
      array([[1., 0.],
             [1., 1.]])
    """
    return _tri(N, M, k, dtype or float)


def diag_indices(n: int, ndim: int = 2) -> tuple[Tensor, ...]:
    """Return the indices of the main diagonal of an array with `ndim` axes of size `n`.

    Example:
      >>> [p.numpy().tolist() for p in tnp.diag_indices(2)]
      [[0, 1], [0, 1]]
    """
    return (convert.convert_python_value(np.arange(n, dtype=np.int32), None),) * ndim


def ix_(*args: TensorLike) -> list[Tensor]:
    """Return indices along each axis, shaped so that together they index a grid.

    Args:
      *args: Vectors of indices, or Boolean vectors.

    Example:
      >>> [p.shape.as_list() for p in tnp.ix_([0, 2], [1, 3, 4])]
      [[2, 1], [1, 3]]
    """
    return [asarray(p) for p in np.ix_(*[np.asarray(asarray(a)) for a in args])]


def indices(
    dimensions: Sequence[int], dtype: DTypeLike = int, sparse: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """Return the indices of all elements of a grid, one tensor for each axis; see `numpy.indices`."""
    grid: Any = np.indices(tuple(dimensions), to_numpy_dtype(dtype), sparse)  # type: ignore[call-overload]
    return tuple(asarray(f) for f in grid) if sparse else convert.convert_python_value(grid, None)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, ...]:
    """Return the indices on and below a diagonal of a matrix; see `numpy.tril_indices`."""
    return tuple(asarray(i) for i in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, ...]:
    """Return the indices on and above a diagonal of a matrix; see `numpy.triu_indices`."""
    return tuple(asarray(i) for i in np.triu_indices(n, k, m))


def fromfunction(
    function: Callable[..., T], shape: Sequence[int], *, dtype: DTypeLike = float, **kwargs: Any
) -> T:
    """Call a function with the indices of a grid; see `numpy.fromfunction`."""
    return function(*array_ops.unstack(indices(shape, dtype)), **kwargs)
