"""Tensors of shapes and values.

Example:
  >>> from meshflow.keras import ops
  >>> ops.arange(3).numpy().tolist()
  [0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.making import Window
from meshflow.keras.ops.promotion import common, result_type, tensor
from meshflow.keras.settings import floatx
from meshflow.ops import array as array_ops
from meshflow.ops import casting

__all__ = [
    "arange",
    "array",
    "bartlett",
    "blackman",
    "copy",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "geomspace",
    "hamming",
    "hanning",
    "identity",
    "kaiser",
    "linspace",
    "logspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tri",
    "vander",
    "zeros",
    "zeros_like",
]


def _dtype(dtype: Any) -> Any:
    return dtypes.as_dtype(floatx() if dtype is None or dtype is float else dtype)


def array(x: Any, dtype: Any = None) -> Tensor:
    """A tensor of a value.

    Args:
      x: a tensor, array, number, or nested list.
      dtype: the dtype; default the value's own.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.array([1, 2]).dtype
      tf.int32
    """
    return tensor(x) if dtype is None else casting.cast(tensor(x), _dtype(dtype))


def copy(x: TensorLike) -> Tensor:
    """The tensor; tensors cannot be written to.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.copy(3))
      3
    """
    return array_ops.identity(tensor(x))


def zeros(shape: Any, dtype: Any = None) -> Tensor:
    """A tensor of zeros.

    Args:
      shape: its shape.
      dtype: its dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.zeros([2]).numpy().tolist()
      [0.0, 0.0]
    """
    return array_ops.zeros(shape, _dtype(dtype))


def ones(shape: Any, dtype: Any = None) -> Tensor:
    """A tensor of ones.

    Args:
      shape: its shape.
      dtype: its dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.ones([2]).numpy().tolist()
      [1.0, 1.0]
    """
    return array_ops.ones(shape, _dtype(dtype))


def empty(shape: Any, dtype: Any = None) -> Tensor:
    """A tensor of any content; zeros here.

    Args:
      shape: its shape.
      dtype: its dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.empty([2]).shape
      TensorShape([2])
    """
    return zeros(shape, dtype)


def full(shape: Any, fill_value: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor of one value.

    Args:
      shape: its shape.
      fill_value: the value, or what broadcasts to the shape.
      dtype: its dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.full([2], 3).numpy().tolist()
      [3.0, 3.0]
    """
    return array_ops.broadcast_to(array(fill_value, _dtype(dtype)), shape)


def zeros_like(x: TensorLike, dtype: Any = None) -> Tensor:
    """Zeros of the shape of a tensor.

    Args:
      x: the tensor.
      dtype: the dtype; default that of `x`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.zeros_like([1, 2]).numpy().tolist()
      [0, 0]
    """
    return array_ops.zeros_like(tensor(x), None if dtype is None else _dtype(dtype))


def ones_like(x: TensorLike, dtype: Any = None) -> Tensor:
    """Ones of the shape of a tensor.

    Args:
      x: the tensor.
      dtype: the dtype; default that of `x`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.ones_like([1, 2]).numpy().tolist()
      [1, 1]
    """
    return array_ops.ones_like(tensor(x), None if dtype is None else _dtype(dtype))


def empty_like(x: TensorLike, dtype: Any = None) -> Tensor:
    """A tensor of the shape of another, of any content; zeros here.

    Args:
      x: the tensor.
      dtype: the dtype; default that of `x`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.empty_like([1, 2]).shape
      TensorShape([2])
    """
    return zeros_like(x, dtype)


def full_like(x: TensorLike, fill_value: TensorLike, dtype: Any = None) -> Tensor:
    """One value in the shape of a tensor.

    Args:
      x: the tensor.
      fill_value: the value.
      dtype: the dtype; default that of `x`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.full_like([1, 2], 7).numpy().tolist()
      [7, 7]
    """
    ones = ones_like(x, dtype)
    return ones * casting.cast(tensor(fill_value), ones.dtype)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Tensor:
    """Numbers from `start` to `stop`, which is left out, in equal steps.

    Args:
      start: the first number; with `start` alone, where they end.
      stop: where they end.
      step: the step; default 1.
      dtype: the dtype; default int32 for integers, `floatx()` for floats.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.arange(3).numpy().tolist(), ops.arange(1.0, 2.0, 0.5).numpy().tolist()
      ([0, 1, 2], [1.0, 1.5])
    """
    given = [v for v in (start, stop, step) if v is not None]
    kinds = [type(v) if type(v) in (int, float, bool) else tensor(v).dtype for v in given]
    wanted = result_type(*kinds) if dtype is None else _dtype(dtype)
    if stop is None:
        start, stop = 0, start
    made = (
        wanted if wanted.is_floating or (wanted.is_integer and wanted.size >= 4) else dtypes.int32
    )
    return casting.cast(array_ops.range(start, stop, 1 if step is None else step, made), wanted)


@op(same=(), name="linspace")
def _spaced(
    start: TensorLike,
    stop: TensorLike,
    kind: str,
    num: int,
    endpoint: bool,
    base: Any,
    axis: int,
    dtype: Any,
) -> Any:
    dtype = dtypes.as_dtype(dtype).dtype  # a name, where a file says it
    if kind == "linspace":
        return jnp.linspace(start, stop, num, endpoint, dtype=dtype, axis=axis)
    if kind == "geomspace":
        return jnp.geomspace(start, stop, num, endpoint, dtype=dtype, axis=axis)
    return jnp.logspace(start, stop, num, endpoint, base, dtype=dtype, axis=axis)


def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Numbers at equal distances.

    Args:
      start: the first.
      stop: the last, or the one after it.
      num: how many.
      endpoint: whether `stop` is the last one.
      retstep: whether the distance is returned too.
      dtype: the dtype; default a floating one.
      axis: where the new dimension goes.

    Returns:
      The numbers; with `retstep` also the distance.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.linspace(0, 1, 3).numpy().tolist()
      [0.0, 0.5, 1.0]
    """
    start, stop = common(start, stop, also=float)
    wanted = dtypes.as_dtype(start.dtype) if dtype is None else _dtype(dtype)
    numbers = _spaced(start, stop, "linspace", num, endpoint, None, axis, wanted)
    if not retstep:
        return numbers
    gaps = num - 1 if endpoint else num
    gap = (stop - start) / casting.cast(tensor(gaps), start.dtype)
    return numbers, casting.cast(gap, wanted)


def logspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor:
    """Powers with exponents at equal distances.

    Args:
      start: the first exponent.
      stop: the last exponent, or the one after it.
      num: how many.
      endpoint: whether `stop` is the last one.
      base: what is raised to the powers.
      dtype: the dtype; default a floating one.
      axis: where the new dimension goes.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.logspace(0, 2, 3).numpy().tolist()
      [1.0, 10.0, 100.0]
    """
    start, stop = common(start, stop, also=float)
    wanted = dtypes.as_dtype(start.dtype) if dtype is None else _dtype(dtype)
    return _spaced(start, stop, "logspace", num, endpoint, base, axis, wanted)


def geomspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor:
    """Numbers of which each is the last one times the same factor.

    Args:
      start: the first.
      stop: the last, or the one after it.
      num: how many.
      endpoint: whether `stop` is the last one.
      dtype: the dtype; default a floating one.
      axis: where the new dimension goes.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.geomspace(1, 4, 3).numpy().round(5).tolist()
      [1.0, 2.0, 4.0]
    """
    start, stop = common(start, stop, also=float)
    wanted = dtypes.as_dtype(start.dtype) if dtype is None else _dtype(dtype)
    return _spaced(start, stop, "geomspace", num, endpoint, None, axis, wanted)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Tensor:
    """Ones on a diagonal of a matrix of zeros.

    Args:
      N: rows.
      M: columns; default `N`.
      k: the diagonal: above the main one for positive numbers.
      dtype: the dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.eye(2).numpy().tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    return tensor(np.eye(N, M, k, dtype=_dtype(dtype).dtype))


def identity(n: int, dtype: Any = None) -> Tensor:
    """The identity matrix.

    Args:
      n: rows and columns.
      dtype: the dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.identity(2).shape
      TensorShape([2, 2])
    """
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Tensor:
    """Ones on and below a diagonal.

    Args:
      N: rows.
      M: columns; default `N`.
      k: the diagonal.
      dtype: the dtype; default `floatx()`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.tri(2).numpy().tolist()
      [[1.0, 0.0], [1.0, 1.0]]
    """
    return tensor(np.tri(N, M, k, dtype=_dtype(dtype).dtype))


def _window(name: str, function: Any, doc: str) -> Window:
    def public(x: Any) -> Tensor:
        return tensor(np.asarray(function(int(x)), floatx()))

    public.__name__ = public.__qualname__ = name
    public.__doc__ = f"{doc}\n\nArgs:\n  x: how many points.\n\nReturns:\n  A row of `floatx()`.\n"
    return public


bartlett = _window("bartlett", np.bartlett, "The Bartlett window, a triangle.")


blackman = _window("blackman", np.blackman, "The Blackman window.")


hamming = _window("hamming", np.hamming, "The Hamming window.")


hanning = _window("hanning", np.hanning, "The Hann window.")


def kaiser(x: Any, beta: float) -> Tensor:
    """The Kaiser window.

    Args:
      x: how many points.
      beta: its shape.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.kaiser(3, 0.0).numpy().tolist()
      [1.0, 1.0, 1.0]
    """
    return tensor(np.asarray(np.kaiser(int(x), float(beta)), floatx()))


@op(same=(), name="meshgrid")
def _meshgrid(x: Sequence[TensorLike], indexing: str) -> Any:
    return tuple(jnp.meshgrid(*x, indexing=indexing))


def meshgrid(*x: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of all points of a grid.

    Args:
      *x: coordinates; of other ranks than 1, all elements in a row.
      indexing: 'xy' (columns first) or 'ij'.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.meshgrid([1, 2], [3, 4, 5])[0].shape
      TensorShape([3, 2])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij'. Received: indexing={indexing}")
    return list(_meshgrid([array_ops.reshape(v, [-1]) for v in x], indexing))


@op(same=(), name="vander")
def _vander(x: TensorLike, N: Any, increasing: bool) -> Any:
    return jnp.vander(x, N, increasing)


def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix: powers of a row's elements.

    Args:
      x: a row.
      N: how many columns; default as many as rows.
      increasing: whether the powers grow from left to right.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.vander([1, 2], increasing=True).numpy().tolist()
      [[1, 1], [1, 2]]
    """
    return _vander(tensor(x), N, increasing)
