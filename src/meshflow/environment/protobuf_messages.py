"""Protocol-buffer messages that are declared by tables in Python.

Each table gets its own descriptor pool, so the messages do not conflict with TensorFlow's in the
same process. If `import tensorflow` loads Meshflow, all tables share the default pool, where messages of
libraries refer to TensorFlow's. The encoding is compatible: TensorFlow can read the messages, and its own
messages can be read.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError as DecodeError
except ImportError as error:
    raise ImportError(
        "TensorFlow's files (tf.train.Example, tf.io.serialize_tensor, SavedModels, checkpoints) need the package "
        "protobuf: pip install meshflow-tf."
    ) from error

# A table maps the name of each message to its fields, and each field to its number and type. A type
# that starts with `*` is repeated, `{}` is a map from strings, `{int32}` a map from integers, and
# `|` marks the fields of the message's oneof, which `_ONEOF_NAMES` names. `DataType` is an enumeration. The name of an
# enumeration in a message has its constants instead of fields, and `=` marks its type.
MessageTable = Mapping[str, Mapping[str, tuple[int, str]] | Sequence[str]]
# Names of oneofs by message; all others are called `kind`.
_ONEOF_NAMES = {"Event": "what", "Value": "value"}

_PACKAGE = "tensorflow"
_ENUM_NAME = "DataType"
# Names of dtypes in the order of their numbers.
_DTYPE_NAMES = """
    INVALID FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 BFLOAT16 QINT16
    QUINT16 UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 FLOAT8_E4M3FN
""".split()  # noqa: SIM905 - the list would have thirty lines
DTYPE_NUMBERS = {f"DT_{name}": number for number, name in enumerate(_DTYPE_NAMES)}
DTYPE_NUMBERS |= {f"{name}_REF": number + 100 for name, number in DTYPE_NUMBERS.items() if number}
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


def declare_messages(name: str, table: MessageTable) -> dict[str, Any]:
    """Create the message classes of a table.

    Args:
      name: Name of the descriptor file, which appears in protobuf's errors.
      table: Fields by message. A nested message is called `Outer.Inner` and must follow its outer
        message.

    Returns:
      The classes by the names in the table.

    Example:
      >>> fields = {"x": (1, "int64"), "tags": (2, "*string")}
      >>> point = declare_messages("point.proto", {"Point": fields})["Point"]
      >>> point.FromString(point(x=3, tags=["a"]).SerializeToString()).x
      3
    """
    if _shares_pool():
        pool = descriptor_pool.Default()
        declare_dtypes()
        declare_file(name, {m: fields for m, fields in table.items() if not _is_declared(m)})
    else:
        pool = descriptor_pool.DescriptorPool()
        file = _build_file(name, table)
        _add_dtypes(file)
        pool.Add(file)
    return {
        message: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message}")
        )
        for message, fields in table.items()
        if isinstance(fields, Mapping)
    }


def declare_dtypes() -> None:
    """Add the file with the enumeration of dtypes to the default pool."""
    declare_file("tensorflow/core/framework/types.proto", {}, has_dtypes=True)


def declare_file(name: str, table: MessageTable, has_dtypes: bool = False) -> None:
    """Add a file to the default pool; it also has the messages of the earlier files.

    Args:
      name: Name of the file. If the pool has the file, nothing happens.
      table: Fields by message, as for `declare_messages`.
      has_dtypes: Whether the file has the enumeration of dtypes.
    """
    if name in _shared_files:
        return
    file = _build_file(name, table)
    if has_dtypes:
        _add_dtypes(file)
    file.dependency.extend(_shared_files)
    file.public_dependency.extend(range(len(_shared_files)))
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    _shared_files.append(name)


# Names of the files in the default pool.
_shared_files: list[str] = []


def _shares_pool() -> bool:
    """Return whether `import tensorflow` loads Meshflow, so that TensorFlow adds no messages to the default pool."""
    try:
        spec = importlib.util.find_spec("tensorflow")
    except ValueError:  # A module without a spec, such as a stand-in of a test.
        return False
    folder = Path(__file__).parents[1] / "shims"
    return spec is not None and folder in Path(spec.origin or "").parents


def _is_declared(name: str) -> bool:
    """Check whether the default pool has a message or an enumeration."""
    pool, full_name = descriptor_pool.Default(), f"{_PACKAGE}.{name}"
    try:
        pool.FindFileContainingSymbol(full_name)
    except KeyError:
        return False
    return True


def _build_file(name: str, table: MessageTable) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=_PACKAGE, syntax="proto3")
    messages: dict[str, Any] = {}
    for path, fields in table.items():
        outer, _, inner = path.rpartition(".")
        if not isinstance(fields, Mapping):
            enum = messages[outer].enum_type.add(name=inner)
            for number, constant in enumerate(fields):
                enum.value.add(name=constant, number=number)
            continue
        message = messages[outer].nested_type.add() if outer else file.message_type.add()
        message.name = inner
        messages[path] = message
        for field_name, (field_number, type_name) in fields.items():
            _add_field(message, path, field_name, field_number, type_name)
    return file


def _add_dtypes(file: Any) -> None:
    enum = file.enum_type.add(name=_ENUM_NAME)
    for name, number in DTYPE_NUMBERS.items():
        enum.value.add(name=name, number=number)


def _add_field(message: Any, path: str, name: str, field_number: int, type_name: str) -> None:
    repeated = type_name.startswith(("*", "{"))
    field = message.field.add(
        name=name,
        number=field_number,
        label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
    )
    if type_name.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONEOF_NAMES.get(message.name, "kind"))
        field.oneof_index = 0
    bare_type = type_name.lstrip("*|=")
    if type_name.startswith("{"):
        # A map is encoded as repeated pairs of a key and a value.
        bare_type = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=bare_type)
        entry.options.map_entry = True
        key, _, value = type_name[1:].partition("}")
        _add_field(entry, path, "key", 1, key or "string")
        _add_field(entry, path, "value", 2, value)
        bare_type = f"{path}.{bare_type}"
    if bare_type in _SCALARS:
        field.type = _SCALARS[bare_type]
    elif bare_type == _ENUM_NAME or type_name.startswith("="):
        field.type, field.type_name = _Field.TYPE_ENUM, f".{_PACKAGE}.{bare_type}"
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{bare_type}"
