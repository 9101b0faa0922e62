"""Names of `tf.compat.v1.io` and `tf.compat.v1.python_io` that TensorFlow 2 does not have."""

from __future__ import annotations

from collections.abc import Iterator

from meshflow.environment.types import StrPath
from meshflow.io.records import read_records

__all__ = ["TFRecordCompressionType", "tf_record_iterator"]


class TFRecordCompressionType:
    """Compressions of record files."""

    NONE, ZLIB, GZIP = 0, 1, 2


def tf_record_iterator(path: StrPath, options: object = None) -> Iterator[bytes]:
    """Iterate over the records of a file.

    Args:
      path: Path of the file.
      options: Compression, or `tf.io.TFRecordOptions`.
    """
    return read_records(path, options)
