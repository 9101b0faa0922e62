"""Tensors as strings: TensorFlow's protocol buffer of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor, from_python
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import as_shape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.limits import UNPACKED_VARIABLE, unpacked_limit
from meshflow.io import protos
from meshflow.ops.files import host_bytes

__all__ = ["make_ndarray", "make_tensor_proto", "parse_tensor", "serialize_tensor"]

# Where a proto that was not written by `serialize_tensor` may hold its numbers.
_FIELDS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int_val"),
    **{"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val"},
    **{"uint32": "uint32_val", "uint64": "uint64_val", "string": "string_val"},
    **{"float16": "half_val", "bfloat16": "half_val"},
    **{"complex64": "scomplex_val", "complex128": "dcomplex_val"},
}


# Arrays of these are written as their bytes where they have more than one number, as TensorFlow does.
_AS_BYTES = frozenset(
    ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64")
    + ("uint8", "uint32", "uint64")
)


def make_tensor_proto(
    values: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False
) -> Any:
    """A `TensorProto` of known values, in the form that TensorFlow gives it.

    Args:
      values: a number, text, array, nested list, or tensor with known values.
      dtype: its dtype; default that of `tf.constant(values)`.
      shape: its shape; values that are too few are followed by more of the last one.
      verify_shape: whether values of another shape are an error.

    Returns:
      The message, which `make_ndarray` reads, TensorFlow's as well.

    Raises:
      TypeError: for values that are not of the dtype, or with `verify_shape` not of the shape.
      ValueError: for values that are None, have no rectangular form, or are more than the shape has.
      ImportError: without the package protobuf.

    Example:
      >>> import meshflow as tf
      >>> proto = tf.make_tensor_proto([1.0, 2.0], shape=[3])
      >>> list(proto.float_val), tf.make_ndarray(proto).tolist()
      ([1.0, 2.0], [1.0, 2.0, 2.0])
    """
    if isinstance(values, Tensor):
        tensor = values if dtype is None else convert_to_tensor(values, dtype)
    else:
        tensor = convert_to_tensor(values, None if dtype is None else as_dtype(dtype))
    array = tensor._concrete("the content of a TensorProto")
    wanted = list(array.shape) if shape is None else [int(n) for n in as_shape(shape).as_list()]
    if verify_shape and wanted != list(array.shape):
        raise TypeError(f"Expected Tensor's shape: {tuple(wanted)}, but got {array.shape}.")
    size = int(np.prod(wanted, dtype=np.int64))
    if array.size > size:
        raise ValueError(f"Too many elements provided. Takes at most {size}, but got {array.size}.")
    if tensor.dtype.name in _AS_BYTES and 1 < array.size == size:
        return tensor_proto(array.reshape(wanted))
    proto = _empty_proto(tensor.dtype, wanted)
    flat = array.reshape(-1)
    if tensor.dtype.name in ("float16", "bfloat16"):
        flat = flat.view(np.uint16)
    elif tensor.dtype.is_complex:
        flat = flat.view(flat.real.dtype)
    getattr(proto, _FIELDS[tensor.dtype.name]).extend(flat.tolist())
    return proto


def make_ndarray(tensor: Any) -> np.ndarray:
    """The array that a `TensorProto` holds, Meshflow's, TensorBoard's or TensorFlow's.

    Args:
      tensor: the message.

    Returns:
      A NumPy array; strings are objects.

    Raises:
      TypeError: for a dtype that is not known.
      ValueError: when the content does not fit the shape.

    Example:
      >>> import meshflow as tf
      >>> tf.make_ndarray(tf.make_tensor_proto(["a", "b"]))
      array([b'a', b'b'], dtype=object)
    """
    try:
        kind = as_dtype(tensor.dtype)
    except (TypeError, ValueError, KeyError):
        raise TypeError(f"Unsupported tensor type: {tensor.dtype}.") from None
    shape = [d.size for d in tensor.tensor_shape.dim]
    try:
        return np.array(_numbers(tensor, kind, _count(shape, kind, tensor.ByteSize()))).reshape(
            shape
        )
    except InvalidArgumentError as error:
        raise ValueError(f"make_ndarray: {error}") from None


def serialize_tensor(tensor: TensorLike, name: str | None = None) -> Tensor:
    """A tensor as a string, which `parse_tensor` reads, TensorFlow's as well.

    Args:
      tensor: a tensor with known values.
      name: ignored.

    Returns:
      A string scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.io.parse_tensor(tf.io.serialize_tensor([1, 2]), tf.int32).numpy()
      array([1, 2], dtype=int32)
    """
    tensor = convert_to_tensor(tensor)
    array = tensor._concrete("a tensor to be serialized")
    proto = tensor_proto(array)
    return convert_to_tensor(proto.SerializeToString())


def tensor_proto(array: np.ndarray) -> Any:
    """An array as a protocol buffer; strings are arrays of objects."""
    kind = as_dtype(array.dtype)
    proto = _empty_proto(kind, array.shape)
    if kind.name == "string":
        proto.string_val.extend(array.reshape(-1).tolist())
    else:
        little = array.astype(array.dtype.newbyteorder("<")) if _swaps(array) else array
        proto.tensor_content = np.ascontiguousarray(little).tobytes()
    return proto


def _empty_proto(kind: DType, shape: Sequence[int]) -> Any:
    proto = protos.TensorProto(dtype=kind.as_datatype_enum)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    # An empty shape is there too: the tensor is a scalar, not of unknown rank.
    proto.tensor_shape.SetInParent()
    return proto


def _swaps(array: np.ndarray) -> bool:
    return array.dtype.byteorder == ">"


def parse_tensor(serialized: TensorLike, out_type: Any, name: str | None = None) -> Tensor:
    """A tensor from a string made by `serialize_tensor`, TensorFlow's as well.

    Args:
      serialized: a string scalar.
      out_type: its dtype.
      name: ignored.

    Raises:
      InvalidArgumentError: when the string holds another dtype, or no tensor.

    Example:
      >>> import meshflow as tf
      >>> text = tf.io.serialize_tensor([1, 2])
      >>> print(tf.io.parse_tensor(text, tf.int32).numpy())
      [1 2]
    """
    kind = as_dtype(out_type)
    data = bytes(host_bytes(serialized, "a serialized tensor")[()])
    try:
        proto = protos.TensorProto.FromString(data)
    except protos.DecodeError:
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: {data[:40]!r}"
        ) from None
    if proto.dtype != kind.as_datatype_enum:
        try:
            stored = as_dtype(proto.dtype).name
        except (TypeError, ValueError, KeyError):
            stored = f"dtype number {proto.dtype}"
        raise InvalidArgumentError(
            f"Type mismatch between parsed tensor ({stored}) and dtype ({kind.name})"
        )
    shape = [d.size for d in proto.tensor_shape.dim]
    array = _numbers(proto, kind, _count(shape, kind, len(data)))
    return from_python(array.reshape(shape), kind)


def _count(shape: Sequence[int], kind: Any, size: int) -> int:
    """How many numbers a shape has that comes with so many bytes."""
    count = math.prod(shape)
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: its shape is {list(shape)}."
        )
    # A short string may stand for many equal numbers.
    if count * kind.size > (limit := unpacked_limit(size)):
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: its shape {list(shape)} takes more than {limit:,} bytes. "
            f"If you trust its author, set the environment variable {UNPACKED_VARIABLE} to a larger number."
        )
    return count


def _numbers(proto: Any, kind: Any, count: int) -> np.ndarray:
    if kind.name == "string":
        array = np.empty(len(proto.string_val), object)
        array[:] = list(proto.string_val)
    elif proto.tensor_content:
        array = np.frombuffer(proto.tensor_content, kind.dtype)
    else:
        values = list(getattr(proto, _FIELDS[kind.name]))
        if kind.name in ("float16", "bfloat16"):
            array = np.array(values, np.uint16).view(kind.dtype)
        elif kind.name.startswith("complex"):
            half = np.float32 if kind.name == "complex64" else np.float64
            array = np.array(values, half).view(kind.dtype)
        else:
            array = np.array(values, kind.dtype)
    if array.size < count and array.size and not proto.tensor_content:
        # The last number stands for all that follow.
        array = np.concatenate([array, np.repeat(array[-1:], count - array.size)])
    elif not array.size and not proto.tensor_content:
        array = np.zeros(count, array.dtype) if kind.name != "string" else np.full(count, b"")
    if array.size != count:
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: it has {array.size} numbers, its shape {count}."
        )
    return array
