"""Serialization of tensors as TensorFlow's protocol buffer `TensorProto`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.shape_probing import vary_sizes
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_python_value, convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.shapes import ShapeLike, as_shape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.limits import UNPACKED_VARIABLE, get_unpacked_limit, spend_load_budget
from meshflow.environment.protobuf_wire import encode_varint
from meshflow.io import protos
from meshflow.ops.files import to_host_strings

# Fields that hold the values in a proto without `tensor_content`.
_VALUE_FIELDS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int_val"),
    **{"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val"},
    **{"uint32": "uint32_val", "uint64": "uint64_val", "string": "string_val"},
    **{"float16": "half_val", "bfloat16": "half_val"},
    **{"complex64": "scomplex_val", "complex128": "dcomplex_val"},
}

# Like TensorFlow, `make_tensor_proto` writes arrays of these dtypes with more than one element as
# bytes.
_BYTE_DTYPES = frozenset(
    ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64")
    + ("uint8", "uint32", "uint64")
)


def make_tensor_proto(
    values: Any,
    dtype: DTypeLike | None = None,
    shape: ShapeLike = None,
    verify_shape: bool = False,
) -> Any:
    """Create a `TensorProto` from known values, in TensorFlow's encoding.

    Args:
      values: A number, text, array, nested list, or tensor with known values.
      dtype: Dtype of the tensor; default that of `tf.constant(values)`.
      shape: Shape of the tensor; if there are too few values, the last one is repeated.
      verify_shape: Whether the values must already have this shape.

    Returns:
      A message that `make_ndarray` and TensorFlow can read.

    Raises:
      TypeError: The values do not have the dtype, or with `verify_shape`, the shape.
      ValueError: The values are None, not rectangular, or too many for the shape.
      ImportError: The package protobuf is not installed.

    Example:
      >>> proto = tf.make_tensor_proto([1.0, 2.0], shape=[3])
      >>> list(proto.float_val), tf.make_ndarray(proto).tolist()
      ([1.0, 2.0], [1.0, 2.0, 2.0])
    """
    if isinstance(values, Tensor):
        tensor = values if dtype is None else convert_to_tensor(values, dtype)
    else:
        tensor = convert_to_tensor(values, None if dtype is None else as_dtype(dtype))
    array = tensor.require_value("the content of a TensorProto")
    target_shape = (
        list(array.shape) if shape is None else [int(n) for n in as_shape(shape).as_list()]
    )
    if verify_shape and target_shape != list(array.shape):
        raise TypeError(f"Expected Tensor's shape: {tuple(target_shape)}, but got {array.shape}.")
    size = int(np.prod(target_shape, dtype=np.int64))
    if array.size > size:
        raise ValueError(f"Too many elements provided. Takes at most {size}, but got {array.size}.")
    if tensor.dtype.name in _BYTE_DTYPES and 1 < array.size == size:
        return to_tensor_proto(array.reshape(target_shape))
    proto = _make_empty_proto(tensor.dtype, target_shape)
    flat = array.reshape(-1)
    if tensor.dtype.name in ("float16", "bfloat16"):
        flat = flat.view(np.uint16)
    elif tensor.dtype.is_complex:
        flat = flat.view(flat.real.dtype)
    getattr(proto, _VALUE_FIELDS[tensor.dtype.name]).extend(flat.tolist())
    return proto


def make_ndarray(tensor: Any) -> np.ndarray:
    """Convert a `TensorProto` message to an array; strings become objects.

    Raises:
      TypeError: The dtype is unknown.
      ValueError: The content does not match the shape.

    Example:
      >>> tf.make_ndarray(tf.make_tensor_proto(["a", "b"]))
      array([b'a', b'b'], dtype=object)
    """
    try:
        kind = as_dtype(tensor.dtype)
    except (TypeError, ValueError, KeyError):
        raise TypeError(f"Unsupported tensor type: {tensor.dtype}.") from None
    shape = [d.size for d in tensor.tensor_shape.dim]
    try:
        return np.array(
            _decode_values(tensor, kind, _count_elements(shape, kind, tensor.ByteSize()))
        ).reshape(shape)
    except InvalidArgumentError as error:
        raise ValueError(f"make_ndarray: {error}") from None


def serialize_tensor(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Serialize a tensor to a string scalar that `parse_tensor` and TensorFlow can read.

    Args:
      tensor: Tensor with a known value.
      name: Ignored.

    Example:
      >>> tf.io.parse_tensor(tf.io.serialize_tensor([1, 2]), tf.int32).numpy()
      array([1, 2], dtype=int32)
    """
    if context.host_recorder is not None and context.host_recorder.should_record_number(tensor):
        return context.host_recorder.call(serialize_tensor, (tensor,), {})
    tensor = convert_to_tensor(tensor)
    array = tensor.require_value("a tensor to be serialized")
    return convert_to_tensor(serialize_array(array))


def serialize_array(array: np.ndarray) -> bytes:
    """Serialize an array as `serialize_tensor` does."""
    if array.dtype == object or not array.size or _is_big_endian(array):
        return to_tensor_proto(array).SerializeToString()
    # The content is the last field: number 4, of bytes, after their length.
    content = array.tobytes()
    empty = _serialize_empty(as_dtype(array.dtype), array.shape)
    return b"".join((empty, bytes([4 << 3 | 2]), encode_varint(len(content)), content))


@functools.lru_cache(1024)
def _serialize_empty(kind: DType, shape: tuple[int, ...]) -> bytes:
    return _make_empty_proto(kind, shape).SerializeToString()


def to_tensor_proto(array: np.ndarray) -> Any:
    """Convert an array to a `TensorProto`; strings are arrays of objects."""
    kind = as_dtype(array.dtype)
    proto = _make_empty_proto(kind, array.shape)
    if kind.name == "string":
        proto.string_val.extend(array.reshape(-1).tolist())
    else:
        little = array.astype(array.dtype.newbyteorder("<")) if _is_big_endian(array) else array
        proto.tensor_content = np.ascontiguousarray(little).tobytes()
    return proto


def _split_texts(content: bytes) -> list[bytes]:
    """Split the content of a tensor of strings: their lengths as varints, then their bytes.

    Raises:
      InvalidArgumentError: If the content has another length.
    """
    lengths: list[int] = []
    position = total = 0
    while position + total < len(content):
        length = shift = 0
        while position < len(content):
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
        total += length
    if position + total != len(content):
        raise InvalidArgumentError("The content of a tensor of strings is damaged.")
    ends = np.cumsum([position, *lengths]).tolist()
    return [content[a:b] for a, b in itertools.pairwise(ends)]


def _make_empty_proto(kind: DType, shape: Sequence[int]) -> Any:
    proto = protos.TensorProto(dtype=kind.as_datatype_enum)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    # A scalar needs an explicit empty shape; without it, the rank would be unknown.
    proto.tensor_shape.SetInParent()
    return proto


def _is_big_endian(array: np.ndarray) -> bool:
    return array.dtype.byteorder == ">"


def parse_tensor(serialized: TensorLike, out_type: DTypeLike, name: str | None = None) -> Tensor:
    """Parse a tensor that `serialize_tensor` or TensorFlow serialized.

    Args:
      serialized: String scalar.
      out_type: Expected dtype.
      name: Ignored.

    Raises:
      InvalidArgumentError: The string contains another dtype, or no tensor.

    Example:
      >>> text = tf.io.serialize_tensor([1, 2])
      >>> print(tf.io.parse_tensor(text, tf.int32).numpy())
      [1 2]
    """
    kind = as_dtype(out_type)
    data = bytes(to_host_strings(serialized, "a serialized tensor")[()])
    array = parse_array(data, kind)
    return convert_python_value(vary_sizes(array, *range(array.ndim)), kind)


def parse_array(data: bytes, kind: DType) -> np.ndarray:
    """Parse an array that `serialize_array` or TensorFlow serialized; see `parse_tensor`."""
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
            stored = f"dtype code {proto.dtype}"
        raise InvalidArgumentError(
            f"Type mismatch between parsed tensor ({stored}) and dtype ({kind.name})"
        )
    shape = [d.size for d in proto.tensor_shape.dim]
    return _decode_values(proto, kind, _count_elements(shape, kind, len(data))).reshape(shape)


def _count_elements(shape: Sequence[int], kind: DType, size: int) -> int:
    """Return the number of elements of a shape, after a check against the message size in bytes."""
    count = math.prod(shape)
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: its shape is {list(shape)}."
        )
    # A short message can declare a large tensor of equal values.
    if count * kind.size > (limit := get_unpacked_limit(size)):
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: its shape {list(shape)} needs more than the limit of {limit:,} "
            f"bytes. If you trust the source, set the environment variable {UNPACKED_VARIABLE} to a larger number."
        )
    spend_load_budget(count * kind.size, "a tensor")
    return count


def _decode_values(proto: Any, kind: DType, count: int) -> np.ndarray:
    if kind.name == "string":
        texts = list(proto.string_val) or _split_texts(proto.tensor_content)
        array = np.empty(len(texts), object)
        array[:] = texts
    elif proto.tensor_content:
        array = np.frombuffer(proto.tensor_content, kind.dtype)
    else:
        values = list(getattr(proto, _VALUE_FIELDS[kind.name]))
        if kind.name in ("float16", "bfloat16"):
            array = np.array(values, np.uint16).view(kind.dtype)
        elif kind.name.startswith("complex"):
            half = np.float32 if kind.name == "complex64" else np.float64
            array = np.array(values, half).view(kind.dtype)
        else:
            array = np.array(values, kind.dtype)
    if array.size < count and array.size and not proto.tensor_content:
        # The last value is repeated up to the size of the tensor.
        array = np.concatenate([array, np.repeat(array[-1:], count - array.size)])
    elif not array.size and not proto.tensor_content:
        array = np.zeros(count, array.dtype) if kind.name != "string" else np.full(count, b"")
    if array.size != count:
        raise InvalidArgumentError(
            f"Could not parse `serialized` as TensorProto: it has {array.size} values, but its shape {count}."
        )
    return array
