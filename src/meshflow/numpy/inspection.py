"""Queries of shapes and dtypes, and NumPy's constants and types."""

from __future__ import annotations

import math
from typing import Any, overload

import jax.numpy as jnp
import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.numpy import promotion
from meshflow.numpy.conversion import asarray, get_numpy_dtype, is_python_number, to_numpy_dtype
from meshflow.ops.array import inspection

__all__ = [
    *("bool_", "can_cast", "complex128", "complex64", "complex_", "dtype", "e", "finfo", "float16"),
    *("float32", "float64", "float_", "floating", "iinfo", "inexact", "inf", "int16", "int32"),
    *("int64", "int8", "int_", "integer", "isscalar", "issubdtype", "nan", "ndarray", "ndim"),
    *("newaxis", "number", "object_", "pi", "promote_types", "result_type", "shape", "size"),
    *("string_", "uint16", "uint32", "uint64", "uint8", "unicode_"),
]

ndarray = Tensor
newaxis = None
e, inf, nan, pi = float(np.e), float(np.inf), float(np.nan), float(np.pi)

bool_ = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
int_, float_, complex_ = np.int64, np.float64, np.complex128
inexact, floating, integer, number = np.inexact, np.floating, np.integer, np.number
object_, string_, unicode_ = np.object_, np.bytes_, np.str_
iinfo, dtype = np.iinfo, np.dtype


def finfo(dtype: Any) -> jnp.finfo:
    """Return the limits of a floating-point dtype, including bfloat16: `eps`, `max`, `tiny`, ...

    Example:
      >>> float(tnp.finfo(tnp.float32).eps)
      1.1920928955078125e-07
    """
    return jnp.finfo(get_numpy_dtype(dtype) if is_tensor(dtype) else to_numpy_dtype(dtype))


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Check whether a dtype is a subtype of another, or of an abstract one such as `tnp.inexact`.

    Example:
      >>> tnp.issubdtype(tnp.float32, tnp.inexact)
      True
    """
    arg1, arg2 = [a.dtype if isinstance(a, dtypes.DType) else a for a in (arg1, arg2)]
    return bool(jnp.issubdtype(arg1, arg2))


def shape(a: TensorLike) -> TensorShape:
    """Return the shape of a value."""
    return asarray(a).shape


def ndim(a: TensorLike) -> int:
    """Return the number of axes of a value."""
    return asarray(a).ndim


@overload
def size(x: TensorLike, axis: int) -> int: ...
@overload
def size(x: TensorLike, axis: None = None) -> np.int64 | Tensor: ...
@overload
def size(x: TensorLike, axis: int | None) -> int | np.int64 | Tensor: ...
def size(x: TensorLike, axis: int | None = None) -> int | np.int64 | Tensor:
    """Return the number of elements of a value as an int64 number, or its size along an axis as an int.

    The number of elements is an int32 tensor if it is not known while a function is traced.

    Example:
      >>> int(tnp.size([[1, 2, 3]])), tnp.size([[1, 2, 3]]).dtype, tnp.size([[1, 2, 3]], 0)
      (3, dtype('int64'), 1)
    """
    array = asarray(x)
    sizes = array.shape.as_list()
    if axis is not None:
        return sizes[axis]
    count = math.prod(sizes)
    return np.int64(count) if isinstance(count, int) else inspection.size(array)


def isscalar(num: Any) -> bool:
    """Check whether a value is a number, a string, or a tensor without axes."""
    return num.shape.rank == 0 if is_tensor(num) else np.isscalar(num)


def result_type(*arrays_and_dtypes: Any) -> dtypes.DType:
    """Return the common dtype of arrays, dtypes and Python numbers.

    Args:
      *arrays_and_dtypes: Tensors, arrays, dtypes or their names, Python numbers, nested lists.

    Raises:
      TypeError: If no common dtype exists.

    Example:
      >>> tnp.result_type(tnp.int8, tnp.float32), tnp.result_type(tnp.ones([2], tnp.float32), 1.5)
      (tf.float32, tf.float32)
    """
    dtype = promotion.common_dtype([_get_kind(v) for v in nest.flatten(list(arrays_and_dtypes))])
    return dtypes.string if dtype is None else dtypes.from_numpy_dtype(dtype)


def _get_kind(value: Any) -> Any:
    if isinstance(value, (type, str, np.dtype, dtypes.DType)):
        return to_numpy_dtype(value)
    return value if is_python_number(value) else get_numpy_dtype(value)


def promote_types(type1: DTypeLike, type2: DTypeLike) -> np.dtype[Any] | None:
    """Return the smallest dtype to which two dtypes can be converted.

    Args:
      type1: Dtype or its name.
      type2: Dtype or its name.

    Raises:
      TypeError: If no such dtype exists.

    Example:
      >>> tnp.promote_types("int8", "float16")
      dtype('float16')
    """
    return promotion.common_dtype([to_numpy_dtype(type1), to_numpy_dtype(type2)])


def can_cast(from_: Any, to: DTypeLike, casting: Any = "safe") -> bool:
    """Check whether values of one dtype can be converted to another under NumPy's casting rules.

    Args:
      from_: Dtype, its name, or an array.
      to: Dtype or its name.
      casting: 'no', 'equiv', 'safe', 'same_kind' or 'unsafe'.

    Example:
      >>> tnp.can_cast(tnp.int32, tnp.float32)
      False
    """
    return np.can_cast(_get_kind(from_), to_numpy_dtype(to), casting=casting)
