"""Datasets of the records of files."""

from __future__ import annotations

from typing import Any

from meshflow.data.dataset import integer
from meshflow.data.sources import Files, fixed, lines


class TextLineDataset(Files):
    """The lines of text files, as byte strings without their ends.

    Args:
      filenames: a name, names, or a dataset of names.
      compression_type: '', 'GZIP' or 'ZLIB'.
      buffer_size: accepted.
      num_parallel_reads: accepted.
      name: ignored.

    Raises:
      NotFoundError: while iterating, for a file that is not there.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(filenames, lines(compression_type))


class FixedLengthRecordDataset(Files):
    """Records of one size from binary files, as byte strings.

    Args:
      filenames: a name, names, or a dataset of names.
      record_bytes: size of a record.
      header_bytes: bytes to leave out at the start of each file.
      footer_bytes: bytes to leave out at its end.
      buffer_size: accepted.
      compression_type: '', 'GZIP' or 'ZLIB'.
      num_parallel_reads: accepted.
      name: ignored.

    Raises:
      InvalidArgumentError: while iterating, for a file of another size.
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: Any,
        header_bytes: Any = None,
        footer_bytes: Any = None,
        buffer_size: int | None = None,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        sizes = [0 if n is None else integer(n, "bytes") for n in (header_bytes, footer_bytes)]
        super().__init__(
            filenames, fixed(integer(record_bytes, "record_bytes"), *sizes, compression_type)
        )
