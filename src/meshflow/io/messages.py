"""Protocol buffers of record files, tensors and event files, such as `tf.train.Example`.

The messages are declared in Python, in a separate descriptor pool, so that TensorFlow can be
imported in the same process. They are compatible with TensorFlow's messages in both directions.

Example:
  >>> example = tf.train.Example(features=tf.train.Features(feature={
  ...     "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 4]))}))
  >>> read = tf.train.Example.FromString(example.SerializeToString())
  >>> list(read.features.feature["n"].int64_list.value)
  [3, 4]
"""

from __future__ import annotations

from typing import Any, TypeAlias

from meshflow.environment.protobuf_messages import DecodeError, MessageTable, declare_messages

__all__ = [
    "EXAMPLE_MESSAGES",
    "TENSOR_MESSAGES",
    "BytesList",
    "DecodeError",
    "Event",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "HistogramProto",
    "Int64List",
    "Message",
    "SequenceExample",
    "SessionLog",
    "Summary",
    "SummaryMetadata",
    "TensorProto",
    "TensorShapeProto",
]

# A protocol buffer. Its attributes are created at run time, so type checkers do not know them.
Message: TypeAlias = Any

TENSOR_MESSAGES: MessageTable = {
    "TensorShapeProto": {"dim": (2, "*TensorShapeProto.Dim"), "unknown_rank": (3, "bool")},
    "TensorShapeProto.Dim": {"size": (1, "int64"), "name": (2, "string")},
    "TensorProto": {
        "dtype": (1, "DataType"),
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
        "float8_val": (18, "bytes"),
    },
}
EXAMPLE_MESSAGES: MessageTable = {
    "BytesList": {"value": (1, "*bytes")},
    "FloatList": {"value": (1, "*float")},
    "Int64List": {"value": (1, "*int64")},
    "Feature": {
        "bytes_list": (1, "|BytesList"),
        "float_list": (2, "|FloatList"),
        "int64_list": (3, "|Int64List"),
    },
    "Features": {"feature": (1, "{}Feature")},
    "Example": {"features": (1, "Features")},
}
_MESSAGES: MessageTable = {
    **EXAMPLE_MESSAGES,
    "FeatureList": {"feature": (1, "*Feature")},
    "FeatureLists": {"feature_list": (1, "{}FeatureList")},
    "SequenceExample": {"context": (1, "Features"), "feature_lists": (2, "FeatureLists")},
    **TENSOR_MESSAGES,
    # TensorBoard reads the following messages.
    "SummaryMetadata": {
        "plugin_data": (1, "SummaryMetadata.PluginData"),
        "display_name": (2, "string"),
        "summary_description": (3, "string"),
    },
    "SummaryMetadata.PluginData": {"plugin_name": (1, "string"), "content": (2, "bytes")},
    "HistogramProto": {
        **{n: (i, "double") for i, n in enumerate(("min", "max", "num", "sum", "sum_squares"), 1)},
        "bucket_limit": (6, "*double"),
        "bucket": (7, "*double"),
    },
    "Summary": {"value": (1, "*Summary.Value")},
    "Summary.Image": {
        "height": (1, "int32"),
        "width": (2, "int32"),
        "colorspace": (3, "int32"),
        "encoded_image_string": (4, "bytes"),
    },
    "Summary.Audio": {
        "sample_rate": (1, "float"),
        "num_channels": (2, "int64"),
        "length_frames": (3, "int64"),
        "encoded_audio_string": (4, "bytes"),
        "content_type": (5, "string"),
    },
    "Summary.Value": {
        "tag": (1, "string"),
        "simple_value": (2, "|float"),
        "image": (4, "|Summary.Image"),
        "histo": (5, "|HistogramProto"),
        "audio": (6, "|Summary.Audio"),
        "node_name": (7, "string"),
        "tensor": (8, "|TensorProto"),
        "metadata": (9, "SummaryMetadata"),
    },
    "SourceMetadata": {"writer": (1, "string")},
    "SessionLog": {
        "status": (1, "=SessionLog.SessionStatus"),
        "checkpoint_path": (2, "string"),
        "msg": (3, "string"),
    },
    "SessionLog.SessionStatus": ("STATUS_UNSPECIFIED", "START", "STOP", "CHECKPOINT"),
    "TaggedRunMetadata": {"tag": (1, "string"), "run_metadata": (2, "bytes")},
    "Event": {
        "wall_time": (1, "double"),
        "step": (2, "int64"),
        "file_version": (3, "|string"),
        "graph_def": (4, "|bytes"),
        "summary": (5, "|Summary"),
        "session_log": (7, "|SessionLog"),
        "tagged_run_metadata": (8, "|TaggedRunMetadata"),
        "source_metadata": (10, "SourceMetadata"),
    },
}


_classes = declare_messages("meshflow/records.proto", _MESSAGES)
BytesList = _classes["BytesList"]
FloatList = _classes["FloatList"]
Int64List = _classes["Int64List"]
Feature = _classes["Feature"]
Features = _classes["Features"]
FeatureList = _classes["FeatureList"]
FeatureLists = _classes["FeatureLists"]
Example = _classes["Example"]
SequenceExample = _classes["SequenceExample"]
TensorShapeProto = _classes["TensorShapeProto"]
TensorProto = _classes["TensorProto"]
Event = _classes["Event"]
HistogramProto = _classes["HistogramProto"]
Summary = _classes["Summary"]
SessionLog = _classes["SessionLog"]
SummaryMetadata = _classes["SummaryMetadata"]
