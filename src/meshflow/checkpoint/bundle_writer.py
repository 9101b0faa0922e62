"""Writing tensor bundles, so that a program killed at any moment leaves the one before or the new one.

Data files are written under other names and renamed when they are whole; the index, renamed last, makes them a
checkpoint. What replaces a bundle has another number of data files and so other names, and the old
ones are deleted when the new index is there. Where devices hold parts of an array, each part is written
by itself, and where processes do, each writes a data file and the first brings their entries together. What lies in
files of a mesh is read when its turn comes: no two arrays are in the host's memory at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import jax
import ml_dtypes  # noqa: F401  registers bfloat16 and others with NumPy
import numpy as np
from jax.experimental import multihost_utils

from meshflow.checkpoint.bundle import STRING, data_file, index_file, length_bytes, shards_of
from meshflow.checkpoint.slices import Parts, extents_of, slice_key
from meshflow.checkpoint.table import read_table, write_table
from meshflow.checkpoint.wire import Entry, Extents, Header
from meshflow.core.runtime.device_to_host import own_parts, read
from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.core.values import dtypes
from meshflow.environment.protobuf_wire import varint
from meshflow.files import gfile
from meshflow.files.crc32c import crc32c, masked
from meshflow.files.flushing import Flushing
from meshflow.files.parts import clear_parts
from meshflow.files.paths import is_remote, parent, text
from meshflow.files.replacing import replacing
from meshflow.placement.file_store import FileArray

__all__ = [
    "clear_bundle",
    "held_apart",
    "in_memory",
    "is_split",
    "remove_bundle",
    "write_bundle",
    "write_files",
]

# What is written at once, so that its checksum is computed while the processor has it at hand.
_PIECE = 4 << 20
_DATA = re.compile(r"\.data-\d{5,}-of-(\d{5,})")
_ENTRIES = ".entries"

_Items = list[tuple[bytes, bytes]]


def write_bundle(prefix: Any, values: Mapping[str, Any]) -> None:
    """Writes arrays, completely or not at all.

    Where an array is split over several processes, all of them call this with the same names, and the path is
    one that all can reach.

    Args:
      prefix: the bundle's path: files get it with endings; one that is there is replaced.
      values: arrays by key: of NumPy, of JAX, `Parts`, in files, or what makes a NumPy array; arrays of bytes or text are
        strings.

    Raises:
      InvalidArgumentError: for an array that no bundle holds, naming it.
      ResourceExhaustedError, PermissionDeniedError, ...: when the disk is full and so on, naming the
        file. What was there before is there still, after any error.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write_bundle(os.path.join(folder, "b"), {"w": np.zeros(3), "name": np.array(b"tea")})
      ...     sorted(os.listdir(folder))
      ['b.data-00000-of-00001', 'b.index']
    """
    target = text(prefix)
    apart = held_apart(values.values())
    process, count = (jax.process_index(), jax.process_count()) if apart else (0, 1)
    if apart and is_remote(target):
        raise UnimplementedError(
            f"{target}: arrays that are split over several processes are written to disks only: "
            "save to a folder that all processes share."
        )
    before = shards_of(target) if process == 0 else 0
    shards = count + (before == count)
    if apart:
        shards = int(multihost_utils.broadcast_one_to_all(np.int32(shards)))
    items = _write_data(target, values, process, shards, apart)
    if process:
        with replacing(data_file(target, process, shards) + _ENTRIES) as file:
            write_table(file, sorted(items))
    if apart:
        multihost_utils.sync_global_devices(f"{target} written")
    if process == 0:
        for other in range(1, count):
            items += _taken(data_file(target, other, shards) + _ENTRIES)
        for empty in range(count, shards):
            with replacing(data_file(target, empty, shards)):
                pass
        _write_index(target, items, shards, before)
    if apart:
        multihost_utils.sync_global_devices(f"{target} done")


def write_files(prefix: Any, files: Sequence[Mapping[str, Any]]) -> None:
    """Writes arrays of one process, completely or not at all, in the data files that they are to lie in.

    Args:
      prefix: as in `write_bundle`, errors too.
      files: for each file its arrays by key, whole or, in one file or several, in `Parts`.
    """
    target = text(prefix)
    before = shards_of(target)
    shards = len(files) + (before == len(files))
    items: _Items = []
    parts: dict[str, Parts] = {}
    for shard, values in enumerate([*files, {}][:shards]):
        with replacing(data_file(target, shard, shards)) as file, Flushing(file) as flushing:
            items += _put_all(_Data(file, shard, flushing), values)
        for name, value in values.items():
            if isinstance(value, Parts):
                parts.setdefault(name, Parts(value.shape, [])).parts.extend(value.parts)
    items += [(name.encode(), _whole(name, value).encoded()) for name, value in parts.items()]
    _write_index(target, items, shards, before)


def _put_all(data: _Data, values: Mapping[str, Any]) -> _Items:
    """Writes arrays and parts of arrays; gives their entries."""
    pieces = []
    for name, value in values.items():
        if isinstance(value, Parts):
            pieces += [(slice_key(name, extents), name, part) for extents, part in value.parts]
        else:
            pieces.append((name.encode(), name, value))
    return [(key, data.put(name, value).encoded()) for key, name, value in pieces]


def _write_index(target: str, items: _Items, shards: int, before: int) -> None:
    """Makes data files a bundle, and deletes those of the one before."""
    items.append((b"", Header(shards).encoded()))
    with replacing(index_file(target)) as file:
        write_table(file, sorted(items))
    _remove_data(target, before)


def held_apart(values: Iterable[Any]) -> bool:
    """Whether several processes hold parts of an array.

    Args:
      values: arrays.
    """
    return any(is_split(v) and not v.is_fully_addressable for v in values)


def _taken(path: str) -> _Items:
    """What another process said of its parts; the file is deleted."""
    with gfile.GFile(path, "rb") as file:
        items = list(read_table(file.read()))
    gfile.remove(path)
    return items


def _write_data(
    target: str, values: Mapping[str, Any], process: int, shards: int, apart: bool
) -> _Items:
    """Writes this process's data file; gives the entries of what is in it, and the first also those of arrays in parts."""
    items: _Items = []
    with replacing(data_file(target, process, shards)) as file, Flushing(file) as flushing:
        data = _Data(file, process, flushing)
        for name, value in values.items():
            split = is_split(value)
            if not split and not isinstance(value, Parts):
                if process == 0:
                    items.append((name.encode(), data.put(name, in_memory(value)).encoded()))
                continue
            if process == 0:
                items.append((name.encode(), _whole(name, value).encoded()))
            for extents, part in _own_parts(in_memory(value)) if split else value.parts:
                entry = data.put(name, part)
                items.append((slice_key(name, extents), entry.encoded()))
    return items


def is_split(value: Any) -> bool:
    """Whether devices hold different parts of an array, or have them in files.

    Args:
      value: the array.
    """
    on_devices = isinstance(value, (jax.Array, FileArray))
    return on_devices and bool(value.size) and not value.is_fully_replicated


def in_memory(value: Any) -> Any:
    """An array that is read now if it lies in a file.

    Args:
      value: any array.
    """
    return value.in_memory("host") if isinstance(value, FileArray) else value


def _own_parts(value: jax.Array) -> Iterable[tuple[Extents, Any]]:
    for index, part in own_parts(value):
        yield extents_of(index, value.shape), part


def _whole(name: str, value: Any) -> Entry:
    """The entry of an array in parts."""
    if isinstance(value, Parts):
        slices = [extents for extents, _ in value.parts]
    else:
        places = value.sharding.devices_indices_map(value.shape).values()
        slices = list(dict.fromkeys(extents_of(index, value.shape) for index in places))
    return Entry(_number(name, value.dtype), tuple(value.shape), slices=slices)


def _number(name: str, dtype: Any) -> int:
    try:
        return dtypes.as_dtype(np.dtype(dtype)).as_datatype_enum
    except TypeError:
        raise InvalidArgumentError(
            f"{name} has the dtype {dtype}, which checkpoints do not hold."
        ) from None


class _Data:
    """A data file that is being written."""

    def __init__(self, file: IO[bytes], shard: int, flushing: Flushing) -> None:
        self._file, self._shard, self._flushing, self._at = file, shard, flushing, 0

    def put(self, name: str, value: Any) -> Entry:
        """Writes an array; gives its entry."""
        array = read(value)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        number = _number(name, array.dtype)
        if number == STRING:
            checksum, size = self._put_strings(name, array)
        else:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            checksum, size = 0, raw.size
            for begin in range(0, size, _PIECE):
                piece = raw[begin : begin + _PIECE]
                checksum = crc32c(piece, checksum)
                self._file.write(piece.data)
                self._flushing.wrote(piece.size)
        entry = Entry(number, array.shape, self._shard, self._at, size, masked(checksum))
        self._at += size
        return entry

    def _put_strings(self, name: str, array: np.ndarray) -> tuple[int, int]:
        contents = []
        for item in array.reshape(-1).tolist():
            if not isinstance(item, (bytes, str)):
                raise TypeError(
                    f"{name}: arrays of Python objects cannot be saved; got {item!r} in one."
                )
            contents.append(item.encode() if isinstance(item, str) else item)
        lengths = [len(c) for c in contents]
        checksum = crc32c(length_bytes(lengths))
        own = masked(checksum).to_bytes(4, "little")
        written = b"".join([own, *contents])
        data = b"".join(map(varint, lengths)) + written
        self._file.write(data)
        return crc32c(written, checksum), len(data)


def _remove_data(target: str, shards: int) -> None:
    for shard in range(shards):
        path = data_file(target, shard, shards)
        if gfile.exists(path):
            gfile.remove(path)


def _data_files(target: str) -> list[tuple[str, int]]:
    """The data files that lie at a path, and of how many each is one."""
    folder = parent(target) or "."
    name = target.rpartition("/")[2]
    found = []
    for entry in gfile.listdir(folder) if gfile.isdir(folder) else []:
        entry = entry.rstrip("/")
        match = _DATA.fullmatch(entry.removeprefix(name).removesuffix(_ENTRIES))
        if entry.startswith(name) and match:
            found.append((gfile.join(folder, entry), int(match[1])))
    return found


def clear_bundle(prefix: Any) -> None:
    """Deletes what processes left that were killed while they wrote a bundle; the bundle stays.

    Args:
      prefix: its path.
    """
    target = text(prefix)
    shards = shards_of(target)
    for path, count in _data_files(target):
        if count != shards or path.endswith(_ENTRIES):
            gfile.remove(path)
    if not is_remote(target):
        clear_parts(target)


def remove_bundle(prefix: Any) -> None:
    """Deletes a bundle, first its index; nothing happens where none is.

    Args:
      prefix: its path.
    """
    target = text(prefix)
    if gfile.exists(index_file(target)):
        gfile.remove(index_file(target))
    for path, _ in _data_files(target):
        gfile.remove(path)
    clear_bundle(target)
