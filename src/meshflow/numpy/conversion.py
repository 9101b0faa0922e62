"""Conversion of Python values and arrays to tensors, with NumPy's 64-bit default dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import numpy as np

from meshflow.core.dispatch.symbolic_calls import accept_symbolic
from meshflow.core.values import convert, dtypes
from meshflow.core.values.convert import contains_tensors, has_numpy_scalars
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.numpy.promotion import common_dtype
from meshflow.ops import array as array_ops
from meshflow.ops.math import cast


class DefaultDtypes:
    """Dtype of Python floats: float64 as in NumPy, or float32 if `prefer_float32` is set."""

    floating: np.dtype = np.dtype(np.float64)


_PYTHON_TYPES = {
    bool: np.dtype(bool),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


def is_python_number(value: object) -> TypeGuard[int | float | complex]:
    """Check whether a value is a Python number, which does not determine the result's dtype."""
    return type(value) in _PYTHON_TYPES


def to_numpy_dtype(dtype: Any) -> np.dtype:
    """Convert a dtype, name or Python type to a NumPy dtype; Python types and `"float"` mean 64 bits.

    Raises:
      TypeError: If the value is not a dtype.
    """
    if isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        return _PYTHON_TYPES[dtype]
    if isinstance(dtype, str) and dtype == "float":
        return _PYTHON_TYPES[float]
    return dtypes.as_dtype(dtype).dtype


def get_numpy_dtype(value: Any) -> np.dtype:
    """Return the NumPy dtype of a tensor or array, or that of the tensor for a list."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        dtype = asarray(value).dtype
    return dtype.dtype if isinstance(dtype, dtypes.DType) else np.dtype(dtype)


@accept_symbolic
def asarray(a: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Convert a value to a tensor, with NumPy's default dtypes for Python numbers.

    Args:
      a: Tensor (returned unchanged), variable, array, number, string, or nested list of them.
      dtype: Dtype of the result; default that of the value.

    Raises:
      ValueError: If a nested list is ragged, or the value is not an array.

    Example:
      >>> tnp.asarray([1.0, 2.0]).dtype, tnp.asarray([1, 2]).dtype
      (tf.float64, tf.int64)
    """
    tensor = _as_tensor(a)
    if dtype is None:
        return tensor
    target = dtypes.from_numpy_dtype(to_numpy_dtype(dtype))
    return tensor if tensor.dtype is target else cast(tensor, target)


def _as_tensor(value: Any) -> Tensor:
    if is_tensor(value):
        return convert.convert_to_tensor(value)
    if isinstance(value, (list, tuple)) and contains_tensors(value):
        return array_ops.stack(promote(value))
    if isinstance(value, (np.ndarray, np.generic, jax.Array, jax.core.Tracer)) or hasattr(
        value, "__tf_tensor__"
    ):
        return convert.convert_to_tensor(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"Can't convert non-rectangular Python sequence to Tensor: {error}"
        ) from None
    if array.dtype.kind not in "biufc":
        return convert.convert_to_tensor(value)
    if array.dtype == np.float64 and not has_numpy_scalars(value):
        array = array.astype(DefaultDtypes.floating)
    return convert.convert_python_value(array, None)


def promote(values: Sequence[Any], floating: bool = False, weak_lists: bool = False) -> list[Any]:
    """Convert values to tensors of their common dtype.

    Args:
      values: Array-like values.
      floating: Whether to convert integers to floating-point numbers.
      weak_lists: Whether lists of Python numbers are as weak as numbers.

    Raises:
      TypeError: If the dtypes have no common dtype.
    """
    tensors = [v if is_python_number(v) else asarray(v) for v in values]
    examples = [
        _make_example(t)
        if weak_lists and isinstance(v, (list, tuple)) and not contains_tensors(v)
        else t
        for v, t in zip(values, tensors, strict=True)
    ]
    target = common_dtype(
        [k if is_python_number(k) else get_numpy_dtype(k) for k in examples], floating
    )
    if target == np.float64 and all(map(is_python_number, values)):
        target = DefaultDtypes.floating
    return [_convert_dtype(t, target) for t in tensors]


def _make_example(tensor: Any) -> complex:
    """Return a Python number of the same kind as the elements of a tensor."""
    dtype = tensor.dtype
    return False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0


def _convert_dtype(value: Any, target: np.dtype | None) -> Any:
    if is_python_number(value):
        return Tensor(np.asarray(value, target))
    if target is None or value.dtype.dtype == target:
        return value
    return cast(value, dtypes.from_numpy_dtype(target))


def asanyarray(a: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Call `asarray`."""
    return asarray(a, dtype)


def ascontiguousarray(a: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Convert a value to a tensor with at least one dimension; tensors are always contiguous."""
    tensor = asarray(a, dtype)
    return tensor if tensor.ndim else array_ops.reshape(tensor, [1])


def array(
    val: TensorLike, dtype: DTypeLike | None = None, copy: bool = True, ndmin: int = 0
) -> Tensor:
    """Convert a value to a tensor with at least `ndmin` dimensions; see `asarray`.

    Args:
      val: Array-like value.
      dtype: Dtype of the result; default that of the value.
      copy: Ignored; tensors are immutable.
      ndmin: Minimum number of dimensions; new dimensions are the first ones.

    Example:
      >>> tnp.array([1, 2], ndmin=3).shape
      TensorShape([1, 1, 2])
    """
    tensor = asarray(val, dtype)
    missing = ndmin - tensor.ndim
    return tensor if missing <= 0 else array_ops.reshape(tensor, [1] * missing + list(tensor.shape))


def copy(a: TensorLike) -> Tensor:
    """Copy a value to a tensor on the device of the current `tf.device`.

    Example:
      >>> tnp.copy([1, 2]).numpy()
      array([1, 2])
    """
    return array_ops.identity(asarray(a))
