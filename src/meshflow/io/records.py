"""Record files: strings of bytes, each with its length and checksums.

A record is its length (8 bytes, the lowest first), the masked CRC-32C of those 8 bytes, the bytes,
and their masked CRC-32C. TensorFlow describes the format with `tf.io.TFRecordWriter`.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidValueError,
    ResourceExhaustedError,
)
from meshflow.environment.limits import UNPACKED_VARIABLE, unpacked_limit
from meshflow.files import gfile
from meshflow.files.crc32c import crc32c, masked
from meshflow.files.gfile import GFile
from meshflow.files.paths import full_disk_named
from meshflow.files.paths import text as path_text
from meshflow.files.replacing import Replacement

__all__ = ["TFRecordOptions", "TFRecordWriter", "opened", "read_records"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_COMPRESSIONS = ("", "GZIP", "ZLIB")
# Longer records are read piece by piece.
_PIECE = 1 << 20


def compression_of(value: Any) -> str:
    """A compression's name from options, a name, a number of version 1, or None.

    Raises:
      ValueError: for an unknown one.
    """
    if isinstance(value, TFRecordOptions):
        value = value.compression_type
    if hasattr(value, "numpy"):
        value = value.numpy().decode()
    if isinstance(value, int) and 0 <= value < len(_COMPRESSIONS):
        # Version 1 numbers them: none, ZLIB, GZIP.
        value = ("", "ZLIB", "GZIP")[value]
    text = value or ""
    if text not in _COMPRESSIONS:
        raise InvalidValueError(
            f"Unsupported compression_type: {value!r}; known: '', 'GZIP', 'ZLIB'."
        )
    return text


class TFRecordOptions:
    """How a record file is compressed.

    Args:
      compression_type: '', 'GZIP' or 'ZLIB'.
      flush_mode: accepted.
      input_buffer_size: accepted.
      output_buffer_size: accepted.
      window_bits: size of the window, 9 to 15.
      compression_level: 0 to 9, for better compression in more time.
      compression_method: accepted.
      mem_level: 1 to 9, for more memory.
      compression_strategy: 0 to 3, as in `zlib`.

    Raises:
      ValueError: for an unknown compression.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/data"
      >>> with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions("GZIP")) as writer:
      ...     writer.write(b"a record")
      >>> [r.numpy() for r in tf.data.TFRecordDataset(path, compression_type="GZIP")]
      [b'a record']
    """

    def __init__(
        self,
        compression_type: Any = None,
        flush_mode: int | None = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> None:
        self.compression_type = compression_of(compression_type)
        self.flush_mode = flush_mode
        self.input_buffer_size = input_buffer_size
        self.output_buffer_size = output_buffer_size
        self.window_bits = window_bits
        self.compression_level = compression_level
        self.compression_method = compression_method
        self.mem_level = mem_level
        self.compression_strategy = compression_strategy

    @classmethod
    def get_compression_type_string(cls, options: Any) -> str:
        """'', 'GZIP' or 'ZLIB'.

        Args:
          options: options, a name, or None.
        """
        return compression_of(options)


class TFRecordWriter:
    """Writes records to a file.

    Args:
      path: the file, which is made anew; it has its name when the writer is closed, or flushed.
      options: `TFRecordOptions`, 'GZIP' or 'ZLIB', or None.

    Example:
      >>> import tempfile, os
      >>> import meshflow as tf
      >>> path = os.path.join(tempfile.mkdtemp(), "a.tfrecord")
      >>> with tf.io.TFRecordWriter(path) as writer:
      ...     writer.write(b"one")
      ...     writer.write(b"two")
      >>> [r.numpy() for r in tf.data.TFRecordDataset(path)]
      [b'one', b'two']
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        self._path = path_text(path)
        known = options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)
        self._squeeze: Any = None
        if known.compression_type:
            bits = 15 if known.window_bits is None else abs(known.window_bits)
            self._squeeze = zlib.compressobj(
                -1 if known.compression_level is None else known.compression_level,
                zlib.DEFLATED,
                bits + 16 if known.compression_type == "GZIP" else bits,
                zlib.DEF_MEM_LEVEL if known.mem_level is None else known.mem_level,
                known.compression_strategy or zlib.Z_DEFAULT_STRATEGY,
            )
        self._whole: Replacement | None = Replacement(self._path)
        # One that nobody closes is whole when it is gone, or when the program ends.
        self._finalize = weakref.finalize(self, _finish, self._whole, self._squeeze)

    def write(self, record: Any) -> None:
        """Appends a record.

        Args:
          record: a string of bytes.

        Raises:
          TypeError: for something else.
          FailedPreconditionError: when the writer is closed.
        """
        if self._whole is None:
            raise FailedPreconditionError(f"{self._path}: the writer is closed.")
        if hasattr(record, "numpy"):
            record = record.numpy()
        if isinstance(record, str):
            record = record.encode()
        if not isinstance(record, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"A record must be bytes, got {type(record).__name__}: serialize it first, as in "
                "example.SerializeToString()."
            )
        record = bytes(record)
        length = struct.pack("<Q", len(record))
        self._put(length + _FOOTER.pack(masked(crc32c(length))))
        self._put(record + _FOOTER.pack(masked(crc32c(record))))

    def _put(self, data: bytes) -> None:
        assert self._whole is not None
        with full_disk_named(self._path):
            self._whole.file.write(self._squeeze.compress(data) if self._squeeze else data)

    def flush(self) -> None:
        """Hands everything written so far to the file, which has its name from now on."""
        if self._whole is None:
            raise FailedPreconditionError(f"{self._path}: the writer is closed.")
        if self._squeeze:
            self._whole.file.write(self._squeeze.flush(zlib.Z_SYNC_FLUSH))
        self._whole.show()

    def close(self) -> None:
        """Ends the file and gives it its name; what was there before was there until now."""
        if self._whole is not None:
            self._whole = None
            self._finalize()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _finish(whole: Replacement, squeeze: Any) -> None:
    if squeeze:
        whole.file.write(squeeze.flush())
    whole.commit()


class _Inflated(io.RawIOBase):
    """A file's content, decompressed while it is read."""

    def __init__(self, file: Any) -> None:
        self._file, self._inflate = file, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and not self._inflate.eof:
            held = self._inflate.unconsumed_tail or self._file.read(1 << 16)
            if not held:
                raise EOFError("the compressed file ends early")
            data = self._inflate.decompress(held, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def opened(path: str, compression: Any = None, buffer_size: int | None = None) -> Any:
    """A file of bytes, decompressed while it is read.

    Args:
      path: the file.
      compression: '', 'GZIP' or 'ZLIB'.
      buffer_size: bytes read at once.

    Raises:
      ValueError: for an unknown compression.
    """
    kind = compression_of(compression)
    size = buffer_size if buffer_size and buffer_size > 1 else 1 << 18
    if "://" in path:
        file = GFile(path, "rb")._opened()
    else:
        # The caller closes it.
        file = open(path, "rb", buffering=size)  # noqa: SIM115
    if kind == "GZIP":
        return io.BufferedReader(gzip.GzipFile(fileobj=file, mode="rb"), size)
    return io.BufferedReader(_Inflated(file), size) if kind == "ZLIB" else file


def read_records(
    path: Any, compression: Any = None, buffer_size: int | None = None
) -> Iterator[bytes]:
    """The records of a file.

    Args:
      path: the file.
      compression: '', 'GZIP' or 'ZLIB'.
      buffer_size: bytes read at once.

    Raises:
      DataLossError: for a damaged record, naming the file and where the record begins.
      ResourceExhaustedError: for one of a compressed file that is larger than `unpacked_limit`.
    """
    path, offset, kind = os.fspath(path), 0, compression_of(compression)
    with opened(path, compression, buffer_size) as file:

        def damaged(what: str, why: str) -> DataLossError:
            inside = " of its decompressed content" if kind else ""
            return DataLossError(f"{path}: {what} record at byte {offset}{inside}: {why}.")

        def read(size: int) -> bytes:
            try:
                if size <= _PIECE:
                    return file.read(size)
                # What is read takes memory, not what is promised.
                pieces = []
                while size and (piece := file.read(min(size, _PIECE))):
                    pieces.append(piece)
                    size -= len(piece)
                return b"".join(pieces)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise damaged("corrupted", f"it cannot be decompressed ({error})") from None

        while header := read(_HEADER.size):
            if len(header) < _HEADER.size:
                raise damaged("truncated", f"only {len(header)} bytes of its length are there")
            length, checksum = _HEADER.unpack(header)
            if masked(crc32c(header[:8])) != checksum:
                hint = "" if offset else "; is this a record file, and the compression_type right?"
                raise damaged("corrupted", f"the checksum of its length does not fit{hint}")
            if (
                kind
                and length > _PIECE
                and length > (most := unpacked_limit(gfile.stat(path).length))
            ):
                raise ResourceExhaustedError(
                    f"{path}: the record at byte {offset} of its decompressed content holds {length:,} bytes, more "
                    f"than {most:,}. If you trust its author, set the environment variable "
                    f"{UNPACKED_VARIABLE} to a larger number."
                )
            body = read(length + _FOOTER.size)
            if len(body) < length + _FOOTER.size:
                raise damaged(
                    "truncated", f"{len(body)} of {length + _FOOTER.size} bytes are there"
                )
            record = body[:length]
            if masked(crc32c(record)) != _FOOTER.unpack_from(body, length)[0]:
                raise damaged("corrupted", "the checksum of its bytes does not fit")
            yield record
            offset += _HEADER.size + len(body)
