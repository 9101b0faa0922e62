"""From Python values to tensors, with TensorFlow's dtype rules.

Python numbers have no fixed dtype of their own: they take the dtype of the tensor they meet,
or TensorFlow's default (int32, float32, complex128). NumPy arrays keep their dtype unless a
dtype is asked for, to which they are cast. Python integers and bools may become floats; a Python
float never silently becomes an integer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.runtime.devices import device_for
from meshflow.core.runtime.errors import DtypeMismatchError
from meshflow.core.runtime.exhaustion import exhausted
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import HOST_CONSTANT_SIZE, Converted, Tensor, TensorLike

# Functions that turn a list holding tensors into one tensor, and cast a tensor; set by
# `meshflow.ops` because both are ops themselves.
pack: Callable[[Any, DType | None], Tensor] = lambda value, dtype: from_python(list(value), dtype)

_converters: list[tuple[type | tuple[type, ...], Callable[..., Any]]] = []


def register_tensor_conversion_function(
    base_type: type | tuple[type, ...],
    conversion_func: Callable[..., Any],
    priority: int = 100,
) -> None:
    """Registers how objects of a type become tensors.

    Args:
      base_type: a type or tuple of types.
      conversion_func: called as `conversion_func(value, dtype=None, name=None, as_ref=False)`.
      priority: accepted for TensorFlow's sake; the last registered wins.

    Example:
      >>> import meshflow as tf
      >>> class Celsius:
      ...     def __init__(self, degrees):
      ...         self.degrees = degrees
      >>> tf.register_tensor_conversion_function(
      ...     Celsius, lambda value, dtype=None, name=None, as_ref=False: tf.constant(value.degrees))
      >>> print((tf.convert_to_tensor(Celsius(20.0)) + 1.0).numpy())
      21.0
    """
    _converters.insert(0, (base_type, conversion_func))


def convert_to_tensor(
    value: TensorLike, dtype: Any = None, dtype_hint: Any = None, name: str | None = None
) -> Tensor:
    """Converts a value to a tensor.

    Args:
      value: a tensor (returned unchanged), variable, array, number, string or nested list.
      dtype: the dtype that the result must have; a tensor of another dtype is an error.
      dtype_hint: a dtype used when the value can take it; ignored otherwise.
      name: ignored.

    Returns:
      A `Tensor`.

    Raises:
      ValueError: when a tensor has another dtype than asked for, or nested lists are ragged.
      TypeError: when the value does not fit the dtype.

    Example:
      >>> import meshflow as tf
      >>> tf.convert_to_tensor([1, 2], dtype=tf.float32).numpy()
      array([1., 2.], dtype=float32)
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if type(value) is not Tensor:
        for base, function in _converters:
            if isinstance(value, base):
                value = function(value, dtype=wanted, name=name, as_ref=False)
                break
    if isinstance(value, Tensor):
        if wanted is not None and value.dtype is not wanted:
            raise ValueError(
                f"Tensor conversion requested dtype {wanted.name} for Tensor with dtype "
                f"{value.dtype.name}: use tf.cast to convert."
            )
        return value
    read = getattr(value, "_as_tensor", None)
    if read is not None:
        return convert_to_tensor(read(), dtype=dtype)
    if hasattr(value, "_keras_history"):
        # A symbolic Keras tensor passes through functions composed of ops, which take it.
        return value
    if wanted is None and dtype_hint is not None:
        try:
            return from_python(value, dtypes.as_dtype(dtype_hint))
        except (TypeError, ValueError):
            pass
    return from_python(value, wanted)


def from_python(value: Any, dtype: DType | None) -> Tensor:
    """A tensor from a value that is not one; see `convert_to_tensor`."""
    if isinstance(value, (jax.Array, jax.core.Tracer)):
        return _checked_array(value, dtype)
    if isinstance(value, (list, tuple)) and holds_tensors(value):
        return pack(value, dtype)
    try:
        array = value if _is_ready(value, dtype) else to_numpy(value, dtype)
        if array.dtype == object or array.size <= HOST_CONSTANT_SIZE:
            return Tensor(array)
        if context.trace is None:
            # Nobody else changes the array: `to_numpy` made it, or it was made to be filled once.
            return Tensor(transfers.transfer(array, copy=False))
    except (MemoryError, RuntimeError) as error:
        full = exhausted(error, f"a tensor of shape {np.shape(value)}")
        if full is None:
            raise
        raise full from error
    tensor = Tensor(jax.numpy.array(array))
    if isinstance(tensor._value, jax.core.Tracer):
        tensor._known_value = Converted(array)
    return tensor


def _is_ready(value: Any, dtype: DType | None) -> bool:
    """Whether a value is a host array that nobody changes, of the dtype that is asked for."""
    of_dtype = type(value) is np.ndarray and dtype is not None and value.dtype == dtype.dtype
    return of_dtype and transfers.is_ours(value)


def _checked_array(value: Any, dtype: DType | None) -> Tensor:
    if dtype is None or value.dtype == dtype.dtype:
        return Tensor(value)
    own = dtypes.of_numpy(value.dtype)
    _check_cast(own, dtype, value)
    return Tensor(value.astype(dtype.dtype))


def holds_tensors(value: Any) -> bool:
    """Whether a nested list has a tensor, a variable or a JAX array in it."""
    for item in value:
        if isinstance(item, (list, tuple)):
            if holds_tensors(item):
                return True
        elif isinstance(item, (Tensor, jax.Array, jax.core.Tracer)) or hasattr(item, "_as_tensor"):
            return True
    return False


def to_numpy(value: Any, dtype: DType | None) -> np.ndarray:
    """A fresh host array with TensorFlow's default dtypes for Python values.

    Raises:
      TypeError: when the value does not fit `dtype`.
      ValueError: when nested lists are ragged or the value is None.
    """
    if value is None:
        raise ValueError(
            "Attempt to convert a value (None) with an unsupported type (NoneType) to a Tensor."
        )
    own_dtype = getattr(value, "dtype", None)
    # A table, as of pandas, has no one dtype and is an array all the same.
    is_array = own_dtype is not None or hasattr(type(value), "__array__")
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(
            f"Can't convert non-rectangular Python sequence to Tensor: {error}."
        ) from None
    if array.dtype.kind in "SUO":
        if not is_array:
            # NumPy's fixed-size strings lose zero bytes at the end and swallow numbers.
            array = np.array(value, object)
        return _string_array(value, array, dtype)
    if array.size == 0 and not is_array:
        # An empty list says nothing about its dtype.
        return array.astype((dtype or dtypes.float32).dtype)
    own = dtypes.of_numpy(array.dtype)
    if dtype is not None:
        if not is_array:
            _check_cast(own, dtype, value)
            _check_range(array, own, dtype)
        # Arrays of NumPy are cast to any dtype, as TensorFlow does, and NumPy does not warn of it.
        if own.is_complex and not (dtype.is_complex or dtype.is_bool):
            array = array.real
        with np.errstate(all="ignore"):
            return array.astype(dtype.dtype, copy=False)
    if not is_array and not has_numpy_scalars(value):
        array = array.astype(_default_dtype(array))
    return array


def has_numpy_scalars(value: Any) -> bool:
    """Whether the first thing in a nested list is of NumPy."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.str_)


def _default_dtype(array: np.ndarray) -> np.dtype:
    if array.dtype.kind == "f":
        return dtypes.float32.dtype
    if array.dtype.kind == "i":
        fits = not array.size or (array.min() >= -(2**31) and array.max() < 2**31)
        return dtypes.int32.dtype if fits else dtypes.int64.dtype
    return array.dtype


def _string_array(value: Any, array: np.ndarray, dtype: DType | None) -> np.ndarray:
    flat = array.ravel().tolist()
    if not all(isinstance(item, (str, bytes)) for item in flat):
        kinds = sorted({type(item).__name__ for item in flat})
        raise ValueError(
            f"Attempt to convert a value ({value!r}) with an unsupported type "
            f"({type(value).__name__}, holding {', '.join(kinds)}) to a Tensor."
        )
    if dtype not in (None, dtypes.string):
        raise TypeError(f"Cannot convert {value!r} to a Tensor of dtype {dtype.name}.")
    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = [s.encode() if isinstance(s, str) else s for s in flat]
    return result


def _check_cast(own: DType, wanted: DType, value: Any) -> None:
    allowed = (
        own is wanted
        or ((own.is_integer or own.is_bool) and wanted.is_numeric)
        or (own.is_floating and (wanted.is_floating or wanted.is_complex))
        or (own.is_complex and wanted.is_complex)
    )
    if not allowed:
        shown = repr(value)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        raise DtypeMismatchError(
            f"Cannot convert {shown} (of dtype {own.name}) to a Tensor of dtype {wanted.name}."
        )


def _check_range(array: np.ndarray, own: DType, wanted: DType) -> None:
    if own.is_integer and wanted.is_integer and array.size:
        low, high = int(array.min()), int(array.max())
        if low < wanted.min or high > wanted.max:
            raise ValueError(
                f"Value out of range for dtype {wanted.name}: got values from {low} to {high}, "
                f"expected {wanted.min} to {wanted.max}."
            )


def constant(
    value: TensorLike, dtype: Any = None, shape: Any = None, name: str | None = "Const"
) -> Tensor:
    """Makes a constant tensor from Python numbers, nested lists or arrays.

    Args:
      value: numbers, strings, (nested) lists of them, or an array.
      dtype: the dtype; by default int32, float32, complex128, bool or string as the value suggests,
        and an array's own dtype.
      shape: the shape of the result; a scalar is repeated to fill it.
      name: ignored.

    Returns:
      A `Tensor`.

    Raises:
      TypeError: when the value does not fit `dtype`, or `shape` has another number of elements.
      ValueError: when nested lists are ragged.

    Example:
      >>> import meshflow as tf
      >>> tf.constant(7, shape=[2]).numpy()
      array([7, 7], dtype=int32)
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(value, Tensor) and wanted is not None and value.dtype is not wanted:
        value = value.numpy()
    result = _placed(convert_to_tensor(value, dtype=wanted))
    if shape is None:
        return result
    size = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    array = np.asarray(result.numpy(), dtype=result.dtype.dtype)
    if array.size == 1:
        return _placed(from_python(np.broadcast_to(array.reshape(()), size), result.dtype))
    if array.size != int(np.prod(size)):
        raise TypeError(
            f"Eager execution of tf.constant with unsupported shape. Tensor {array.shape} "
            f"(converted from {value!r}) has {array.size} elements, but got `shape` {size} "
            f"with {int(np.prod(size))} elements."
        )
    return _placed(from_python(array.reshape(size), result.dtype))


def _placed(tensor: Tensor) -> Tensor:
    """Moves a host constant to the device asked for, when that is not the host itself."""
    value = tensor._value
    if context.device is None or context.trace is not None or not isinstance(value, np.ndarray):
        return tensor
    device = device_for(str(context.device))
    if value.dtype == object or device == jax.local_devices(backend="cpu")[0]:
        return tensor
    return Tensor(jax.device_put(value, device))
