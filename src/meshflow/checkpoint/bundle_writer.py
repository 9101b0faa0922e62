"""Writer of tensor bundles.

A process that is killed at any moment leaves the old bundle or the new one.

Data files are written under temporary names and renamed once they are complete. The index is
renamed last, which makes the data
files a checkpoint. A bundle that replaces another one has a different number of data files and
therefore other names; the old
data files are deleted once the new index exists.

If devices hold shards of an array, each shard is written as a slice. If several processes hold
shards, each of them
writes a data file, and process 0 merges their entries into the index. Variables in the files of a
mesh are read one by one, so
at most one of them is in host memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, TypeVar

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
from meshflow.environment.types import ArrayLike, StrPath
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

# Number of bytes to write at once: small enough that the checksum is computed while the bytes are
# in the processor's cache.
_PIECE = 4 << 20
_DATA = re.compile(r"\.data-\d{5,}-of-(\d{5,})")
_ENTRIES = ".entries"

_Items = list[tuple[bytes, bytes]]
ArrayT = TypeVar("ArrayT")


def write_bundle(prefix: StrPath, values: Mapping[str, Any]) -> None:
    """Write arrays as a bundle, completely or not at all.

    If several processes hold shards of an array, all of them must call this function with the same
    keys and a path that all of them
    can access.

    Args:
      prefix: Path of the bundle, a prefix of the names of its files. An existing bundle is
        replaced.
      values: Arrays by key: NumPy arrays, JAX arrays, `ArrayParts`, arrays in files, or values that
        convert to a NumPy array.
        Arrays of bytes or text are stored as strings.

    Raises:
      InvalidArgumentError: If a bundle cannot store the dtype of an array. The message names the
        array.
      ResourceExhaustedError, PermissionDeniedError, ...: If the file system reports an error. The
        message names the file. The
        previous bundle is intact after any error.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     write_bundle(os.path.join(folder, "b"), {"w": np.zeros(3), "name": np.array(b"tea")})
      ...     sorted(os.listdir(folder))
      ['b.data-00000-of-00001', 'b.index']
    """
    target = text(prefix)
    is_distributed = held_apart(values.values())
    process, num_processes = (
        (jax.process_index(), jax.process_count()) if is_distributed else (0, 1)
    )
    if is_distributed and is_remote(target):
        raise UnimplementedError(
            f"{target}: Arrays that are sharded over several processes can only be written to a local file system. "
            "Save to a folder that all processes share."
        )
    num_old_shards = shards_of(target) if process == 0 else 0
    num_shards = num_processes + (num_old_shards == num_processes)
    if is_distributed:
        num_shards = int(multihost_utils.broadcast_one_to_all(np.int32(num_shards)))
    items = _write_data(target, values, process, num_shards, is_distributed)
    if process:
        with replacing(data_file(target, process, num_shards) + _ENTRIES) as file:
            write_table(file, sorted(items))
    if is_distributed:
        multihost_utils.sync_global_devices(f"{target} written")
    if process == 0:
        for other in range(1, num_processes):
            items += _taken(data_file(target, other, num_shards) + _ENTRIES)
        for empty in range(num_processes, num_shards):
            with replacing(data_file(target, empty, num_shards)):
                pass
        _write_index(target, items, num_shards, num_old_shards)
    if is_distributed:
        multihost_utils.sync_global_devices(f"{target} done")


def write_files(prefix: StrPath, files: Sequence[Mapping[str, Any]]) -> None:
    """Write arrays of one process to given data files of a bundle, completely or not at all.

    Args:
      prefix: As in `write_bundle`, with the same errors.
      files: Arrays by key for each data file. A value may be an array or `ArrayParts`; the parts of
        one array may be in
        several files.
    """
    target = text(prefix)
    num_old_shards = shards_of(target)
    num_shards = len(files) + (num_old_shards == len(files))
    items: _Items = []
    parts: dict[str, Parts] = {}
    for shard, values in enumerate([*files, {}][:num_shards]):
        with replacing(data_file(target, shard, num_shards)) as file, Flushing(file) as flushing:
            items += _put_all(_Data(file, shard, flushing), values)
        for name, value in values.items():
            if isinstance(value, Parts):
                parts.setdefault(name, Parts(value.shape, [])).parts.extend(value.parts)
    items += [(name.encode(), _whole(name, value).encoded()) for name, value in parts.items()]
    _write_index(target, items, num_shards, num_old_shards)


def _put_all(data: _Data, values: Mapping[str, Any]) -> _Items:
    """Write arrays and parts of arrays, and return their entries for the index."""
    pieces = []
    for name, value in values.items():
        if isinstance(value, Parts):
            pieces += [(slice_key(name, extents), name, part) for extents, part in value.parts]
        else:
            pieces.append((name.encode(), name, value))
    return [(key, data.put(name, value).encoded()) for key, name, value in pieces]


def _write_index(target: str, items: _Items, num_shards: int, num_old_shards: int) -> None:
    """Write the index, and then delete the data files of the previous bundle."""
    items.append((b"", Header(num_shards).encoded()))
    with replacing(index_file(target)) as file:
        write_table(file, sorted(items))
    _remove_data(target, num_old_shards)


def held_apart(values: Iterable[Any]) -> bool:
    """Check whether several processes hold shards of an array.

    Args:
      values: Arrays.
    """
    return any(is_split(v) and not v.is_fully_addressable for v in values)


def _taken(path: str) -> _Items:
    """Read the entries that another process wrote for its shards, and delete their file."""
    with gfile.GFile(path, "rb") as file:
        items = list(read_table(file.read()))
    gfile.remove(path)
    return items


def _write_data(
    target: str, values: Mapping[str, Any], process: int, num_shards: int, is_distributed: bool
) -> _Items:
    """Write the data file of this process.

    Returns:
      The entries of the written arrays. Process 0 also returns the entries of the full sharded
      arrays.
    """
    items: _Items = []
    with replacing(data_file(target, process, num_shards)) as file, Flushing(file) as flushing:
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


def is_split(value: object) -> bool:
    """Check whether devices hold different shards of an array, or hold it in files.

    Args:
      value: Array.
    """
    if not isinstance(value, (jax.Array, FileArray)):
        return False
    return bool(value.size) and not value.is_fully_replicated


def in_memory(value: ArrayT | FileArray) -> ArrayT | jax.Array:
    """Return an array in memory: read it if it is in files.

    Args:
      value: Any array.
    """
    return value.in_memory("host") if isinstance(value, FileArray) else value


def _own_parts(value: jax.Array) -> Iterable[tuple[Extents, Any]]:
    for index, part in own_parts(value):
        yield extents_of(index, value.shape), part


def _whole(name: str, value: jax.Array | Parts) -> Entry:
    """Return the index entry of an array that is stored in slices."""
    if isinstance(value, Parts):
        slices = [extents for extents, _ in value.parts]
    else:
        indices = value.sharding.devices_indices_map(value.shape).values()
        slices = list(dict.fromkeys(extents_of(index, value.shape) for index in indices))
    return Entry(_number(name, value.dtype), tuple(value.shape), slices=slices)


def _number(name: str, dtype: np.dtype) -> int:
    try:
        return dtypes.as_dtype(np.dtype(dtype)).as_datatype_enum
    except TypeError:
        raise InvalidArgumentError(
            f"{name} has the dtype {dtype}, which a checkpoint cannot store."
        ) from None


class _Data:
    """Data file that is being written."""

    def __init__(self, file: IO[bytes], shard: int, flushing: Flushing) -> None:
        self._file, self._shard, self._flushing, self._at = file, shard, flushing, 0

    def put(self, name: str, value: ArrayLike | FileArray) -> Entry:
        """Append an array to the file and return its entry."""
        array = read(value)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        dtype_enum = _number(name, array.dtype)
        if dtype_enum == STRING:
            checksum, size = self._put_strings(name, array)
        else:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            checksum, size = 0, raw.size
            for start in range(0, size, _PIECE):
                piece = raw[start : start + _PIECE]
                checksum = crc32c(piece, checksum)
                self._file.write(piece.data)
                self._flushing.wrote(piece.size)
        entry = Entry(dtype_enum, array.shape, self._shard, self._at, size, masked(checksum))
        self._at += size
        return entry

    def _put_strings(self, name: str, array: np.ndarray) -> tuple[int, int]:
        contents = []
        for item in array.reshape(-1).tolist():
            if not isinstance(item, (bytes, str)):
                raise TypeError(
                    f"{name}: Arrays of Python objects cannot be saved, only bytes and text; got {item!r}."
                )
            contents.append(item.encode() if isinstance(item, str) else item)
        lengths = [len(c) for c in contents]
        checksum = crc32c(length_bytes(lengths))
        stored_checksum = masked(checksum).to_bytes(4, "little")
        tail = b"".join([stored_checksum, *contents])
        data = b"".join(map(varint, lengths)) + tail
        self._file.write(data)
        return crc32c(tail, checksum), len(data)


def _remove_data(target: str, num_shards: int) -> None:
    for shard in range(num_shards):
        path = data_file(target, shard, num_shards)
        if gfile.exists(path):
            gfile.remove(path)


def _data_files(target: str) -> list[tuple[str, int]]:
    """Return the path of each data file with a prefix, and the number of data files in its name."""
    folder = parent(target) or "."
    name = target.rpartition("/")[2]
    found = []
    for entry in gfile.listdir(folder) if gfile.isdir(folder) else []:
        entry = entry.rstrip("/")
        match = _DATA.fullmatch(entry.removeprefix(name).removesuffix(_ENTRIES))
        if entry.startswith(name) and match:
            found.append((gfile.join(folder, entry), int(match[1])))
    return found


def clear_bundle(prefix: StrPath) -> None:
    """Delete files that killed writers of a bundle left. The bundle itself is kept.

    Args:
      prefix: Path of the bundle.
    """
    target = text(prefix)
    num_shards = shards_of(target)
    for path, count in _data_files(target):
        if count != num_shards or path.endswith(_ENTRIES):
            gfile.remove(path)
    if not is_remote(target):
        clear_parts(target)


def remove_bundle(prefix: StrPath) -> None:
    """Delete a bundle, its index first. Does nothing if there is no bundle.

    Args:
      prefix: Path of the bundle.
    """
    target = text(prefix)
    if gfile.exists(index_file(target)):
        gfile.remove(index_file(target))
    for path, _ in _data_files(target):
        gfile.remove(path)
    clear_bundle(target)
