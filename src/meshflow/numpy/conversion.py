"""From Python values and arrays to tensors, with NumPy's default dtypes: 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.values import convert, dtypes
from meshflow.core.values.convert import has_numpy_scalars, holds_tensors
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.numpy.promotion import common_dtype
from meshflow.ops import array as array_ops
from meshflow.ops.math import cast

__all__ = ["array", "asanyarray", "asarray", "ascontiguousarray", "copy"]


class Defaults:
    """What Python's floats become: float64 as in NumPy, or float32 when that is preferred."""

    floating: np.dtype = np.dtype(np.float64)


_PYTHON_TYPES = {
    bool: np.dtype(bool),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


def is_number(value: Any) -> bool:
    """Whether a value is a Python number, which takes the dtype of what it meets."""
    return type(value) in _PYTHON_TYPES


def as_array_dtype(dtype: Any) -> np.dtype:
    """The NumPy dtype of a dtype, a name or a Python type, which means 64 bits here.

    Raises:
      TypeError: when the value names no dtype.
    """
    if isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        return _PYTHON_TYPES[dtype]
    return dtypes.as_dtype(dtype).dtype


def own_dtype(value: Any) -> np.dtype:
    """The NumPy dtype of a tensor, an array, or a list, as a tensor would have it."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        dtype = asarray(value).dtype
    return dtype.dtype if isinstance(dtype, dtypes.DType) else np.dtype(dtype)


@also_symbolic
def asarray(a: TensorLike, dtype: Any = None) -> Tensor:
    """Makes a tensor of a value, with NumPy's default dtypes for Python numbers.

    Args:
      a: a tensor (returned as it is), variable, array, number, string, or nested list of them.
      dtype: the dtype of the result; by default the value's own.

    Returns:
      A tensor.

    Raises:
      ValueError: for ragged nested lists and for values that are no arrays.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.asarray([1.0, 2.0]).dtype, tnp.asarray([1, 2]).dtype
      (tf.float64, tf.int64)
    """
    found = _as_tensor(a)
    if dtype is None:
        return found
    wanted = dtypes.of_numpy(as_array_dtype(dtype))
    return found if found.dtype is wanted else cast(found, wanted)


def _as_tensor(value: Any) -> Tensor:
    if is_tensor(value):
        return convert.convert_to_tensor(value)
    if isinstance(value, (list, tuple)) and holds_tensors(value):
        return array_ops.stack(promoted(value))
    if isinstance(value, (np.ndarray, np.generic, jax.Array, jax.core.Tracer)):
        return convert.convert_to_tensor(value)
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"Can't convert non-rectangular Python sequence to Tensor: {error}"
        ) from None
    if found.dtype.kind not in "biufc":
        return convert.convert_to_tensor(value)
    if found.dtype == np.float64 and not has_numpy_scalars(value):
        found = found.astype(Defaults.floating)
    return convert.from_python(found, None)


def promoted(values: Sequence[Any], floating: bool = False, weak_lists: bool = False) -> list[Any]:
    """Values as tensors of the dtype in which they meet.

    Args:
      values: what `asarray` takes.
      floating: whether integers become floating-point numbers.
      weak_lists: whether lists of Python numbers are as weak as numbers.

    Raises:
      TypeError: when the dtypes have no common one.
    """
    tensors = [v if is_number(v) else asarray(v) for v in values]
    kinds = [
        _example(t) if weak_lists and isinstance(v, (list, tuple)) and not holds_tensors(v) else t
        for v, t in zip(values, tensors, strict=True)
    ]
    target = common_dtype([k if is_number(k) else own_dtype(k) for k in kinds], floating)
    return [_in_dtype(t, target) for t in tensors]


def _example(tensor: Tensor) -> Any:
    """A Python number of the kind that a tensor holds."""
    dtype = tensor.dtype
    return False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0


def _in_dtype(value: Any, target: np.dtype | None) -> Any:
    if is_number(value):
        return Tensor(np.asarray(value, target))
    if target is None or value.dtype.dtype == target:
        return value
    return cast(value, dtypes.of_numpy(target))


def asanyarray(a: TensorLike, dtype: Any = None) -> Tensor:
    """The same as `asarray`."""
    return asarray(a, dtype)


def ascontiguousarray(a: TensorLike, dtype: Any = None) -> Tensor:
    """`asarray` with at least one dimension; tensors are always contiguous."""
    found = asarray(a, dtype)
    return found if found.ndim else array_ops.reshape(found, [1])


def array(val: TensorLike, dtype: Any = None, copy: bool = True, ndmin: int = 0) -> Tensor:
    """Makes a tensor with at least `ndmin` dimensions; see `asarray`.

    Args:
      val: what `asarray` takes.
      dtype: the dtype of the result; by default the value's own.
      copy: accepted for NumPy's sake: tensors are never written to.
      ndmin: the least number of dimensions; new ones come first.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.array([1, 2], ndmin=3).shape
      TensorShape([1, 1, 2])
    """
    found = asarray(val, dtype)
    missing = ndmin - found.ndim
    return found if missing <= 0 else array_ops.reshape(found, [1] * missing + list(found.shape))


def copy(a: TensorLike) -> Tensor:
    """A tensor of the same value, on the device that `tf.device` asks for.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.copy([1, 2]).numpy()
      array([1, 2])
    """
    return array_ops.identity(asarray(a))
