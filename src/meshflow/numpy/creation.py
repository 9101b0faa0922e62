"""Arrays made of sizes and numbers; 64 bits unless a dtype says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.operands import static_value
from meshflow.core.values import convert
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.conversion import Defaults, as_array_dtype, asarray, is_number, own_dtype
from meshflow.numpy.jnp_wrappers import wrap_jnp
from meshflow.numpy.promotion import common_dtype
from meshflow.ops import array as array_ops
from meshflow.ops.array.creation import as_sizes

__all__ = [
    *(
        "arange",
        "bartlett",
        "blackman",
        "diag_indices",
        "empty",
        "empty_like",
        "eye",
    ),
    *(
        "fromfunction",
        "full",
        "full_like",
        "geomspace",
        "hamming",
        "hanning",
        "identity",
    ),
    *(
        "indices",
        "ix_",
        "kaiser",
        "linspace",
        "logspace",
        "meshgrid",
        "ones",
        "ones_like",
        "tri",
    ),
    *(
        "tril_indices",
        "triu_indices",
        "vander",
        "zeros",
        "zeros_like",
    ),
]

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

meshgrid = wrap_jnp(jnp.meshgrid, apart=["xi"])
vander = wrap_jnp(jnp.vander)
bartlett = wrap_jnp(jnp.bartlett, static=["M"])
blackman = wrap_jnp(jnp.blackman, static=["M"])
hamming = wrap_jnp(jnp.hamming, static=["M"])
hanning = wrap_jnp(jnp.hanning, static=["M"])
kaiser = wrap_jnp(jnp.kaiser, static=["M", "beta"])


def full(shape: Any, fill_value: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor filled with a value.

    Args:
      shape: an int or ints.
      fill_value: what `asarray` takes, of a shape that broadcasts to `shape`.
      dtype: the dtype; by default that of `asarray(fill_value)`.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.full([2], 1.5).numpy()
      array([1.5, 1.5])
    """
    sizes = (shape,) if isinstance(shape, int) else as_sizes(shape)
    return array_ops.broadcast_to(asarray(fill_value, dtype), sizes)


def full_like(
    a: TensorLike,
    fill_value: TensorLike,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
) -> Tensor:
    """A tensor filled with a value, of another's shape and dtype.

    Args:
      a: what `asarray` takes.
      fill_value: what `asarray` takes.
      dtype: the dtype; by default that of `a`.
      order: accepted for NumPy's sake.
      subok: accepted for NumPy's sake.
      shape: the shape; by default that of `a`.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.full_like([1, 2], 7).numpy()
      array([7, 7])
    """
    like = asarray(a)
    return full(like.shape if shape is None else shape, fill_value, dtype or like.dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
    """Numbers at equal distances, the end left out.

    Args:
      start: the first number; the end when `stop` is None, and then from 0.
      stop: the end.
      step: the distance.
      dtype: the dtype; by default that in which the numbers meet.

    Returns:
      A tensor of one dimension.

    Raises:
      TypeError: when a number is only known when a traced function runs: it decides the size.
      ValueError: for a step of zero.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.arange(0, 1, 0.25).numpy()
      array([0.  , 0.25, 0.5 , 0.75])
    """
    if dtype is None:
        given = [v for v in (start, stop, step) if v is not None]
        wanted = common_dtype([v if is_number(v) else own_dtype(v) for v in given])
        if wanted == np.float64 and all(is_number(v) for v in given):
            wanted = Defaults.floating
    else:
        wanted = as_array_dtype(dtype)
    names = ("start", "stop", "step")
    first, last, distance = [
        static_value(v, n) for v, n in zip((start, stop, step), names, strict=True)
    ]
    if not distance:
        raise ValueError("tnp.arange: `step` must not be zero.")
    if last is None:
        first, last = 0, first
    numbers = np.arange(first, last, distance, dtype=wanted)
    return convert.from_python(numbers, None)


def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Numbers at equal distances between two.

    Args:
      start: the first numbers.
      stop: the last numbers, of a shape that broadcasts.
      num: how many.
      endpoint: whether `stop` is among them.
      retstep: whether to give the distance as well.
      dtype: the dtype; by default floating.
      axis: where the new axis comes.

    Returns:
      A tensor, or with `retstep` the pair of it and the distance.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.linspace(0, 1, 3).numpy()
      array([0. , 0.5, 1. ])
    """
    if dtype is None and is_number(start) and is_number(stop):
        start, stop = asarray(start, Defaults.floating), asarray(stop, Defaults.floating)
    return _linspace(start, stop, num, endpoint, retstep, dtype, axis)


def logspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor:
    """Powers of `base` with exponents at equal distances; see `linspace`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.logspace(0, 2, 3).numpy()
      array([  1.,  10., 100.])
    """
    return _logspace(start, stop, num, endpoint, base, dtype, axis)


def geomspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor:
    """Numbers of equal ratios between two; see `linspace`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.geomspace(1, 4, 3).numpy()
      array([1., 2., 4.])
    """
    return _geomspace(start, stop, num, endpoint, dtype, axis)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float) -> Tensor:
    """Ones on and below a diagonal, zeros above.

    Args:
      N: rows.
      M: columns; by default as many as rows.
      k: the diagonal; 0 is the main one, positive ones lie above.
      dtype: the dtype.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.tri(2).numpy()
      array([[1., 0.],
             [1., 1.]])
    """
    return _tri(N, M, k, dtype or float)


def diag_indices(n: int, ndim: int = 2) -> tuple[Tensor, ...]:
    """The positions of the main diagonal of an array of `ndim` axes of size `n`.

    Returns:
      A tuple of int32 tensors.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> [p.numpy().tolist() for p in tnp.diag_indices(2)]
      [[0, 1], [0, 1]]
    """
    return (convert.from_python(np.arange(n, dtype=np.int32), None),) * ndim


def ix_(*args: TensorLike) -> list[Tensor]:
    """Positions along each axis, shaped so that together they index a grid.

    Args:
      *args: positions or masks, each of one dimension.

    Returns:
      A list of tensors.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> [p.shape.as_list() for p in tnp.ix_([0, 2], [1, 3, 4])]
      [[2, 1], [1, 3]]
    """
    return [asarray(p) for p in np.ix_(*[np.asarray(asarray(a)) for a in args])]


def indices(
    dimensions: Sequence[int], dtype: Any = int, sparse: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """The positions of every element of a grid, axis by axis; see `numpy.indices`."""
    found: Any = np.indices(tuple(dimensions), as_array_dtype(dtype), sparse)  # type: ignore[call-overload]
    return tuple(asarray(f) for f in found) if sparse else convert.from_python(found, None)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, ...]:
    """The positions on and below a diagonal of a matrix; see `numpy.tril_indices`."""
    return tuple(asarray(i) for i in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, ...]:
    """The positions on and above a diagonal of a matrix; see `numpy.triu_indices`."""
    return tuple(asarray(i) for i in np.triu_indices(n, k, m))


def fromfunction(function: Any, shape: Sequence[int], *, dtype: Any = float, **kwargs: Any) -> Any:
    """What a function of the positions of a grid gives; see `numpy.fromfunction`."""
    return function(*array_ops.unstack(indices(shape, dtype)), **kwargs)
