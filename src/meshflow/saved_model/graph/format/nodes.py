"""Writing of nodes of TensorFlow's graphs: shapes, dtypes, attributes and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.saved_model.graph.format.messages import Message

# Function that writes a value into an `AttrValue`.
AttributeWriter: TypeAlias = Callable[[Message], None]

STRING, RESOURCE = 7, 20
# Dtypes that only occur in graphs.
RESOURCE_DTYPE, VARIANT_DTYPE = DType("resource", object, RESOURCE), DType("variant", object, 21)
# Attribute of a node with a program: checksum of the program, because MLIR's reader does not detect
# damage.
CHECKSUM_ATTRIBUTE = "_module_crc32c"


def to_dtype_enum(dtype: DTypeLike) -> int:
    """Return TensorFlow's enum value for a dtype."""
    return as_dtype(dtype).as_datatype_enum


def parse_dtype_enum(enum: int) -> DType:
    """Return the dtype of an enum value in a graph."""
    graph_dtypes = {d.as_datatype_enum: d for d in (RESOURCE_DTYPE, VARIANT_DTYPE)}
    return graph_dtypes.get(enum) or as_dtype(enum)


def write_shape(proto: Message, sizes: Iterable[Any] | None) -> None:
    """Write a shape into a `TensorShapeProto`.

    Args:
      proto: The message.
      sizes: Sizes, with symbolic dimensions or None for unknown sizes; None if the rank is unknown.
    """
    proto.SetInParent()
    if sizes is None:
        proto.unknown_rank = True
        return
    for size in sizes:
        proto.dim.add(size=size if isinstance(size, int) else -1)


# The functions below return writers of attributes that `add_node` cannot infer from a Python value.


def make_type_list(enums: Sequence[int]) -> AttributeWriter:
    """Return a writer of a list of dtypes."""

    def write(attr: Message) -> None:
        attr.list.SetInParent()
        attr.list.type.extend(enums)

    return write


def make_shape(sizes: Iterable[Any] | None) -> AttributeWriter:
    """Return a writer of a shape."""
    return lambda attr: write_shape(attr.shape, sizes)


def make_shape_list(several: Sequence[Iterable[Any] | None]) -> AttributeWriter:
    """Return a writer of a list of shapes."""

    def write(attr: Message) -> None:
        attr.list.SetInParent()
        for sizes in several:
            write_shape(attr.list.shape.add(), sizes)

    return write


def make_string_list(texts: Sequence[bytes]) -> AttributeWriter:
    """Return a writer of a list of strings."""

    def write(attr: Message) -> None:
        attr.list.SetInParent()
        attr.list.s.extend(texts)

    return write


def make_function_list(names: Sequence[str]) -> AttributeWriter:
    """Return a writer of a list of functions."""

    def write(attr: Message) -> None:
        attr.list.SetInParent()
        for name in names:
            attr.list.func.add(name=name)

    return write


class FunctionAttr(str):
    """Name of a function, as the value of an attribute."""

    __slots__ = ()


def make_tensor(value: npt.ArrayLike) -> AttributeWriter:
    """Return a writer of an array of numbers, or of bytes with the dtype `object`."""
    array = np.asarray(value)

    def write(attr: Message) -> None:
        tensor = attr.tensor
        if array.dtype.hasobject or array.dtype.kind in "SU":
            tensor.dtype = STRING
            tensor.string_val.extend(bytes(v) for v in array.reshape(-1))
        else:
            tensor.dtype = to_dtype_enum(array.dtype)
            tensor.tensor_content = np.ascontiguousarray(array).tobytes()
        write_shape(tensor.tensor_shape, array.shape)

    return write


def add_node(
    nodes: Message, name: str, op: str, inputs: Iterable[str] = (), **attributes: Any
) -> str:
    """Add a node to a graph or a function.

    Args:
      nodes: The repeated field of nodes.
      name: Name of the node.
      op: TensorFlow's op.
      inputs: Outputs of other nodes, or "^name" for a node that must run first.
      **attributes: Numbers, bytes, booleans, `DType`s, `FunctionAttr`s and attribute writers.

    Returns:
      The name.
    """
    node = nodes.add(name=name, op=op)
    node.input.extend(inputs)
    for key, value in attributes.items():
        attr = node.attr[key]
        if callable(value):
            value(attr)
        elif isinstance(value, DType):
            attr.type = value.as_datatype_enum
        elif isinstance(value, FunctionAttr):
            attr.func.name = str(value)
        else:
            kind = {bool: "b", int: "i", float: "f", bytes: "s"}[type(value)]
            setattr(attr, kind, value)
    return name
