"""Record files: byte strings with their lengths and checksums.

A record consists of its length (8 bytes, little-endian), the masked CRC-32C of the length, the
bytes, and their masked CRC-32C. TensorFlow documents the format at `tf.io.TFRecordWriter`.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from typing import IO, Any

from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidValueError,
    ResourceExhaustedError,
)
from meshflow.environment.limits import UNPACKED_VARIABLE, get_unpacked_limit
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import AtomicFile
from meshflow.files.crc32c import crc32c, mask_checksum
from meshflow.files.gfile import GFile
from meshflow.files.paths import to_path_string as path_text
from meshflow.files.paths import translate_full_disk_error

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_COMPRESSIONS = ("", "GZIP", "ZLIB")
# Longer records are read in chunks of this size.
_CHUNK_BYTES = 1 << 20


def parse_compression(value: Any) -> str:
    """Return the compression ('', 'GZIP' or 'ZLIB') of options, a name, a TensorFlow 1 code, or None.

    Raises:
      ValueError: The compression is unknown.
    """
    if isinstance(value, TFRecordOptions):
        value = value.compression_type
    if hasattr(value, "numpy"):
        value = value.numpy().decode()
    if isinstance(value, int) and 0 <= value < len(_COMPRESSIONS):
        # TensorFlow 1 has the codes 0 (none), 1 (ZLIB) and 2 (GZIP).
        value = ("", "ZLIB", "GZIP")[value]
    text = value or ""
    if text not in _COMPRESSIONS:
        raise InvalidValueError(
            f"Unsupported compression_type: {value!r}; expected '', 'GZIP' or 'ZLIB'."
        )
    return text


class TFRecordOptions:
    """Compression settings of a record file.

    Args:
      compression_type: '', 'GZIP' or 'ZLIB'.
      flush_mode: Ignored.
      input_buffer_size: Ignored.
      output_buffer_size: Ignored.
      window_bits: Logarithm of the window size, 9 to 15.
      compression_level: 0 to 9; higher levels compress better, but more slowly.
      compression_method: Ignored.
      mem_level: 1 to 9; higher levels use more memory.
      compression_strategy: 0 to 3, as in `zlib`.

    Raises:
      ValueError: The compression is unknown.

    Example:
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/data"
      >>> with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions("GZIP")) as writer:
      ...     writer.write(b"a record")
      >>> [r.numpy() for r in tf.data.TFRecordDataset(path, compression_type="GZIP")]
      [b'a record']
    """

    def __init__(
        self,
        compression_type: TFRecordOptions | str | None = None,
        flush_mode: int | None = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> None:
        self.compression_type = parse_compression(compression_type)
        self.flush_mode = flush_mode
        self.input_buffer_size = input_buffer_size
        self.output_buffer_size = output_buffer_size
        self.window_bits = window_bits
        self.compression_level = compression_level
        self.compression_method = compression_method
        self.mem_level = mem_level
        self.compression_strategy = compression_strategy

    @classmethod
    def get_compression_type_string(cls, options: TFRecordOptions | str | None) -> str:
        """Return '', 'GZIP' or 'ZLIB'.

        Args:
          options: Options, a name, or None.
        """
        return parse_compression(options)


class TFRecordWriter:
    """Writer of a record file.

    Args:
      path: Path of the file, which appears when the writer is closed or flushed.
      options: `TFRecordOptions`, 'GZIP' or 'ZLIB', or None.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "a.tfrecord")
      >>> with tf.io.TFRecordWriter(path) as writer:
      ...     writer.write(b"one")
      ...     writer.write(b"two")
      >>> [r.numpy() for r in tf.data.TFRecordDataset(path)]
      [b'one', b'two']
    """

    def __init__(self, path: StrPath, options: TFRecordOptions | str | None = None) -> None:
        self._path = path_text(path)
        settings = options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)
        self._compressor: Any = None
        if settings.compression_type:
            bits = 15 if settings.window_bits is None else abs(settings.window_bits)
            self._compressor = zlib.compressobj(
                -1 if settings.compression_level is None else settings.compression_level,
                zlib.DEFLATED,
                bits + 16 if settings.compression_type == "GZIP" else bits,
                zlib.DEF_MEM_LEVEL if settings.mem_level is None else settings.mem_level,
                settings.compression_strategy or zlib.Z_DEFAULT_STRATEGY,
            )
        self._file: AtomicFile | None = AtomicFile(self._path)
        # Garbage collection, or the end of the program, closes a writer that is still open.
        self._finalize = weakref.finalize(self, _commit_file, self._file, self._compressor)

    def write(self, record: Any) -> None:
        """Append a record.

        Args:
          record: Bytes of the record.

        Raises:
          TypeError: The record is not bytes or text.
          FailedPreconditionError: The writer is closed.
        """
        if self._file is None:
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
        self._write_bytes(length + _FOOTER.pack(mask_checksum(crc32c(length))))
        self._write_bytes(record + _FOOTER.pack(mask_checksum(crc32c(record))))

    def _write_bytes(self, data: bytes) -> None:
        assert self._file is not None
        with translate_full_disk_error(self._path):
            self._file.file.write(self._compressor.compress(data) if self._compressor else data)

    def flush(self) -> None:
        """Write buffered records to the file and make it visible under its path."""
        if self._file is None:
            raise FailedPreconditionError(f"{self._path}: the writer is closed.")
        if self._compressor:
            self._file.file.write(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self._file.publish()

    def close(self) -> None:
        """Close the file and make it visible under its path."""
        if self._file is not None:
            self._file = None
            self._finalize()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _commit_file(file: AtomicFile, compressor: Any) -> None:
    if compressor:
        file.file.write(compressor.flush())
    file.commit()


class _ZlibReader(io.RawIOBase):
    """Raw stream that decompresses a zlib file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._inflate = file, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and not self._inflate.eof:
            compressed = self._inflate.unconsumed_tail or self._file.read(1 << 16)
            if not compressed:
                raise EOFError("the compressed file ends early")
            data = self._inflate.decompress(compressed, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_decompressed(
    path: str, compression: Any = None, buffer_size: int | None = None
) -> IO[bytes] | Any:
    """Open a file for reading, with decompression.

    Args:
      path: Path of the file.
      compression: '', 'GZIP' or 'ZLIB'.
      buffer_size: Number of bytes to read at once.

    Raises:
      ValueError: The compression is unknown.
    """
    kind = parse_compression(compression)
    size = buffer_size if buffer_size and buffer_size > 1 else 1 << 18
    if "://" in path:
        file = GFile(path, "rb")._open()
    else:
        # The caller closes the file.
        file = open(path, "rb", buffering=size)  # noqa: SIM115
    if kind == "GZIP":
        return io.BufferedReader(gzip.GzipFile(fileobj=file, mode="rb"), size)
    return io.BufferedReader(_ZlibReader(file), size) if kind == "ZLIB" else file


def read_records(
    path: StrPath, compression: Any = None, buffer_size: int | None = None
) -> Iterator[bytes]:
    """Yield the records of a file.

    Args:
      path: Path of the file.
      compression: '', 'GZIP' or 'ZLIB'.
      buffer_size: Number of bytes to read at once.

    Raises:
      DataLossError: A record is damaged; the message contains the file and the offset.
      ResourceExhaustedError: A record exceeds the limit for decompressed data.
    """
    path, offset, kind = os.fspath(path), 0, parse_compression(compression)
    with open_decompressed(path, compression, buffer_size) as file:

        def make_error(problem: str, reason: str) -> DataLossError:
            inside = " of the decompressed content" if kind else ""
            return DataLossError(f"{path}: {problem} record at byte {offset}{inside}: {reason}.")

        def read_bytes(size: int) -> bytes:
            try:
                if size <= _CHUNK_BYTES:
                    return file.read(size)
                # A damaged file that declares a huge length must not exhaust the memory.
                chunks = []
                while size and (chunk := file.read(min(size, _CHUNK_BYTES))):
                    chunks.append(chunk)
                    size -= len(chunk)
                return b"".join(chunks)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise make_error("corrupted", f"it cannot be decompressed ({error})") from None

        # The header of the next record is read with a record, unless decompressing it could fail.
        ahead = 0 if kind else _HEADER.size
        header = read_bytes(_HEADER.size)
        while header:
            if len(header) < _HEADER.size:
                raise make_error("truncated", f"only {len(header)} bytes of its header exist")
            length, checksum = _HEADER.unpack(header)
            if mask_checksum(crc32c(header[:8])) != checksum:
                hint = "" if offset else "; check the format and the compression_type of the file"
                raise make_error("corrupted", f"the checksum of its length does not match{hint}")
            if (
                kind
                and length > _CHUNK_BYTES
                and length > (limit := get_unpacked_limit(gfile.stat(path).length))
            ):
                raise ResourceExhaustedError(
                    f"{path}: the record at byte {offset} of the decompressed content has {length:,} bytes, more "
                    f"than the limit of {limit:,}. If you trust the file, set the environment variable "
                    f"{UNPACKED_VARIABLE} to a larger number."
                )
            size = length + _FOOTER.size
            body = read_bytes(size + ahead)
            if len(body) < size:
                raise make_error("truncated", f"only {len(body)} of {size} bytes exist")
            record = body[:length]
            if mask_checksum(crc32c(record)) != _FOOTER.unpack_from(body, length)[0]:
                raise make_error("corrupted", "the checksum of its bytes does not match")
            yield record
            offset += _HEADER.size + size
            header = body[size:] if ahead else read_bytes(_HEADER.size)
