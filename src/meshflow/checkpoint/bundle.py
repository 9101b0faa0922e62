"""Reading TensorFlow's checkpoints, tensor bundles: an index, and data files with the arrays one after the other.

The index `PREFIX.index` is a sorted table of what lies where, the data files are `PREFIX.data-00000-of-00001` and
so on. An array may lie in parts, each with an entry of its own, in any of the files. All arrays and
the index have checksums; damage is reported with the file's name and the array's.
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

from meshflow.checkpoint.slices import SlicedArray, slice_key
from meshflow.checkpoint.table import read_table
from meshflow.checkpoint.wire import Entry, Extents, Header
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    UnimplementedError,
)
from meshflow.core.values import dtypes
from meshflow.environment.protobuf_wire import read_varint
from meshflow.files import gfile
from meshflow.files.crc32c import crc32c, masked
from meshflow.files.paths import is_remote, named_errors, text

__all__ = ["Bundle", "data_file", "index_file", "is_bundle", "shards_of"]

STRING = dtypes.string.as_datatype_enum
# Quantized numbers are read as the integers that they are.
_QUANTIZED: dict[int, np.dtype] = {
    11: np.dtype("int8"),
    12: np.dtype("uint8"),
    13: np.dtype("int32"),
}
_QUANTIZED |= {15: np.dtype("int16"), 16: np.dtype("uint16")}
# Another process may replace a checkpoint while it is opened.
_ATTEMPTS = 3


def index_file(prefix: Any) -> str:
    """The path of a bundle's index.

    Args:
      prefix: the bundle's path.
    """
    return f"{text(prefix)}.index"


def data_file(prefix: Any, shard: int, shards: int) -> str:
    """The path of one of a bundle's data files.

    Args:
      prefix: the bundle's path.
      shard: its number.
      shards: how many there are.
    """
    return f"{text(prefix)}.data-{shard:05d}-of-{shards:05d}"


def is_bundle(prefix: Any) -> bool:
    """Whether a bundle's index lies at a path, whole or damaged; our older checkpoints have a text there.

    Args:
      prefix: the path given to `write_bundle`.
    """
    path = index_file(prefix)
    if not gfile.exists(path) or gfile.isdir(path):
        return False
    with gfile.GFile(path, "rb") as file:
        return not file.read(1).startswith(b"{")


def shards_of(prefix: Any) -> int:
    """How many data files a bundle has; 0 where no whole index is.

    Args:
      prefix: the bundle's path.
    """
    try:
        with gfile.GFile(index_file(prefix), "rb") as file:
            return _header(file.read())[0].shards
    except (NotFoundError, FailedPreconditionError, ValueError):
        return 0


def _header(data: bytes) -> tuple[Header, list[tuple[bytes, bytes]]]:
    items = list(read_table(data))
    if not items or items[0][0] != b"":
        raise ValueError("it has no header")
    header = Header.decoded(items[0][1])
    if header.shards < 1:
        raise ValueError("it has no data files")
    return header, items[1:]


class Bundle:
    """Reads a bundle, array by array.

    Args:
      prefix: its path, without the ending of a file.

    Attributes:
      path: the path.
      entries: dtype's name and shape by key.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when the index or a data file is damaged, cut or missing, naming it.

    Example:
      >>> import os, tempfile
      >>> from meshflow.checkpoint.bundle_writer import write_bundle
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write_bundle(os.path.join(folder, "b"), {"w": np.arange(3)})
      ...     bundle = Bundle(os.path.join(folder, "b"))
      ...     bundle.entries["w"]["shape"], bundle.read("w").tolist()
      ([3], [0, 1, 2])
    """

    def __init__(self, prefix: Any) -> None:
        self.path = text(prefix)
        for attempt in range(_ATTEMPTS):
            content = self._index()
            try:
                self._read_index(content)
                return
            except DataLossError:
                if attempt == _ATTEMPTS - 1 or content == self._index():
                    raise

    def _index(self) -> bytes:
        try:
            with gfile.GFile(index_file(self.path), "rb") as file:
                return file.read()
        except NotFoundError:
            raise NotFoundError(
                f"Failed to find a checkpoint at {self.path}. Please double-check that the path is "
                "correct: you may be missing the suffix (such as the '-1' in 'path/to/ckpt-1')."
            ) from None

    def _read_index(self, content: bytes) -> None:
        self._entries: dict[str, Entry] = {}
        self._slices: dict[bytes, Entry] = {}
        try:
            header, items = _header(content)
            for key, value in items:
                if key.startswith(b"\0"):
                    self._slices[key] = Entry.decoded(value)
                else:
                    self._entries[key.decode()] = Entry.decoded(value)
        except (ValueError, OverflowError) as error:
            raise DataLossError(
                f"{index_file(self.path)} is damaged, or no checkpoint: {error}."
            ) from None
        if header.big_endian or header.min_consumer > 1:
            raise UnimplementedError(
                f"{index_file(self.path)} was written by a machine or a version whose numbers are not read here."
            )
        self._header = header
        self._files: dict[int, _DataFile] = {}
        for name, entry in [*self._entries.items(), *self._slices.items()]:
            if not entry.slices:
                self._place(entry, str(name))

    def _place(self, entry: Entry, name: str) -> None:
        """Opens the file of an entry, which must reach as far as it says."""
        count = self._header.shards
        if entry.shard >= count:
            raise self._damaged(name, f"it is said to lie in file {entry.shard} of {count}")
        if entry.shard not in self._files:
            self._files[entry.shard] = _DataFile(data_file(self.path, entry.shard, count))
        file = self._files[entry.shard]
        if entry.offset + entry.size > file.size:
            raise DataLossError(
                f"{file.path} is cut: {name} ends at byte {entry.offset + entry.size} of {file.size}."
            )

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Dtype and shape by name."""
        return {
            name: {"name": name, "dtype": _dtype_name(e.dtype), "shape": list(e.shape)}
            for name, e in self._entries.items()
        }

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype's name of an array.

        Args:
          name: its key; errors as in `read`.
        """
        entry = self._entry(name)
        return entry.shape, _dtype_name(entry.dtype)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def lent(self, name: str) -> np.ndarray:
        """An array that nobody may change, so that devices may share its memory.

        Args:
          name: its key; errors as in `read`.
        """
        return self._read(name, _DataFile.lent)

    def read(self, name: str) -> np.ndarray:
        """An array; strings are an array of bytes objects.

        Args:
          name: its key.

        Raises:
          NotFoundError: when there is none.
          DataLossError: when it is damaged, naming it and its file.
          UnimplementedError: for a dtype that no array here has.
        """
        return self._read(name, _DataFile.read)

    def _read(self, name: str, source: _Source) -> np.ndarray:
        entry = self._entry(name)
        if entry.slices:
            return self._sliced(name, entry).whole()
        return self._array(name, entry, source)

    def open(self, name: str) -> Any:
        """An array that is read from its file where it is used: it has a shape and a dtype, and takes slices.

        Args:
          name: its key; errors as in `read`.
        """
        entry = self._entry(name)
        if entry.slices:
            return self._sliced(name, entry)
        return self._array(name, entry, _DataFile.mapped)

    def _entry(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.path}.") from None

    def _sliced(self, name: str, entry: Entry) -> SlicedArray:
        def part(extents: Extents) -> np.ndarray:
            found = self._slices.get(slice_key(name, extents))
            if found is None or found.dtype != entry.dtype or found.slices:
                raise self._damaged(name, f"its part {extents} is missing")
            shape = [n if n >= 0 else d for (_, n), d in zip(extents, entry.shape, strict=True)]
            if list(found.shape) != shape:
                raise self._damaged(name, f"its part {extents} has the shape {found.shape}")
            return self._array(f"{name} (its part {extents})", found, _DataFile.read)

        dtype = self._dtype(name, entry)
        held = sum(file.size for file in self._files.values())
        if math.prod(entry.shape) * dtype.itemsize > held:
            raise self._damaged(
                name, f"{list(entry.shape)} of {dtype} are more than all files hold"
            )
        try:
            return SlicedArray(entry.shape, dtype, list(dict.fromkeys(entry.slices)), part)
        except ValueError as error:
            raise self._damaged(name, str(error)) from None

    def _dtype(self, name: str, entry: Entry) -> np.dtype:
        if entry.dtype in _QUANTIZED:
            return _QUANTIZED[entry.dtype]
        try:
            return dtypes.as_dtype(entry.dtype).dtype
        except TypeError:
            raise UnimplementedError(
                f"{name} in {self.path} has TensorFlow's dtype number {entry.dtype}, which is not read here."
            ) from None

    def _array(self, name: str, entry: Entry, source: _Source) -> np.ndarray:
        dtype, file = self._dtype(name, entry), self._files[entry.shard]
        if entry.dtype == STRING:
            return self._strings(name, entry, file.read(entry).tobytes())
        if math.prod(entry.shape) * dtype.itemsize != entry.size:
            raise self._damaged(name, f"{entry.size} bytes are no {list(entry.shape)} of {dtype}")
        raw = source(file, entry) if entry.size else np.empty(0, np.uint8)
        if masked(crc32c(raw)) != entry.crc32c:
            raise self._mismatch(name, file)
        return raw.view(dtype).reshape(entry.shape)

    def _strings(self, name: str, entry: Entry, data: bytes) -> np.ndarray:
        count, at, lengths = math.prod(entry.shape), 0, []
        if count > len(data):
            raise self._damaged(name, f"{len(data)} bytes hold no {count} strings")
        try:
            for _ in range(count):
                length, at = read_varint(data, at)
                lengths.append(length)
        except ValueError as error:
            raise self._damaged(name, str(error)) from None
        if at + 4 + sum(lengths) != len(data):
            raise self._damaged(name, f"{count} strings do not end at byte {len(data)}")
        checksum = crc32c(data[at:], crc32c(length_bytes(lengths)))
        if masked(checksum) != entry.crc32c:
            raise self._mismatch(name, self._files[entry.shard])
        at += 4
        array = np.empty(count, object)
        for i, length in enumerate(lengths):
            array[i] = data[at : at + length]
            at += length
        return array.reshape(entry.shape)

    def _mismatch(self, name: str, file: _DataFile) -> DataLossError:
        return DataLossError(f"{file.path} is damaged: the checksum of {name} does not match.")

    def _damaged(self, name: str, why: str) -> DataLossError:
        return DataLossError(f"{index_file(self.path)} is damaged: {name}: {why}.")


def length_bytes(lengths: list[int]) -> bytes:
    """What the checksum of strings begins with: their lengths in four bytes each, in eight for long ones.

    Args:
      lengths: of each string.
    """
    return b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths)


def _dtype_name(number: int) -> str:
    try:
        return dtypes.as_dtype(number).name
    except TypeError:
        return str(_QUANTIZED.get(number, f"TensorFlow's number {number}"))


class _DataFile:
    """A data file, open for as long as its bundle is used: whoever deletes it meanwhile does no harm."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            if is_remote(path):
                self._file = gfile.GFile(path, "rb")
                self.size = self._file.size()
                return
            with named_errors(path):
                self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except NotFoundError:
            raise DataLossError(f"{path} is missing, in which arrays of the index lie.") from None
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def lent(self, entry: Entry) -> np.ndarray:
        """The bytes of an entry, in memory that a device may share."""
        return self.read(entry, transfers.fresh)

    def read(self, entry: Entry, make: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
        """The bytes of an entry, in an array that is made for them."""
        if is_remote(self.path):
            with self._lock:
                self._file.seek(entry.offset)
                raw = np.frombuffer(self._file.read(entry.size) if entry.size else b"", np.uint8)
                raw = raw.copy()
        else:
            raw = make((entry.size,), np.uint8)
            raw = raw[: self._fill(raw, entry.offset)]
        if raw.size != entry.size:
            raise DataLossError(f"{self.path} ended while it was read.")
        return raw

    def _fill(self, raw: np.ndarray, offset: int) -> int:
        done = 0
        with named_errors(self.path):
            while done < raw.size:
                got = os.preadv(self._descriptor, [raw[done:].data], offset + done)
                if not got:
                    break
                done += got
        return done

    def mapped(self, entry: Entry) -> np.ndarray:
        """The bytes of an entry, which are read where they are used."""
        if is_remote(self.path):
            return self.read(entry)
        if not entry.size:
            return np.empty(0, np.uint8)
        # A mapping of its own: what was read of it leaves memory with the array.
        before = entry.offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(
            self._descriptor,
            before + entry.size,
            access=mmap.ACCESS_READ,
            offset=entry.offset - before,
        )
        return np.frombuffer(mapping, np.uint8, entry.size, before)


# How the bytes of an entry are got.
_Source = Callable[[_DataFile, Entry], np.ndarray]
