"""Protocol buffers declared by tables in Python, in pools of descriptors of their own.

So they live beside those of TensorFlow in one process; what they write, TensorFlow reads, and the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise ImportError(
        "TensorFlow's files (tf.train.Example, tf.io.serialize_tensor, SavedModels, checkpoints) need the package "
        "protobuf: pip install 'meshflow[records]'."
    ) from error

__all__ = ["DecodeError", "Table", "declared"]

# Messages: their fields with number and type. `*` marks repeated fields, `{}` maps from strings, `{int32}` from
# numbers, `|` fields of which only one is set.
Table = Mapping[str, Mapping[str, tuple[int, str]]]

_PACKAGE = "tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "fixed32": _Field.TYPE_FIXED32,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "sint64": _Field.TYPE_SINT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def declared(name: str, table: Table) -> dict[str, Any]:
    """Classes of messages.

    Args:
      name: of the file of descriptors that the table stands for, as errors of protobuf show it.
      table: fields by message; a message inside another is `Outer.Inner`, and comes after it.

    Returns:
      The classes, by the names in the table.

    Example:
      >>> point = declared("point.proto", {"Point": {"x": (1, "int64"), "tags": (2, "*string")}})["Point"]
      >>> point.FromString(point(x=3, tags=["a"]).SerializeToString()).x
      3
    """
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file(name, table))
    return {
        message: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message}")
        )
        for message in table
    }


def _file(name: str, table: Table) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=_PACKAGE, syntax="proto3")
    messages: dict[str, Any] = {}
    for path, fields in table.items():
        outer, _, inner = path.rpartition(".")
        message = messages[outer].nested_type.add() if outer else file.message_type.add()
        message.name = inner
        messages[path] = message
        for field_name, (number, kind) in fields.items():
            _add_field(message, path, field_name, number, kind)
    return file


def _add_field(message: Any, path: str, name: str, number: int, kind: str) -> None:
    repeated = kind.startswith(("*", "{"))
    field = message.field.add(
        name=name, number=number, label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    )
    if kind.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="kind")
        field.oneof_index = 0
    bare = kind.lstrip("*|")
    if kind.startswith("{"):
        # A map is repeated pairs of key and value.
        bare = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=bare)
        entry.options.map_entry = True
        key, _, value = kind[1:].partition("}")
        _add_field(entry, path, "key", 1, key or "string")
        _add_field(entry, path, "value", 2, value)
        bare = f"{path}.{bare}"
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{bare}"
