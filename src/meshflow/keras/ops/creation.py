"""Creation of tensors from shapes and values.

Example:
  >>> ops.arange(3).numpy().tolist()
  [0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.op_factories import WindowFunction
from meshflow.keras.ops.promotion import as_tensor, promote, result_type
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


def _as_dtype(dtype: DTypeLike | None) -> DType:
    return dtypes.as_dtype(floatx() if dtype is None or dtype is float else dtype)


def array(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Convert a value to a tensor.

    Args:
      x: A tensor, array, number or nested list.
      dtype: Dtype; default the dtype of the value.

    Example:
      >>> ops.array([1, 2]).dtype
      tf.int32
    """
    return as_tensor(x) if dtype is None else casting.cast(as_tensor(x), _as_dtype(dtype))


def copy(x: TensorLike) -> Tensor:
    """Return the tensor itself, since tensors are immutable.

    Args:
      x: A tensor.

    Example:
      >>> int(ops.copy(3))
      3
    """
    return array_ops.identity(as_tensor(x))


def zeros(shape: ShapeLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor of zeros.

    Args:
      shape: The shape.
      dtype: Dtype; default `floatx()`.

    Example:
      >>> ops.zeros([2]).numpy().tolist()
      [0.0, 0.0]
    """
    return array_ops.zeros(shape, _as_dtype(dtype))


def ones(shape: ShapeLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor of ones.

    Args:
      shape: The shape.
      dtype: Dtype; default `floatx()`.

    Example:
      >>> ops.ones([2]).numpy().tolist()
      [1.0, 1.0]
    """
    return array_ops.ones(shape, _as_dtype(dtype))


def empty(shape: ShapeLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor of arbitrary values; they are zeros here.

    Args:
      shape: The shape.
      dtype: Dtype; default `floatx()`.

    Example:
      >>> ops.empty([2]).shape
      TensorShape([2])
    """
    return zeros(shape, dtype)


def full(shape: ShapeLike, fill_value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor of one value.

    Args:
      shape: The shape.
      fill_value: The value, or a tensor that broadcasts to the shape.
      dtype: Dtype; default `floatx()`.

    Example:
      >>> ops.full([2], 3).numpy().tolist()
      [3.0, 3.0]
    """
    return array_ops.broadcast_to(array(fill_value, _as_dtype(dtype)), shape)


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create zeros of the shape of a tensor.

    Args:
      x: The tensor.
      dtype: Dtype of the result; default the dtype of `x`.

    Example:
      >>> ops.zeros_like([1, 2]).numpy().tolist()
      [0, 0]
    """
    return array_ops.zeros_like(as_tensor(x), None if dtype is None else _as_dtype(dtype))


def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create ones of the shape of a tensor.

    Args:
      x: The tensor.
      dtype: Dtype of the result; default the dtype of `x`.

    Example:
      >>> ops.ones_like([1, 2]).numpy().tolist()
      [1, 1]
    """
    return array_ops.ones_like(as_tensor(x), None if dtype is None else _as_dtype(dtype))


def empty_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor of the shape of another with arbitrary values; they are zeros here.

    Args:
      x: The tensor.
      dtype: Dtype of the result; default the dtype of `x`.

    Example:
      >>> ops.empty_like([1, 2]).shape
      TensorShape([2])
    """
    return zeros_like(x, dtype)


def full_like(x: TensorLike, fill_value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Create a tensor of one value with the shape of another tensor.

    Args:
      x: The tensor.
      fill_value: The value.
      dtype: Dtype of the result; default the dtype of `x`.

    Example:
      >>> ops.full_like([1, 2], 7).numpy().tolist()
      [7, 7]
    """
    ones = ones_like(x, dtype)
    return ones * casting.cast(as_tensor(fill_value), ones.dtype)


def arange(
    start: TensorLike,
    stop: TensorLike | None = None,
    step: TensorLike | None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Create evenly spaced values from `start` up to but not including `stop`.

    Args:
      start: The first value; without `stop`, the end of values from 0.
      stop: The end.
      step: The step; default 1.
      dtype: Dtype; default int32 for integers, `floatx()` for floats.

    Example:
      >>> ops.arange(3).numpy().tolist(), ops.arange(1.0, 2.0, 0.5).numpy().tolist()
      ([0, 1, 2], [1.0, 1.5])
    """
    values = [v for v in (start, stop, step) if v is not None]
    kinds = [type(v) if type(v) in (int, float, bool) else as_tensor(v).dtype for v in values]
    result_dtype = result_type(*kinds) if dtype is None else _as_dtype(dtype)
    if stop is None:
        start, stop = 0, start
    range_dtype = (
        result_dtype
        if result_dtype.is_floating or (result_dtype.is_integer and result_dtype.size >= 4)
        else dtypes.int32
    )
    return casting.cast(
        array_ops.range(start, stop, 1 if step is None else step, range_dtype), result_dtype
    )


@op(same=(), name="linspace")
def _linspace(
    start: TensorLike,
    stop: TensorLike,
    kind: str,
    num: int,
    endpoint: bool,
    base: Any,
    axis: int,
    dtype: Any,
) -> Any:
    dtype = dtypes.as_dtype(dtype).dtype  # Files contain the dtype as a name.
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
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Create a number of evenly spaced values.

    Args:
      start: The first value.
      stop: The last value, or the value after it.
      num: Number of values.
      endpoint: Whether `stop` is the last value.
      retstep: Whether to return the interval, too.
      dtype: Dtype; default a floating-point one.
      axis: Position of the new axis.

    Returns:
      The values; with `retstep` also the interval.

    Example:
      >>> ops.linspace(0, 1, 3).numpy().tolist()
      [0.0, 0.5, 1.0]
    """
    start, stop = promote(start, stop, also=float)
    result_dtype = dtypes.as_dtype(start.dtype) if dtype is None else _as_dtype(dtype)
    values = _linspace(start, stop, "linspace", num, endpoint, None, axis, result_dtype)
    if not retstep:
        return values
    count = num - 1 if endpoint else num
    interval = (stop - start) / casting.cast(as_tensor(count), start.dtype)
    return values, casting.cast(interval, result_dtype)


def logspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Create powers with evenly spaced exponents.

    Args:
      start: The first exponent.
      stop: The last exponent, or the exponent after it.
      num: Number of values.
      endpoint: Whether `stop` is the last exponent.
      base: Base of the powers.
      dtype: Dtype; default a floating-point one.
      axis: Position of the new axis.

    Example:
      >>> ops.logspace(0, 2, 3).numpy().tolist()
      [1.0, 10.0, 100.0]
    """
    start, stop = promote(start, stop, also=float)
    result_dtype = dtypes.as_dtype(start.dtype) if dtype is None else _as_dtype(dtype)
    return _linspace(start, stop, "logspace", num, endpoint, base, axis, result_dtype)


def geomspace(
    start: TensorLike,
    stop: TensorLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Create a geometric sequence.

    Args:
      start: The first value.
      stop: The last value, or the value after it.
      num: Number of values.
      endpoint: Whether `stop` is the last value.
      dtype: Dtype; default a floating-point one.
      axis: Position of the new axis.

    Example:
      >>> ops.geomspace(1, 4, 3).numpy().round(5).tolist()
      [1.0, 2.0, 4.0]
    """
    start, stop = promote(start, stop, also=float)
    result_dtype = dtypes.as_dtype(start.dtype) if dtype is None else _as_dtype(dtype)
    return _linspace(start, stop, "geomspace", num, endpoint, None, axis, result_dtype)


def eye(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Create a matrix of zeros with ones on a diagonal.

    Args:
      N: Number of rows.
      M: Number of columns; default `N`.
      k: Offset of the diagonal; positive is above the main one.
      dtype: Dtype of the result; default `floatx()`.

    Example:
      >>> ops.eye(2).numpy().tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    return as_tensor(np.eye(N, M, k, dtype=_as_dtype(dtype).dtype))


def identity(n: int, dtype: DTypeLike | None = None) -> Tensor:
    """Create an identity matrix.

    Args:
      n: Number of rows and columns.
      dtype: Dtype of the result; default `floatx()`.

    Example:
      >>> ops.identity(2).shape
      TensorShape([2, 2])
    """
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Create a matrix with ones on and below a diagonal.

    Args:
      N: Number of rows.
      M: Number of columns; default `N`.
      k: Offset of the diagonal; positive is above the main one.
      dtype: Dtype of the result; default `floatx()`.

    Example:
      >>> ops.tri(2).numpy().tolist()
      [[1.0, 0.0], [1.0, 1.0]]
    """
    return as_tensor(np.tri(N, M, k, dtype=_as_dtype(dtype).dtype))


def _make_window(name: str, function: Callable[[int], np.ndarray], doc: str) -> WindowFunction:
    def public(x: TensorLike) -> Tensor:
        return as_tensor(np.asarray(function(int(x)), floatx()))

    public.__name__ = public.__qualname__ = name
    public.__doc__ = (
        f"{doc}\n\nArgs:\n  x: Number of points.\n\nReturns:\n  A vector of dtype `floatx()`.\n"
    )
    return public


bartlett = _make_window("bartlett", np.bartlett, "Return the Bartlett window, a triangle.")
blackman = _make_window("blackman", np.blackman, "Return the Blackman window.")
hamming = _make_window("hamming", np.hamming, "Return the Hamming window.")
hanning = _make_window("hanning", np.hanning, "Return the Hann window.")


def kaiser(x: TensorLike, beta: float) -> Tensor:
    """Return the Kaiser window.

    Args:
      x: Number of points.
      beta: Shape parameter of the window.

    Example:
      >>> ops.kaiser(3, 0.0).numpy().tolist()
      [1.0, 1.0, 1.0]
    """
    return as_tensor(np.asarray(np.kaiser(int(x), float(beta)), floatx()))


@op(same=(), name="meshgrid")
def _meshgrid(x: Sequence[TensorLike], indexing: str) -> Any:
    return tuple(jnp.meshgrid(*x, indexing=indexing))


def meshgrid(*x: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of all points of a grid.

    Args:
      *x: Coordinates along each axis; tensors of other ranks than 1 are flattened.
      indexing: 'xy' for columns first, or 'ij'.

    Example:
      >>> ops.meshgrid([1, 2], [3, 4, 5])[0].shape
      TensorShape([3, 2])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij'. Received: indexing={indexing}")
    return list(_meshgrid([array_ops.reshape(v, [-1]) for v in x], indexing))


@op(same=(), name="vander")
def _vander(x: TensorLike, N: int | None, increasing: bool) -> Any:
    return jnp.vander(x, N, increasing)


def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> Tensor:
    """Create a Vandermonde matrix, the powers of a vector's elements.

    Args:
      x: A vector.
      N: Number of columns; default the number of rows.
      increasing: Whether the powers increase from left to right.

    Example:
      >>> ops.vander([1, 2], increasing=True).numpy().tolist()
      [[1, 1], [1, 2]]
    """
    return _vander(as_tensor(x), N, increasing)
