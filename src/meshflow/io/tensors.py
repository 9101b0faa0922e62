"""Tensors as strings: TensorFlow's protocol buffer of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.convert import convert_to_tensor, from_python
from meshflow.core.dtypes import as_dtype
from meshflow.core.errors import InvalidArgumentError
from meshflow.core.tensor import Tensor, TensorLike
from meshflow.ops.files import host_bytes

__all__ = ["parse_tensor", "serialize_tensor"]

# Where a proto that was not written by `serialize_tensor` may hold its numbers.
_FIELDS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int_val"),
    **{"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val"},
    **{"uint32": "uint32_val", "uint64": "uint64_val", "string": "string_val"},
    **{"float16": "half_val", "bfloat16": "half_val"},
    **{"complex64": "scomplex_val", "complex128": "dcomplex_val"},
}


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
    from meshflow.io.protos import TensorProto

    kind = as_dtype(array.dtype)
    proto = TensorProto(dtype=kind.as_datatype_enum)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    # An empty shape is there too: the tensor is a scalar, not of unknown rank.
    proto.tensor_shape.SetInParent()
    if kind.name == "string":
        proto.string_val.extend(array.reshape(-1).tolist())
    else:
        little = array.astype(array.dtype.newbyteorder("<")) if _swaps(array) else array
        proto.tensor_content = np.ascontiguousarray(little).tobytes()
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
    from meshflow.io.protos import DecodeError, TensorProto

    kind = as_dtype(out_type)
    data = bytes(host_bytes(serialized, "a serialized tensor")[()])
    try:
        proto = TensorProto.FromString(data)
    except DecodeError:
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
    array = _numbers(proto, kind, int(np.prod(shape, dtype=np.int64)))
    return from_python(array.reshape(shape), kind)


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
