"""File format of journals: a header, and records with checksums.

docs/parameter_servers/failures.md has tables of their fields. The checksum of a record's header
distinguishes a file that ends early from a damaged length. A process that is killed during a write
leaves a part of the last record, which is ignored. All other differences are a `DataLossError` with
the path and the offset of the record.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.files.crc32c import crc32c
from meshflow.files.storage import Storage, StorageFile, open_file

MAGIC, VERSION = b"MFJRNL\r\n", 1
KINDS = {"snapshot": 1, "log": 2}
# Headers of a file and of a record; a checksum follows each.
_FILE_HEADER, _RECORD_HEADER = struct.Struct("<8sHHQ"), struct.Struct("<QQII")
_CHECKSUM, _LENGTH = struct.Struct("<I"), struct.Struct("<Q")
_FILE_HEADER_BYTES = _FILE_HEADER.size + _CHECKSUM.size
_RECORD_HEADER_BYTES = _RECORD_HEADER.size + _CHECKSUM.size
# Smaller records are written by one call.
_MAX_JOINED_BYTES = 1 << 17
_CHUNK_BYTES = 1 << 20

_logger = logging.getLogger("meshflow")


@dataclass(frozen=True)
class FileRecord:
    """A record of a file.

    Attributes:
      index: Index in the file.
      end: Offset after its last byte.
      body: The body, usually a pickle.
      arrays: The bytes of the arrays.
    """

    index: int
    end: int
    body: bytes
    arrays: list[np.ndarray]


class DamagedFileError(DataLossError):
    """A file of a journal is damaged.

    Args:
      path: Path of the file.
      offset: Offset of the first damaged record, before which all bytes are valid.
      reason: Description of the damage.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at offset {offset}: {reason}. `meshflow journal recover` copies the records "
            "before this offset; or restart the job from a checkpoint, with another backup_dir."
        )
        self.path, self.offset = path, offset

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str]]:
        return DataLossError, (str(self),)


def pack_header(kind: str, generation: int) -> bytes:
    """Return the header of a file.

    Args:
      kind: "snapshot" or "log".
      generation: Number in the name of the file.
    """
    return _append_checksum(_FILE_HEADER.pack(MAGIC, VERSION, KINDS[kind], generation))


def _append_checksum(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(crc32c(data))


def pack_record(index: int, body: bytes, arrays: Sequence[memoryview] = ()) -> list[memoryview]:
    """Return the bytes of a record, in one or several parts.

    Args:
      index: Index of the record in its file.
      body: The body.
      arrays: The bytes of arrays.
    """
    sizes = [a.nbytes for a in arrays]
    lengths = struct.pack(f"<{len(sizes)}Q", *sizes)
    num_bytes = len(lengths) + len(body) + sum(sizes)
    if num_bytes <= _MAX_JOINED_BYTES:
        payload = b"".join((lengths, body, *arrays))
        header = _RECORD_HEADER.pack(index, num_bytes, len(sizes), crc32c(payload))
        return [memoryview(_append_checksum(header) + payload)]
    start = lengths + body
    checksum = crc32c(start)
    for array in arrays:
        if array.nbytes:
            checksum = crc32c(np.frombuffer(array, np.uint8), checksum)
    header = _append_checksum(_RECORD_HEADER.pack(index, num_bytes, len(sizes), checksum))
    return [memoryview(header + start), *(memoryview(a).cast("B") for a in arrays if a.nbytes)]


def write_all(file: StorageFile, parts: Sequence[memoryview]) -> int:
    """Write bytes completely, and return their number.

    Args:
      file: The file.
      parts: The bytes.
    """
    num_bytes = 0
    for part in parts:
        num_bytes += part.nbytes
        view = part
        while view:
            view = view[file.write(view) or 0 :]
    return num_bytes


def read_records(
    storage: Storage, path: str, kind: str, end: int | None = None
) -> Iterator[FileRecord]:
    """Yield the records of a file. An incomplete record at its end is ignored with a warning.

    Args:
      storage: Storage of the file.
      path: Path of the file, with the generation as its suffix.
      kind: "snapshot" or "log".
      end: Offset at which to stop; None for the end of the file.

    Raises:
      DamagedFileError: If the file is damaged, or of another version.
    """
    size = storage.get_size(path)
    with open_file(storage, path, "rb") as file:
        reader = _RecordReader(path, file, size if end is None else end)
        if size < (end or 0):
            raise DamagedFileError(path, size, f"it has {size} bytes, expected at least {end}")
        if not reader.read_header(kind):
            return
        while (record := reader.read_record()) is not None:
            yield record


class _RecordReader:
    """Reader of one file, from start to end.

    Args:
      path: Path of the file.
      file: The file.
      size: Number of bytes to read.
    """

    def __init__(self, path: str, file: StorageFile, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._offset = self._index = 0

    def _fail(self, reason: str) -> DamagedFileError:
        return DamagedFileError(self._path, self._offset, reason)

    def _fail_short(self) -> DamagedFileError:
        return self._fail("it became shorter while it was read")

    def _read(self, size: int) -> bytes:
        data = self._file.read(size) or b""
        if len(data) < size:
            raise self._fail_short()
        return data

    def read_header(self, kind: str) -> bool:
        """Check the header of the file. Return False if the file ends in it."""
        data = self._read(min(self._size, _FILE_HEADER_BYTES))
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise self._fail(
                "it has no magic number, or was written by an older version of Meshflow"
            )
        if len(data) < _FILE_HEADER_BYTES:
            self._warn_incomplete()
            return False
        _, version, found_kind, generation = _FILE_HEADER.unpack_from(data)
        if data != _append_checksum(data[: _FILE_HEADER.size]):
            raise self._fail("the checksum of its header does not match")
        if version != VERSION:
            raise self._fail(f"its format has version {version}, expected {VERSION}")
        if (KINDS[kind], str(generation)) != (found_kind, self._path.rpartition(".")[2]):
            raise self._fail(f"it is file {generation} of kind {found_kind}, contrary to its name")
        self._offset = _FILE_HEADER_BYTES
        return True

    def read_record(self) -> FileRecord | None:
        """Return the next record, or None at the end of the file."""
        remaining = self._size - self._offset
        if remaining < _RECORD_HEADER_BYTES:
            self._warn_incomplete()
            return None
        header = self._read(_RECORD_HEADER_BYTES)
        index, num_bytes, num_arrays, checksum = _RECORD_HEADER.unpack_from(header)
        if header != _append_checksum(header[: _RECORD_HEADER.size]):
            if self._has_only_zeros(header, remaining - len(header)):
                # The file system has extended the file, but lost the data in a power failure.
                self._warn_incomplete()
                return None
            raise self._fail(f"the checksum of the header of record {self._index} does not match")
        if index != self._index:
            raise self._fail(f"record {index} follows record {self._index - 1}")
        if num_bytes > remaining - len(header):
            self._warn_incomplete()
            return None
        record = self._read_payload(num_bytes, num_arrays, checksum)
        self._offset, self._index = record.end, index + 1
        return record

    def _read_payload(self, num_bytes: int, num_arrays: int, checksum: int) -> FileRecord:
        if _LENGTH.size * num_arrays > num_bytes:
            raise self._fail(f"record {self._index} is too short for {num_arrays} arrays")
        lengths_data = self._read(_LENGTH.size * num_arrays)
        lengths = [length for (length,) in _LENGTH.iter_unpack(lengths_data)]
        body_bytes = num_bytes - len(lengths_data) - sum(lengths)
        if body_bytes < 0:
            raise self._fail(f"the arrays of record {self._index} exceed it")
        body = self._read(body_bytes)
        found = crc32c(lengths_data + body)
        arrays = [self._read_array(length) for length in lengths]
        for array in arrays:
            found = crc32c(array, found)
        if found != checksum:
            raise self._fail(f"the checksum of record {self._index} does not match")
        end = self._offset + _RECORD_HEADER_BYTES + num_bytes
        return FileRecord(self._index, end, body, arrays)

    def _read_array(self, size: int) -> np.ndarray:
        array = np.empty(size, np.uint8)
        count = 0
        while count < size:
            new = self._file.readinto(array[count:].data)
            if not new:
                raise self._fail_short()
            count += new
        return array

    def _has_only_zeros(self, header: bytes, remaining: int) -> bool:
        data = header
        while not data.strip(b"\0"):
            if not remaining:
                return True
            data = self._read(min(remaining, _CHUNK_BYTES))
            remaining -= len(data)
        return False

    def _warn_incomplete(self) -> None:
        if self._offset < self._size:
            _logger.warning(
                "%s: ignored an incomplete record of %d bytes at offset %d, which was not acknowledged.",
                self._path,
                self._size - self._offset,
                self._offset,
            )
