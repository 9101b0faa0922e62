"""Reader of TensorFlow's tensor bundles: an index and data files of concatenated arrays.

The index `PREFIX.index` is a sorted table of entries (dtype, shape, data file, offset, size,
checksum). The data files are
`PREFIX.data-00000-of-00001` and so on. An array may be stored in slices, each with an entry of its
own in any of the
data files. Arrays and index have checksums; an error about damage names the file and the array.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.checkpoint.bundle_messages import BundleEntry, BundleHeader, Extents
from meshflow.checkpoint.slices import SlicedArray, encode_slice_key
from meshflow.checkpoint.sstable import read_table
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    UnimplementedError,
)
from meshflow.core.values import dtypes
from meshflow.environment.limits import STRING_BYTES, spend_load_budget
from meshflow.environment.protobuf_wire import decode_varint
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.contained_files import check_contained
from meshflow.files.crc32c import crc32c, mask_checksum
from meshflow.files.paths import is_remote, to_path_string, translate_errors

STRING_DTYPE = dtypes.string.as_datatype_enum
# Quantized dtypes of TensorFlow by their enum value, read as plain integers.
_QUANTIZED: dict[int, np.dtype] = {
    11: np.dtype("int8"),
    12: np.dtype("uint8"),
    13: np.dtype("int32"),
}
_QUANTIZED |= {15: np.dtype("int16"), 16: np.dtype("uint16")}
# Another process may replace a checkpoint while this one opens it, so reading the index is retried.
_MAX_OPEN_ATTEMPTS = 3


def get_index_path(prefix: StrPath) -> str:
    """Return the path of the index of a bundle.

    Args:
      prefix: Path of the bundle.
    """
    return f"{to_path_string(prefix)}.index"


def get_data_path(prefix: StrPath, shard: int, shards: int) -> str:
    """Return the path of a data file of a bundle.

    Args:
      prefix: Path of the bundle.
      shard: Index of the data file.
      shards: Number of data files.
    """
    return f"{to_path_string(prefix)}.data-{shard:05d}-of-{shards:05d}"


def is_bundle(prefix: StrPath) -> bool:
    """Check whether a bundle's index, intact or damaged, exists at a path.

    Meshflow's older checkpoints have a JSON text under the same name.

    Args:
      prefix: Path that was passed to `write_bundle`.
    """
    path = get_index_path(prefix)
    if not gfile.exists(path) or gfile.isdir(path):
        return False
    with gfile.GFile(check_contained(path, os.path.dirname(path)), "rb") as file:
        return not file.read(1).startswith(b"{")


def make_missing_error(path: StrPath) -> NotFoundError:
    """Return the error for a path that has no checkpoint."""
    return NotFoundError(
        f"Error when restoring from checkpoint or SavedModel at {path}: it does not exist. Please double-check that the "
        "path is correct: you may be missing the suffix (such as the '-1' in 'path/to/ckpt-1')."
    )


def count_shards(prefix: StrPath) -> int:
    """Return the number of data files of a bundle, 0 if it has no intact index.

    Args:
      prefix: Path of the bundle.
    """
    try:
        with gfile.GFile(get_index_path(prefix), "rb") as file:
            return _parse_index(file.read())[0].shards
    except (NotFoundError, FailedPreconditionError, ValueError):
        return 0


def _parse_index(data: bytes) -> tuple[BundleHeader, list[tuple[bytes, bytes]]]:
    items = list(read_table(data))
    if not items or items[0][0] != b"":
        raise ValueError("it has no header")
    header = BundleHeader.decode(items[0][1])
    if header.shards < 1:
        raise ValueError("it has no data files")
    return header, items[1:]


class BundleReader:
    """Reader of a bundle, array by array.

    Args:
      prefix: Path of the bundle, without the suffix of a file.
      folder: Folder that contains the files of the bundle. Default: the folder of the prefix.

    Attributes:
      path: The path.
      entries: Name of the dtype and shape of each array, by key.

    Raises:
      NotFoundError: If there is no bundle at the path.
      DataLossError: If the index or a data file is damaged, truncated or missing. The message names
        the file.

    Example:
      >>> import os, tempfile
      >>> from meshflow.checkpoint.bundle_writer import write_bundle
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write_bundle(os.path.join(folder, "b"), {"w": np.arange(3)})
      ...     bundle = BundleReader(os.path.join(folder, "b"))
      ...     bundle.entries["w"]["shape"], bundle.read("w").tolist()
      ([3], [0, 1, 2])
    """

    def __init__(self, prefix: StrPath, folder: str | None = None) -> None:
        self.path = to_path_string(prefix)
        self._folder = os.path.dirname(self.path) if folder is None else folder
        for attempt in range(_MAX_OPEN_ATTEMPTS):
            content = self._read_index_file()
            try:
                self._load_index(content)
                return
            except DataLossError:
                if attempt == _MAX_OPEN_ATTEMPTS - 1 or content == self._read_index_file():
                    raise

    def _read_index_file(self) -> bytes:
        try:
            path = check_contained(get_index_path(self.path), self._folder)
            with gfile.GFile(path, "rb") as file:
                return file.read()
        except NotFoundError:
            raise make_missing_error(self.path) from None

    def _load_index(self, content: bytes) -> None:
        self._entries: dict[str, BundleEntry] = {}
        self._slices: dict[bytes, BundleEntry] = {}
        try:
            header, items = _parse_index(content)
            for key, value in items:
                if key.startswith(b"\0"):
                    self._slices[key] = BundleEntry.decode(value)
                else:
                    self._entries[key.decode()] = BundleEntry.decode(value)
        except (ValueError, OverflowError) as error:
            raise DataLossError(
                f"{get_index_path(self.path)} is damaged or is not a checkpoint: {error}."
            ) from None
        if header.big_endian or header.min_consumer > 1:
            raise UnimplementedError(
                f"{get_index_path(self.path)} was written on a big-endian machine or by a newer version of the format. "
                "Only little-endian bundles of version 1 can be read."
            )
        self._header = header
        self._files: dict[int, _DataFile] = {}
        for name, entry in [*self._entries.items(), *self._slices.items()]:
            if not entry.slices:
                self._open_data_file(entry, str(name))

    def _open_data_file(self, entry: BundleEntry, name: str) -> None:
        """Open the data file of an entry and check that the file contains all bytes of the entry."""
        count = self._header.shards
        if entry.shard >= count:
            raise self._make_index_error(
                name, f"its entry refers to data file {entry.shard} of {count}"
            )
        if entry.shard not in self._files:
            path = get_data_path(self.path, entry.shard, count)
            self._files[entry.shard] = _DataFile(check_contained(path, self._folder))
        file = self._files[entry.shard]
        if entry.offset + entry.size > file.size:
            raise DataLossError(
                f"{file.path} is truncated: {name} ends at byte {entry.offset + entry.size} of {file.size}."
            )

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Return a dictionary with name, dtype and shape of each array, by key."""
        return {
            name: {"name": name, "dtype": _format_dtype(e.dtype), "shape": list(e.shape)}
            for name, e in self._entries.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read_shareable(self, name: str) -> np.ndarray:
        """Return an array that must not be modified, in memory that device arrays may share.

        Args:
          name: Key of the array.

        Raises:
          NotFoundError, DataLossError, UnimplementedError: As in `read`.
        """
        return self._read(name, _DataFile.read_shareable)

    def read(self, name: str) -> np.ndarray:
        """Return an array. An array of strings has `bytes` objects as elements.

        Args:
          name: Key of the array.

        Raises:
          NotFoundError: If there is no such array.
          DataLossError: If it is damaged. The message names the array and the file.
          UnimplementedError: If its dtype is not supported.
        """
        return self._read(name, _DataFile.read)

    def _read(self, name: str, read_bytes: _BytesReader) -> np.ndarray:
        entry = self._get_entry(name)
        if entry.slices:
            return self._make_sliced_array(name, entry).read_all()
        return self._read_array(name, entry, read_bytes)

    def open(self, name: str) -> np.ndarray | SlicedArray:
        """Return an array that is read from its file where it is indexed.

        Args:
          name: Key of the array.

        Returns:
          An object with a shape and a dtype that can be indexed with slices.

        Raises:
          NotFoundError, DataLossError, UnimplementedError: As in `read`.
        """
        entry = self._get_entry(name)
        if entry.slices:
            return self._make_sliced_array(name, entry)
        return self._read_array(name, entry, _DataFile.map_entry)

    def _get_entry(self, name: str) -> BundleEntry:
        try:
            return self._entries[name]
        except KeyError:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.path}.") from None

    def _make_sliced_array(self, name: str, entry: BundleEntry) -> SlicedArray:
        def read_slice(extents: Extents) -> np.ndarray:
            stored = self._slices.get(encode_slice_key(name, extents))
            if stored is None or stored.dtype != entry.dtype or stored.slices:
                raise self._make_index_error(name, f"its slice {extents} is missing")
            shape = [n if n >= 0 else d for (_, n), d in zip(extents, entry.shape, strict=True)]
            if list(stored.shape) != shape:
                raise self._make_index_error(
                    name, f"its slice {extents} has the shape {stored.shape}"
                )
            return self._read_array(f"{name} (its slice {extents})", stored, _DataFile.read)

        dtype = self._get_dtype(name, entry)
        total_size = sum(file.size for file in self._files.values())
        if math.prod(entry.shape) * dtype.itemsize > total_size:
            raise self._make_index_error(
                name,
                f"{list(entry.shape)} values of {dtype} need more bytes than all data files have",
            )
        try:
            return SlicedArray(entry.shape, dtype, list(dict.fromkeys(entry.slices)), read_slice)
        except ValueError as error:
            raise self._make_index_error(name, str(error)) from None

    def _get_dtype(self, name: str, entry: BundleEntry) -> np.dtype:
        if entry.dtype in _QUANTIZED:
            return _QUANTIZED[entry.dtype]
        try:
            return dtypes.as_dtype(entry.dtype).dtype
        except TypeError:
            raise UnimplementedError(
                f"{name} in {self.path} has the dtype number {entry.dtype} of TensorFlow, which is not supported."
            ) from None

    def _read_array(self, name: str, entry: BundleEntry, read_bytes: _BytesReader) -> np.ndarray:
        dtype, file = self._get_dtype(name, entry), self._files[entry.shard]
        # An index may refer to the same bytes many times.
        num_strings = math.prod(entry.shape) if entry.dtype == STRING_DTYPE else 0
        spend_load_budget(entry.size + STRING_BYTES * num_strings, f"the array {name}")
        if entry.dtype == STRING_DTYPE:
            return self._parse_strings(name, entry, file.read(entry).tobytes())
        if math.prod(entry.shape) * dtype.itemsize != entry.size:
            raise self._make_index_error(
                name, f"{entry.size} bytes do not match {list(entry.shape)} values of {dtype}"
            )
        raw = read_bytes(file, entry) if entry.size else np.empty(0, np.uint8)
        if mask_checksum(crc32c(raw)) != entry.crc32c:
            raise self._make_checksum_error(name, file)
        return raw.view(dtype).reshape(entry.shape)

    def _parse_strings(self, name: str, entry: BundleEntry, data: bytes) -> np.ndarray:
        count, offset, lengths = math.prod(entry.shape), 0, []
        if count > len(data):
            raise self._make_index_error(name, f"{len(data)} bytes cannot hold {count} strings")
        try:
            for _ in range(count):
                length, offset = decode_varint(data, offset)
                lengths.append(length)
        except ValueError as error:
            raise self._make_index_error(name, str(error)) from None
        if offset + 4 + sum(lengths) != len(data):
            raise self._make_index_error(
                name, f"its {count} strings do not end at byte {len(data)}"
            )
        checksum = crc32c(data[offset:], crc32c(encode_lengths(lengths)))
        if mask_checksum(checksum) != entry.crc32c:
            raise self._make_checksum_error(name, self._files[entry.shard])
        offset += 4
        array = np.empty(count, object)
        for i, length in enumerate(lengths):
            array[i] = data[offset : offset + length]
            offset += length
        return array.reshape(entry.shape)

    def _make_checksum_error(self, name: str, file: _DataFile) -> DataLossError:
        return DataLossError(f"{file.path} is damaged: the checksum of {name} does not match.")

    def _make_index_error(self, name: str, reason: str) -> DataLossError:
        return DataLossError(f"{get_index_path(self.path)} is damaged: {name}: {reason}.")


def encode_lengths(lengths: list[int]) -> bytes:
    """Encode the lengths of strings as the start of their checksum: 4 bytes each, 8 bytes from 4 GiB.

    Args:
      lengths: Length of each string, in bytes.
    """
    return b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths)


def _format_dtype(enum: int) -> str:
    try:
        return dtypes.as_dtype(enum).name
    except TypeError:
        return str(_QUANTIZED.get(enum, f"TensorFlow's dtype number {enum}"))


class _DataFile:
    """Data file of a bundle.

    The file is open while its bundle is used, so deleting it meanwhile does not affect the reader.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            if is_remote(path):
                self._file = gfile.GFile(path, "rb")
                self.size = self._file.size()
                return
            with translate_errors(path):
                self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except NotFoundError:
            raise DataLossError(
                f"{path} is missing, which holds arrays of the checkpoint's index."
            ) from None
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def read_shareable(self, entry: BundleEntry) -> np.ndarray:
        """Read the bytes of an entry into memory that a device array may share."""
        return self.read(entry, transfers.allocate)

    def read(
        self, entry: BundleEntry, allocate: Callable[..., np.ndarray] = np.empty
    ) -> np.ndarray:
        """Read the bytes of an entry into an array that `make(shape, dtype)` allocates."""
        if is_remote(self.path):
            with self._lock:
                self._file.seek(entry.offset)
                raw = np.frombuffer(self._file.read(entry.size) if entry.size else b"", np.uint8)
                raw = raw.copy()
        else:
            raw = allocate((entry.size,), np.uint8)
            raw = raw[: self._fill(raw, entry.offset)]
        if raw.size != entry.size:
            raise DataLossError(f"{self.path} ended while it was read.")
        return raw

    def _fill(self, raw: np.ndarray, offset: int) -> int:
        num_read = 0
        with translate_errors(self.path):
            while num_read < raw.size:
                count = os.preadv(self._descriptor, [raw[num_read:].data], offset + num_read)
                if not count:
                    break
                num_read += count
        return num_read

    def map_entry(self, entry: BundleEntry) -> np.ndarray:
        """Map the bytes of an entry into memory; pages are read when they are used."""
        if is_remote(self.path):
            return self.read(entry)
        if not entry.size:
            return np.empty(0, np.uint8)
        # Each array has its own mapping, so its pages are freed together with the array.
        before = entry.offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(
            self._descriptor,
            before + entry.size,
            access=mmap.ACCESS_READ,
            offset=entry.offset - before,
        )
        return np.frombuffer(mapping, np.uint8, entry.size, before)


# Reads the bytes of an entry from its data file.
_BytesReader = Callable[[_DataFile, BundleEntry], np.ndarray]
