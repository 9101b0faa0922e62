"""Nodes of TensorFlow's graphs and what they carry: shapes, data types, attributes, constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import as_dtype

__all__ = [
    "CHECKSUM",
    "RESOURCE",
    "STRING",
    "add_node",
    "constant",
    "datatype",
    "put_shape",
    "shape",
    "shapes",
    "strings",
    "types",
]

STRING, RESOURCE = 7, 20
# Of a program, among the attributes of the node that has it: what reads programs does not look for damage.
CHECKSUM = "_module_crc32c"


def datatype(dtype: Any) -> int:
    """TensorFlow's number of a data type.

    Args:
      dtype: a NumPy or Meshflow dtype.
    """
    return as_dtype(dtype).as_datatype_enum


def put_shape(proto: Any, sizes: Iterable[Any] | None) -> None:
    """Writes a shape into a `TensorShapeProto`.

    Args:
      proto: the message.
      sizes: sizes; what is no integer is unknown. None for an unknown rank.
    """
    proto.SetInParent()
    if sizes is None:
        proto.unknown_rank = True
        return
    for size in sizes:
        proto.dim.add(size=size if isinstance(size, int) else -1)


# Attributes that are not plain: each is written by the function that stands for it.


def types(numbers: Sequence[int]) -> Any:
    """A list of data types as an attribute."""

    def put(attr: Any) -> None:
        attr.list.SetInParent()
        attr.list.type.extend(numbers)

    return put


def shape(sizes: Any) -> Any:
    """A shape as an attribute."""
    return lambda attr: put_shape(attr.shape, sizes)


def shapes(several: Sequence[Any]) -> Any:
    """A list of shapes as an attribute."""

    def put(attr: Any) -> None:
        attr.list.SetInParent()
        for sizes in several:
            put_shape(attr.list.shape.add(), sizes)

    return put


def strings(texts: Sequence[bytes]) -> Any:
    """A list of strings as an attribute."""

    def put(attr: Any) -> None:
        attr.list.SetInParent()
        attr.list.s.extend(texts)

    return put


def functions(names: Sequence[str]) -> Any:
    """A list of functions as an attribute."""

    def put(attr: Any) -> None:
        attr.list.SetInParent()
        for name in names:
            attr.list.func.add(name=name)

    return put


class Type(int):
    """A data type as an attribute."""


class Function(str):
    """The name of a function as an attribute."""

    __slots__ = ()


def constant(value: Any) -> Any:
    """An array as an attribute.

    Args:
      value: numbers, or bytes in an array of objects.
    """
    array = np.asarray(value)

    def put(attr: Any) -> None:
        tensor = attr.tensor
        if array.dtype.hasobject or array.dtype.kind in "SU":
            tensor.dtype = STRING
            tensor.string_val.extend(bytes(v) for v in array.reshape(-1))
        else:
            tensor.dtype = datatype(array.dtype)
            tensor.tensor_content = np.ascontiguousarray(array).tobytes()
        put_shape(tensor.tensor_shape, array.shape)

    return put


def add_node(where: Any, name: str, op: str, inputs: Iterable[str] = (), **attributes: Any) -> str:
    """Adds a node to a graph or a function.

    Args:
      where: its repeated field of nodes.
      name: the node's name.
      op: TensorFlow's op.
      inputs: outputs of other nodes, or `^name` for what is to run before.
      **attributes: numbers, bytes, booleans, `Type`s, `Function`s, and what the functions of this module give.

    Returns:
      The name.
    """
    node = where.add(name=name, op=op)
    node.input.extend(inputs)
    for key, value in attributes.items():
        attr = node.attr[key]
        if callable(value):
            value(attr)
        elif isinstance(value, Type):
            attr.type = int(value)
        elif isinstance(value, Function):
            attr.func.name = str(value)
        else:
            kind = {bool: "b", int: "i", float: "f", bytes: "s"}[type(value)]
            setattr(attr, kind, value)
    return name
