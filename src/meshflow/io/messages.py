"""The protocol buffers of record files: `tf.train.Example` and what it is made of, and tensors.

The messages are declared here in Python, in a pool of descriptors of their own, so that they live
beside TensorFlow's in one process. What they write, TensorFlow reads, and the reverse.

Example:
  >>> import meshflow as tf
  >>> example = tf.train.Example(features=tf.train.Features(feature={
  ...     "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 4]))}))
  >>> read = tf.train.Example.FromString(example.SerializeToString())
  >>> list(read.features.feature["n"].int64_list.value)
  [3, 4]
"""

from __future__ import annotations

from typing import Any

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise ImportError(
        "tf.train.Example, tf.io.parse_example and tf.io.serialize_tensor need the package "
        "protobuf: pip install 'meshflow[records]'."
    ) from error

__all__ = [
    "BytesList",
    "DecodeError",
    "Event",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "Summary",
    "SummaryMetadata",
    "TensorProto",
    "TensorShapeProto",
]

_PACKAGE = "tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
# Messages: their fields with number and type. `*` marks repeated fields, `{}` maps from strings,
# `|` fields of which only one is set.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "BytesList": {"value": (1, "*bytes")},
    "FloatList": {"value": (1, "*float")},
    "Int64List": {"value": (1, "*int64")},
    "Feature": {
        "bytes_list": (1, "|BytesList"),
        "float_list": (2, "|FloatList"),
        "int64_list": (3, "|Int64List"),
    },
    "Features": {"feature": (1, "{}Feature")},
    "FeatureList": {"feature": (1, "*Feature")},
    "FeatureLists": {"feature_list": (1, "{}FeatureList")},
    "Example": {"features": (1, "Features")},
    "SequenceExample": {"context": (1, "Features"), "feature_lists": (2, "FeatureLists")},
    "TensorShapeProto": {"dim": (2, "*TensorShapeProto.Dim"), "unknown_rank": (3, "bool")},
    "TensorShapeProto.Dim": {"size": (1, "int64"), "name": (2, "string")},
    "TensorProto": {
        # An enumeration; its numbers are those of DType.as_datatype_enum.
        "dtype": (1, "int32"),
        "tensor_shape": (2, "TensorShapeProto"),
        "version_number": (3, "int32"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "*float"),
        "double_val": (6, "*double"),
        "int_val": (7, "*int32"),
        "string_val": (8, "*bytes"),
        "scomplex_val": (9, "*float"),
        "int64_val": (10, "*int64"),
        "bool_val": (11, "*bool"),
        "dcomplex_val": (12, "*double"),
        "half_val": (13, "*int32"),
        "uint32_val": (16, "*uint32"),
        "uint64_val": (17, "*uint64"),
    },
    # What TensorBoard reads.
    "SummaryMetadata": {
        "plugin_data": (1, "SummaryMetadata.PluginData"),
        "display_name": (2, "string"),
        "summary_description": (3, "string"),
    },
    "SummaryMetadata.PluginData": {"plugin_name": (1, "string"), "content": (2, "bytes")},
    "Summary": {"value": (1, "*Summary.Value")},
    "Summary.Value": {
        "tag": (1, "string"),
        "simple_value": (2, "|float"),
        "tensor": (8, "|TensorProto"),
        "metadata": (9, "SummaryMetadata"),
    },
    "SourceMetadata": {"writer": (1, "string")},
    "Event": {
        "wall_time": (1, "double"),
        "step": (2, "int64"),
        "file_version": (3, "|string"),
        "graph_def": (4, "|bytes"),
        "summary": (5, "|Summary"),
        "source_metadata": (10, "SourceMetadata"),
    },
}


def _declared() -> Any:
    """The file of all messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="meshflow/records.proto", package=_PACKAGE, syntax="proto3"
    )
    messages: dict[str, Any] = {}
    for name, fields in _MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        message = messages[outer].nested_type.add() if outer else file.message_type.add()
        message.name = inner
        messages[name] = message
        for field_name, (number, kind) in fields.items():
            _add_field(message, name, field_name, number, kind)
    return file


def _add_field(message: Any, path: str, name: str, number: int, kind: str) -> None:
    repeated = kind.startswith(("*", "{}"))
    field = message.field.add(
        name=name, number=number, label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    )
    if kind.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="kind")
        field.oneof_index = 0
    bare = kind.lstrip("*{}|")
    if kind.startswith("{}"):
        # A map is repeated pairs of key and value.
        bare = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=bare)
        entry.options.map_entry = True
        _add_field(entry, path, "key", 1, "string")
        _add_field(entry, path, "value", 2, kind[2:])
        bare = f"{path}.{bare}"
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{bare}"


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_declared())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


BytesList = _class("BytesList")
FloatList = _class("FloatList")
Int64List = _class("Int64List")
Feature = _class("Feature")
Features = _class("Features")
FeatureList = _class("FeatureList")
FeatureLists = _class("FeatureLists")
Example = _class("Example")
SequenceExample = _class("SequenceExample")
TensorShapeProto = _class("TensorShapeProto")
TensorProto = _class("TensorProto")
Event = _class("Event")
Summary = _class("Summary")
SummaryMetadata = _class("SummaryMetadata")
