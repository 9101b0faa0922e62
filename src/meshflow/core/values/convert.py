"""Conversion of Python values to tensors by TensorFlow's dtype rules.

Python numbers have no fixed dtype: they take the dtype of the tensor that they are combined with,
or TensorFlow's default (int32, float32, complex128). NumPy arrays keep their dtype, or are cast to
a requested one. Python integers and bools may become floats; a Python float never silently becomes
an integer.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.runtime.devices import resolve_device
from meshflow.core.runtime.eager import leave_graph
from meshflow.core.runtime.errors import DtypeMismatchError, InvalidValueError, make_none_error
from meshflow.core.runtime.memory_errors import translate_memory_error
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.symbolic_sizes import make_sizes_tensor
from meshflow.core.values.tensor import MAX_HOST_CONSTANT_SIZE, ConvertedArray, Tensor, TensorLike

# Turns a list that contains tensors into one tensor. `meshflow.ops` sets this function, because it
# is an op.
pack: Callable[[Any, DType | None], Tensor] = lambda value, dtype: convert_python_value(
    list(value), dtype
)

_PACKAGE = __name__.partition(".")[0]
_NUMBER_TYPES = {int, float, bool}
_TOO_LARGE = (
    "Can't convert Python sequence with out-of-range integer to Tensor: use a floating-point dtype, or uint64 for "
    "integers from 0 to 2**64 - 1."
)
_converters: list[tuple[type | tuple[type, ...], Callable[..., Any]]] = []


def has_registered_conversion(value: object) -> bool:
    """Check whether a conversion to tensors is registered for the type of a value."""
    return any(isinstance(value, converted_type) for converted_type, _ in _converters)


def convert_registered(value: Any) -> Any:
    """Convert an object of a type with a registered conversion to a tensor, and return other values unchanged."""
    return convert_to_tensor(value) if has_registered_conversion(value) else value


def register_tensor_conversion_function(
    base_type: type | tuple[type, ...],
    conversion_func: Callable[..., Any],
    priority: int = 100,
) -> None:
    """Register a conversion of objects of a type to tensors.

    Args:
      base_type: A type or tuple of types.
      conversion_func: Called as `conversion_func(value, dtype=None, name=None, as_ref=False)`.
      priority: Accepted for compatibility; the last registered conversion takes precedence.

    Example:
      >>> class Celsius:
      ...     def __init__(self, degrees):
      ...         self.degrees = degrees
      >>> tf.register_tensor_conversion_function(
      ...     Celsius, lambda value, dtype=None, name=None, as_ref=False: tf.constant(value.degrees))
      >>> print((tf.convert_to_tensor(Celsius(20.0)) + 1.0).numpy())
      21.0
    """
    _converters.insert(0, (base_type, conversion_func))
    for cls in base_type if isinstance(base_type, tuple) else (base_type,):
        # Ops read variables by this method.
        if hasattr(cls, "_as_tensor") and cls.__module__.partition(".")[0] != _PACKAGE:
            cls._as_tensor = convert_to_tensor


def convert_to_tensor(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    dtype_hint: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Convert a value to a tensor.

    Args:
      value: A tensor (returned unchanged), variable, array, number, string or nested list.
      dtype: Required dtype of the result; a tensor of another dtype is an error.
      dtype_hint: Dtype to use if the value can be converted to it.
      name: Ignored.

    Returns:
      A `Tensor`.

    Raises:
      ValueError: If a tensor has another dtype than requested, or if nested lists are ragged.
      TypeError: If the value cannot be converted to the dtype.

    Example:
      >>> tf.convert_to_tensor([1, 2], dtype=tf.float32).numpy()
      array([1., 2.], dtype=float32)
    """
    required = None if dtype is None else dtypes.as_dtype(dtype)
    if type(value) is not Tensor:
        for base, function in _converters:
            if isinstance(value, base):
                value = function(value, dtype=required, name=name, as_ref=False)
                break
    if isinstance(value, Tensor):
        if required is not None and value.dtype is not required:
            raise ValueError(
                f"Tensor conversion requested dtype {required.name} for Tensor with dtype "
                f"{value.dtype.name}: use tf.cast to convert."
            )
        return value
    read = getattr(value, "_as_tensor", None)
    if read is not None:
        return convert_to_tensor(read(), dtype=dtype)
    convert = getattr(value, "__tf_tensor__", None)
    if convert is not None:
        return convert_to_tensor(convert(required, name), dtype=dtype)
    if hasattr(value, "_keras_history"):
        # A function composed of ops passes a symbolic Keras tensor on to these ops, which accept
        # it.
        return value
    if required is None and dtype_hint is not None:
        try:
            return _convert_constant(value, dtypes.as_dtype(dtype_hint), name)
        except (TypeError, ValueError):
            pass
    return _convert_constant(value, required, name)


def _convert_constant(value: TensorLike, dtype: DType | None, name: str | None) -> Tensor:
    """Convert a value that is not a tensor; in a version 1 graph, to a constant of the graph."""
    tensor = convert_python_value(value, dtype)
    if context.graph is None or context.trace is not None or type(tensor) is not Tensor:
        return tensor
    constant: Tensor = context.graph.make_constant(tensor, name)
    return constant


def convert_python_value(value: TensorLike, dtype: DType | None) -> Tensor:
    """Convert a value that is not a tensor; see `convert_to_tensor`."""
    if isinstance(value, (jax.Array, jax.core.Tracer)):
        return _convert_array(value, dtype)
    if isinstance(value, TensorShape):
        value = as_shape(value)
        if not value.is_fully_defined():
            raise InvalidValueError(
                f"Cannot convert a partially known TensorShape {value} to a Tensor. Use tf.shape of the tensor."
            )
        if any(map(is_symbolic_dim, value)):
            sizes = tuple(value.as_list())
            return make_sizes_tensor(sizes, np.int32 if dtype is None else dtype.dtype)
    if context.has_symbolic_sizes:
        if is_symbolic_dim(value):
            return make_sizes_tensor(value, np.int32 if dtype is None else dtype.dtype)
        if isinstance(value, (list, tuple)) and any(map(is_symbolic_dim, value)):
            value = [convert_to_tensor(item, dtype) for item in value]
    if isinstance(value, (list, tuple)) and contains_tensors(value):
        return pack(value, dtype)
    try:
        array = value if _can_share(value, dtype) else to_numpy(value, dtype)
        if array.dtype == object or array.size <= MAX_HOST_CONSTANT_SIZE:
            return Tensor(array)
        if context.trace is None:
            # The array never changes: either `to_numpy` created it, or it is immutable.
            return Tensor(transfers.transfer(array, copy=False))
    except (MemoryError, RuntimeError) as error:
        translated = translate_memory_error(error, f"a tensor of shape {np.shape(value)}")
        if translated is None:
            raise
        raise translated from error
    tensor = Tensor(jax.numpy.array(array))
    if isinstance(tensor.array, jax.core.Tracer):
        tensor._known_value = ConvertedArray(array)
    return tensor


def _can_share(value: TensorLike, dtype: DType | None) -> bool:
    """Check whether a value is an immutable host array of the requested dtype."""
    has_dtype = type(value) is np.ndarray and dtype is not None and value.dtype == dtype.dtype
    return has_dtype and transfers.is_immutable(value)


def _convert_array(value: jax.Array, dtype: DType | None) -> Tensor:
    if dtype is None or value.dtype == dtype.dtype:
        return Tensor(value)
    own_dtype = dtypes.from_numpy_dtype(value.dtype)
    _check_cast(own_dtype, dtype, value)
    return Tensor(value.astype(dtype.dtype))


def contains_tensors(value: Iterable[Any]) -> bool:
    """Check whether a nested list contains a tensor, a variable or a JAX array."""
    for item in value:
        if isinstance(item, (list, tuple)):
            if contains_tensors(item):
                return True
        elif isinstance(item, (Tensor, jax.Array, jax.core.Tracer)) or hasattr(item, "_as_tensor"):
            return True
    return False


def to_numpy(value: TensorLike, dtype: DType | None) -> np.ndarray:
    """Return a new host array, with TensorFlow's default dtypes for Python values.

    Raises:
      TypeError: If the value cannot be converted to `dtype`.
      ValueError: If nested lists are ragged, or if the value is None.
    """
    if value is None:
        raise make_none_error()
    if (scalar := _convert_small_number(value, dtype)) is not None:
        return scalar
    own_dtype = getattr(value, "dtype", None)
    # A table, such as a pandas data frame, has no single dtype but is an array nevertheless.
    is_array = own_dtype is not None or hasattr(type(value), "__array__")
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(
            f"Can't convert non-rectangular Python sequence to Tensor: {error}."
        ) from None
    if not is_array:
        array = _convert_large_integers(array, value, dtype)
    if array.dtype.kind in "SUO":
        if not is_array:
            # NumPy's fixed-size strings drop trailing zero bytes, and would convert numbers to
            # strings.
            array = np.array(value, object)
        return _to_string_array(value, array, dtype)
    if array.size == 0 and not is_array:
        # The dtype of an empty list is unknown, so it becomes float32.
        return array.astype((dtype or dtypes.float32).dtype)
    natural_dtype = dtypes.from_numpy_dtype(array.dtype)
    if dtype is not None:
        if not is_array or dtype is dtypes.string:
            _check_cast(natural_dtype, dtype, value)
        # NumPy arrays are cast to any dtype, like in TensorFlow, and without NumPy's warnings.
        if natural_dtype.is_complex and not (dtype.is_complex or dtype.is_bool):
            array = array.real
        with np.errstate(all="ignore"):
            return array.astype(dtype.dtype, copy=False)
    if not is_array and not has_numpy_scalars(value):
        array = array.astype(_get_default_dtype(array))
    return array


def _convert_large_integers(
    array: np.ndarray, value: TensorLike, dtype: DType | None
) -> np.ndarray:
    """Return the array of a Python value again, with other elements if these are integers that NumPy made floats or objects.

    NumPy does so if an integer exceeds uint64, or if only some of them exceed int64. Integers that do not fit into a
    narrower dtype wrap around later, as in TensorFlow.

    Raises:
      ValueError: If an integer does not fit into int64, or into uint64 or a floating-point dtype if that is requested.
    """
    kind, is_unsigned = array.dtype.kind, dtype is dtypes.uint64
    is_float = dtype is not None and (dtype.is_floating or dtype.is_complex)
    if kind == "O" and set(map(type, array.flat)) <= _NUMBER_TYPES:
        if dtype is not None and dtype.is_floating:
            with contextlib.suppress(OverflowError):
                return array.astype(np.float64)
    elif kind == "i" and is_unsigned:
        if not np.any(array < 0):
            return array
    elif kind == "f" and is_unsigned:
        numbers = np.array(value, object)
        if not numbers.size or set(map(type, numbers.flat)) != {int}:
            return array
        if numbers.min() >= 0:
            return numbers.astype(np.uint64)
    elif kind in "uf" and not is_unsigned and not is_float and np.any(array >= 2.0**63):
        numbers = np.array(value, object)
        is_large = any(type(v) is int and v >= 2**63 for v in numbers.flat)
        if not is_large or any(isinstance(v, (float, np.floating)) for v in numbers.flat):
            return array
    else:
        return array
    raise ValueError(_TOO_LARGE)


def _convert_small_number(value: object, dtype: DType | None) -> np.ndarray | None:
    """Convert a Python number that fits into its usual dtype; return None if it needs more checks."""
    if type(value) is int and -(2**31) <= value < 2**31:
        if dtype is None:
            return np.array(value, np.int32)
        if dtype in (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64):
            return np.array(value, dtype.dtype)
    elif type(value) is float and dtype in (None, dtypes.float32) and abs(value) < 1e38:
        return np.array(value, np.float32)
    return None


def has_numpy_scalars(value: object) -> bool:
    """Check whether the first element of a nested list is a NumPy array or scalar."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.str_)


def _get_default_dtype(array: np.ndarray) -> np.dtype:
    if array.dtype.kind == "f":
        return dtypes.float32.dtype
    if array.dtype.kind == "i":
        fits = not array.size or (array.min() >= -(2**31) and array.max() < 2**31)
        return dtypes.int32.dtype if fits else dtypes.int64.dtype
    return array.dtype


def _to_string_array(value: TensorLike, array: np.ndarray, dtype: DType | None) -> np.ndarray:
    flat = array.ravel().tolist()
    types = set(map(type, flat))
    if not all(issubclass(kind, (str, bytes)) for kind in types):
        kinds = sorted({type(item).__name__ for item in flat})
        if all(issubclass(kind, (str, bytes, int, float, complex)) for kind in types):
            raise InvalidValueError(
                f"Can't convert Python sequence with mixed types to Tensor: {value!r} contains {', '.join(kinds)}."
            )
        own_kind = type(value).__name__
        description = own_kind if kinds == [own_kind] else f"{own_kind} of {', '.join(kinds)}"
        raise InvalidValueError(
            f"Attempt to convert a value ({value!r}) with an unsupported type ({description}) to a Tensor."
        )
    if dtype not in (None, dtypes.string):
        raise DtypeMismatchError(f"Cannot convert {value!r} to a Tensor of dtype {dtype.name}.")
    result = np.empty(array.shape, object)
    if types != {bytes}:
        flat = [s.encode() if isinstance(s, str) else s for s in flat]
    result.reshape(-1)[:] = flat
    return result


def _check_cast(own: DType, target: DType, value: object) -> None:
    allowed = (
        own is target
        or ((own.is_integer or own.is_bool) and target.is_numeric)
        or (own.is_floating and (target.is_floating or target.is_complex))
        or (own.is_complex and target.is_complex)
    )
    if not allowed:
        shown = repr(value)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        raise DtypeMismatchError(
            f"Cannot convert {shown} (of dtype {own.name}) to a Tensor of dtype {target.name}."
        )


def constant(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | int | None = None,
    name: str | None = "Const",
) -> Tensor:
    """Create a constant tensor from Python numbers, nested lists or arrays.

    Args:
      value: Numbers, strings, (nested) lists of them, or an array.
      dtype: The dtype; by default int32, float32, complex128, bool or string for Python values, and
        an array's own dtype.
      shape: Shape of the result; a scalar is repeated to fill it.
      name: Ignored.

    Returns:
      A `Tensor`.

    Raises:
      TypeError: If the value cannot be converted to `dtype`, or if `shape` has another number of
        elements.
      ValueError: If nested lists are ragged.

    Example:
      >>> tf.constant(7, shape=[2]).numpy()
      array([7, 7], dtype=int32)
    """
    if context.graph is not None and context.trace is None:
        graph = context.graph
        with leave_graph():
            tensor = constant(value, dtype, shape)
        return graph.make_constant(tensor, name)
    required = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(value, Tensor) and required is not None and value.dtype is not required:
        value = value.numpy()
    result = _move_to_device(convert_to_tensor(value, dtype=required))
    if shape is None:
        return result
    size = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    array = np.asarray(result.numpy(), dtype=result.dtype.dtype)
    if array.size == 1:
        return _move_to_device(
            convert_python_value(np.broadcast_to(array.reshape(()), size), result.dtype)
        )
    if array.size != int(np.prod(size)):
        raise TypeError(
            f"Eager execution of tf.constant with unsupported shape. Tensor {array.shape} "
            f"(converted from {value!r}) has {array.size} elements, but got `shape` {size} "
            f"with {int(np.prod(size))} elements."
        )
    return _move_to_device(convert_python_value(array.reshape(size), result.dtype))


def _move_to_device(tensor: Tensor) -> Tensor:
    """Move a host constant to the device of the innermost `tf.device`, unless that is the host."""
    value = tensor.array
    if context.device is None or context.trace is not None or not isinstance(value, np.ndarray):
        return tensor
    device = resolve_device(str(context.device))
    if value.dtype == object or device == jax.local_devices(backend="cpu")[0]:
        return tensor
    return Tensor(jax.device_put(value, device))
