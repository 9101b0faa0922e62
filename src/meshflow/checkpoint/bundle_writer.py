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

from meshflow.checkpoint.bundle import (
    STRING_DTYPE,
    count_shards,
    encode_lengths,
    get_data_path,
    get_index_path,
)
from meshflow.checkpoint.bundle_messages import BundleEntry, BundleHeader, Extents
from meshflow.checkpoint.slices import ArrayParts, encode_slice_key, get_extents
from meshflow.checkpoint.sstable import read_table, write_table
from meshflow.core.runtime.device_to_host import iterate_owned_shards, read_uncached
from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.core.values import dtypes
from meshflow.environment.protobuf_wire import encode_varint
from meshflow.environment.types import ArrayLike, StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.background_flush import BackgroundFlusher
from meshflow.files.crc32c import crc32c, mask_checksum
from meshflow.files.part_files import delete_abandoned_parts
from meshflow.files.paths import get_parent, is_remote, to_path_string
from meshflow.placement.file_store import FileArray

# Number of bytes to write at once: small enough that the checksum is computed while the bytes are
# in the processor's cache.
_CHUNK_BYTES = 4 << 20
_DATA_FILE_NAME = re.compile(r"\.data-\d{5,}-of-(\d{5,})")
_ENTRIES_SUFFIX = ".entries"

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
    target = to_path_string(prefix)
    is_distributed = has_remote_shards(values.values())
    process, num_processes = (
        (jax.process_index(), jax.process_count()) if is_distributed else (0, 1)
    )
    if is_distributed and is_remote(target):
        raise UnimplementedError(
            f"{target}: Arrays that are sharded over several processes can only be written to a local file system. "
            "Save to a folder that all processes share."
        )
    num_old_shards = count_shards(target) if process == 0 else 0
    num_shards = num_processes + (num_old_shards == num_processes)
    if is_distributed:
        num_shards = int(multihost_utils.broadcast_one_to_all(np.int32(num_shards)))
    items = _write_data(target, values, process, num_shards, is_distributed)
    if process:
        with replace_file(get_data_path(target, process, num_shards) + _ENTRIES_SUFFIX) as file:
            write_table(file, sorted(items))
    if is_distributed:
        multihost_utils.sync_global_devices(f"{target} written")
    if process == 0:
        for other in range(1, num_processes):
            items += _take_entries(get_data_path(target, other, num_shards) + _ENTRIES_SUFFIX)
        for empty in range(num_processes, num_shards):
            with replace_file(get_data_path(target, empty, num_shards)):
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
    target = to_path_string(prefix)
    num_old_shards = count_shards(target)
    num_shards = len(files) + (num_old_shards == len(files))
    items: _Items = []
    parts: dict[str, ArrayParts] = {}
    for shard, values in enumerate([*files, {}][:num_shards]):
        with (
            replace_file(get_data_path(target, shard, num_shards)) as file,
            BackgroundFlusher(file) as flushing,
        ):
            items += _write_values(_DataFileWriter(file, shard, flushing), values)
        for name, value in values.items():
            if isinstance(value, ArrayParts):
                parts.setdefault(name, ArrayParts(value.shape, [])).parts.extend(value.parts)
    items += [
        (name.encode(), _make_sliced_entry(name, value).encode()) for name, value in parts.items()
    ]
    _write_index(target, items, num_shards, num_old_shards)


def _write_values(data: _DataFileWriter, values: Mapping[str, Any]) -> _Items:
    """Write arrays and parts of arrays, and return their entries for the index."""
    pieces = []
    for name, value in values.items():
        if isinstance(value, ArrayParts):
            pieces += [
                (encode_slice_key(name, extents), name, part) for extents, part in value.parts
            ]
        else:
            pieces.append((name.encode(), name, value))
    return [(key, data.write(name, value).encode()) for key, name, value in pieces]


def _write_index(target: str, items: _Items, num_shards: int, num_old_shards: int) -> None:
    """Write the index, and then delete the data files of the previous bundle."""
    items.append((b"", BundleHeader(num_shards).encode()))
    with replace_file(get_index_path(target)) as file:
        write_table(file, sorted(items))
    _remove_data_files(target, num_old_shards)


def has_remote_shards(values: Iterable[Any]) -> bool:
    """Check whether several processes hold shards of an array.

    Args:
      values: Arrays.
    """
    return any(is_sharded(v) and not v.is_fully_addressable for v in values)


def _take_entries(path: str) -> _Items:
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
    with (
        replace_file(get_data_path(target, process, num_shards)) as file,
        BackgroundFlusher(file) as flushing,
    ):
        data = _DataFileWriter(file, process, flushing)
        for name, value in values.items():
            split = is_sharded(value)
            if not split and not isinstance(value, ArrayParts):
                if process == 0:
                    items.append(
                        (name.encode(), data.write(name, load_into_memory(value)).encode())
                    )
                continue
            if process == 0:
                items.append((name.encode(), _make_sliced_entry(name, value).encode()))
            for extents, part in (
                _iterate_local_shards(load_into_memory(value)) if split else value.parts
            ):
                entry = data.write(name, part)
                items.append((encode_slice_key(name, extents), entry.encode()))
    return items


def is_sharded(value: object) -> bool:
    """Check whether devices hold different shards of an array, or hold it in files.

    Args:
      value: Array.
    """
    if not isinstance(value, (jax.Array, FileArray)):
        return False
    return bool(value.size) and not value.is_fully_replicated


def load_into_memory(value: ArrayT | FileArray) -> ArrayT | jax.Array:
    """Return an array in memory: read it if it is in files.

    Args:
      value: Any array.
    """
    return value.to_memory("host") if isinstance(value, FileArray) else value


def _iterate_local_shards(value: jax.Array) -> Iterable[tuple[Extents, Any]]:
    for index, part in iterate_owned_shards(value):
        yield get_extents(index, value.shape), part


def _make_sliced_entry(name: str, value: jax.Array | ArrayParts) -> BundleEntry:
    """Return the index entry of an array that is stored in slices."""
    if isinstance(value, ArrayParts):
        slices = [extents for extents, _ in value.parts]
    else:
        indices = value.sharding.devices_indices_map(value.shape).values()
        slices = list(dict.fromkeys(get_extents(index, value.shape) for index in indices))
    return BundleEntry(_get_dtype_enum(name, value.dtype), tuple(value.shape), slices=slices)


def _get_dtype_enum(name: str, dtype: np.dtype) -> int:
    try:
        return dtypes.as_dtype(np.dtype(dtype)).as_datatype_enum
    except TypeError:
        raise InvalidArgumentError(
            f"{name} has the dtype {dtype}, which a checkpoint cannot store."
        ) from None


class _DataFileWriter:
    """Data file that is being written."""

    def __init__(self, file: IO[bytes], shard: int, flushing: BackgroundFlusher) -> None:
        self._file, self._shard, self._flushing, self._offset = file, shard, flushing, 0

    def write(self, name: str, value: ArrayLike | FileArray) -> BundleEntry:
        """Append an array to the file and return its entry."""
        array = read_uncached(value)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        dtype_enum = _get_dtype_enum(name, array.dtype)
        if dtype_enum == STRING_DTYPE:
            checksum, size = self._write_strings(name, array)
        else:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            checksum, size = 0, raw.size
            for start in range(0, size, _CHUNK_BYTES):
                piece = raw[start : start + _CHUNK_BYTES]
                checksum = crc32c(piece, checksum)
                self._file.write(piece.data)
                self._flushing.count_bytes(piece.size)
        entry = BundleEntry(
            dtype_enum, array.shape, self._shard, self._offset, size, mask_checksum(checksum)
        )
        self._offset += size
        return entry

    def _write_strings(self, name: str, array: np.ndarray) -> tuple[int, int]:
        contents = []
        for item in array.reshape(-1).tolist():
            if not isinstance(item, (bytes, str)):
                raise TypeError(
                    f"{name}: Arrays of Python objects cannot be saved, only bytes and text; got {item!r}."
                )
            contents.append(item.encode() if isinstance(item, str) else item)
        lengths = [len(c) for c in contents]
        checksum = crc32c(encode_lengths(lengths))
        stored_checksum = mask_checksum(checksum).to_bytes(4, "little")
        tail = b"".join([stored_checksum, *contents])
        data = b"".join(map(encode_varint, lengths)) + tail
        self._file.write(data)
        return crc32c(tail, checksum), len(data)


def _remove_data_files(target: str, num_shards: int) -> None:
    for shard in range(num_shards):
        path = get_data_path(target, shard, num_shards)
        if gfile.exists(path):
            gfile.remove(path)


def _list_data_files(target: str) -> list[tuple[str, int]]:
    """Return the path of each data file with a prefix, and the number of data files in its name."""
    folder = get_parent(target) or "."
    name = target.rpartition("/")[2]
    found = []
    for entry in gfile.listdir(folder) if gfile.isdir(folder) else []:
        entry = entry.rstrip("/")
        match = _DATA_FILE_NAME.fullmatch(entry.removeprefix(name).removesuffix(_ENTRIES_SUFFIX))
        if entry.startswith(name) and match:
            found.append((gfile.join(folder, entry), int(match[1])))
    return found


def remove_leftover_files(prefix: StrPath) -> None:
    """Delete files that killed writers of a bundle left. The bundle itself is kept.

    Args:
      prefix: Path of the bundle.
    """
    target = to_path_string(prefix)
    num_shards = count_shards(target)
    for path, count in _list_data_files(target):
        if count != num_shards or path.endswith(_ENTRIES_SUFFIX):
            gfile.remove(path)
    if not is_remote(target):
        delete_abandoned_parts(target)


def remove_bundle(prefix: StrPath) -> None:
    """Delete a bundle, its index first. Does nothing if there is no bundle.

    Args:
      prefix: Path of the bundle.
    """
    target = to_path_string(prefix)
    if gfile.exists(get_index_path(target)):
        gfile.remove(get_index_path(target))
    for path, _ in _list_data_files(target):
        gfile.remove(path)
    remove_leftover_files(target)
