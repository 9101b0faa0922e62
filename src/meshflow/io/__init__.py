"""`tf.io`: files, record files, serialized examples and tensors, encoded images, and raw bytes."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.io import gfile
from meshflow.io.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from meshflow.io.graph_files import write_graph
from meshflow.io.parsing import (
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from meshflow.io.records import TFRecordOptions, TFRecordWriter
from meshflow.io.sparse_tensors import (
    decode_json_example,
    deserialize_many_sparse,
    serialize_many_sparse,
    serialize_sparse,
)
from meshflow.io.tensors import parse_tensor, serialize_tensor
from meshflow.ops.files import (
    decode_base64,
    decode_compressed,
    decode_raw,
    encode_base64,
    match_filenames_once,
    matching_files,
    read_file,
    write_file,
)
from meshflow.ops.image.codecs import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
)
from meshflow.ops.tables import decode_csv

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "SparseFeature",
    "TFRecordOptions",
    "TFRecordWriter",
    "VarLenFeature",
    "decode_and_crop_jpeg",
    "decode_base64",
    "decode_bmp",
    "decode_compressed",
    "decode_csv",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_json_example",
    "decode_png",
    "decode_raw",
    "deserialize_many_sparse",
    "encode_base64",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "gfile",
    "is_jpeg",
    "match_filenames_once",
    "matching_files",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_file",
    "serialize_many_sparse",
    "serialize_sparse",
    "serialize_tensor",
    "write_file",
    "write_graph",
]

_hide_frames(globals())

__getattr__ = _explain_names("tf.io")
