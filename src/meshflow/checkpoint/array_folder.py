"""Arrays in a local or remote folder: one `.npy` file for each array and a JSON manifest.

`replace_folder` writes the folder, and the manifest last, so a process that is killed at any
moment leaves the old checkpoint or the new one. Each array has a checksum, and so has the manifest,
except in older folders; an error about damage names the file.

An array that is sharded over devices is written and read shard by shard, so the full array is never
in memory. The file does
not depend on the sharding. If several processes hold shards, all of them write to one folder that
all can access.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Literal, TypeAlias

import jax
import ml_dtypes  # noqa: F401  registers bfloat16 and others with NumPy
import numpy as np
from jax.experimental import multihost_utils

from meshflow.checkpoint.bundle import BundleReader, make_missing_error
from meshflow.checkpoint.bundle_writer import (
    has_remote_shards,
    is_sharded,
    load_into_memory,
    write_bundle,
)
from meshflow.checkpoint.string_arrays import pack_strings, unpack_strings
from meshflow.core.runtime.device_to_host import copy_owned_shards, read_uncached
from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    UnimplementedError,
)
from meshflow.environment.json_documents import compute_json_checksum, parse_json
from meshflow.environment.limits import STRING_BYTES, spend_load_budget
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.arrays import load_array, parse_dtype
from meshflow.files.atomic_writes import (
    delete_folder,
    delete_leftovers,
    find_folder,
    replace_folder,
    write_flushed,
)
from meshflow.files.contained_files import check_contained
from meshflow.files.paths import is_remote, to_path_string
from meshflow.placement.file_store import FileArray

MemoryMapMode: TypeAlias = Literal["r", "r+"]

MANIFEST = "manifest.json"
_FORMAT = "meshflow-arrays"
_MAX_PATH_BYTES = 8192
# Names in a SavedModel: the file of its graph, and the name of both the bundle and its folder.
GRAPH_FILE, VARIABLES = "saved_model.pb", "variables"
_SAVED_MODEL = (
    GRAPH_FILE,
    VARIABLES,
    "assets",
    "assets.extra",
    "keras_metadata.pb",
    "fingerprint.pb",
)
_ARRAY_FILE_NAME = re.compile(r"(\w*_)?\d{5}\.npy")


@dataclasses.dataclass
class BundleContents:
    """Arrays that `write_folder` writes to a tensor bundle in the folder.

    Attributes:
      keys: Keys of arrays of the folder in the bundle, by the names of their files without a
        bundle.
      extra_arrays: Further arrays of the bundle, by key.
    """

    keys: dict[str, str]
    extra_arrays: dict[str, np.ndarray]


def write_folder(
    path: StrPath,
    arrays: dict[str, tuple[str, Any]],
    extra: dict[str, Any] | None = None,
    bundled: BundleContents | None = None,
    files: Mapping[str, bytes | Callable[[str], bytes]] | None = None,
) -> None:
    """Write arrays and a manifest to a folder, completely or not at all.

    Args:
      path: The folder. Its arrays are replaced, other files are kept.
      arrays: Name in the manifest and value of each array, by file name without `.npy`.
      extra: Further entries of the manifest, JSON values.
      bundled: Arrays to write to a tensor bundle instead. Only used if one process holds all
        arrays.
      files: Further files by name: their content, or a function that returns it, given the folder
        with all previous files.

    Raises:
      UnimplementedError: If arrays are sharded over several processes and the folder is remote.
      FailedPreconditionError: If the path is a file, or if the folder has a `manifest.json` of
        another program.
      ResourceExhaustedError: If the disk is full. The previous content is intact after any error.
    """
    target = to_path_string(path)
    if not has_remote_shards(value for _, value in arrays.values()):
        # Without shards to collect, each process of a job writes on its own, possibly to the same
        # path.
        with replace_folder(target, MANIFEST, list_own_files) as part:
            bundle_keys = bundled.keys if bundled is not None else {}
            entries = {
                key: _write_value(part, key, *pair)
                for key, pair in arrays.items()
                if key not in bundle_keys
            }
            if bundled is not None:
                entries |= _write_bundled(part, arrays, bundled)
            for name, data in (files or {}).items():
                if "/" in name:
                    gfile.makedirs(gfile.join(part, name.rpartition("/")[0]))
                with write_flushed(gfile.join(part, name)) as file:
                    file.write(data if isinstance(data, bytes) else data(part))
            _write_manifest(part, entries, extra)
        return
    if is_remote(target):
        raise UnimplementedError(
            f"{target}: Arrays that are sharded over several processes can only be written to a local file system, where "
            "each process writes its shards to one file. Save to a folder that all processes share."
        )
    _write_from_all_processes(target, arrays, extra)


def _write_bundled(
    part: str, arrays: dict[str, tuple[str, Any]], bundled: BundleContents
) -> dict[str, Any]:
    """Write arrays to a tensor bundle and return their entries of the manifest."""
    values: dict[str, Any] = dict(bundled.extra_arrays)
    entries = {}
    for key, bundle_key in bundled.keys.items():
        name, value = arrays[key]
        array = value if isinstance(value, (jax.Array, FileArray)) else np.asarray(value)
        values[bundle_key] = array
        entries[key] = {
            "name": name,
            "dtype": "string" if array.dtype.hasobject else str(array.dtype),
            "shape": list(array.shape),
            "bundled": bundle_key,
        }
    gfile.makedirs(gfile.join(part, VARIABLES))
    write_bundle(gfile.join(part, VARIABLES, VARIABLES), values)
    return entries


def _write_from_all_processes(
    target: str, arrays: dict[str, tuple[str, Any]], extra: dict[str, Any] | None
) -> None:
    """Write arrays of which several processes hold shards."""
    is_first = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        part, entries = "", {}
        if is_first:
            part = stack.enter_context(replace_folder(target, MANIFEST, list_own_files))
            entries = {key: _write_value(part, key, *pair) for key, pair in arrays.items()}
        part = _broadcast_path(part)
        if not is_first:
            for key, (_, value) in arrays.items():
                if is_sharded(value):
                    _write_shards(f"{part}/{key}.npy", load_into_memory(value))
        _synchronize(f"{target} written")
        if is_first:
            for key, (_, value) in arrays.items():
                if is_sharded(value):
                    entries[key]["crc32"] = _compute_checksum(_map_file(f"{part}/{key}.npy", value))
            _write_manifest(part, entries, extra)
    _synchronize(f"{target} done")


def _write_value(part: str, key: str, name: str, value: Any) -> dict[str, Any]:
    """Write an array, or this process's shards of it, and return its entry of the manifest."""
    sharded, value = is_sharded(value), load_into_memory(value)
    array = value if sharded else read_uncached(value)
    dtype, shape = str(array.dtype), list(array.shape)
    if array.dtype.hasobject:
        array, dtype = pack_strings(array), "string"
    with write_flushed(gfile.join(part, f"{key}.npy")) as file:
        if sharded:
            _allocate_file(file, value)
            _write_shards(file.name, value)
            checksum = _compute_checksum(_map_file(file.name, value))
        else:
            _write_array(file, array)
            checksum = _compute_checksum(array)
    return {"name": name, "dtype": dtype, "shape": shape, "crc32": checksum}


def _write_manifest(part: str, entries: dict[str, Any], extra: dict[str, Any] | None) -> None:
    content = {"format": _FORMAT, "version": 1, **(extra or {}), "arrays": entries}
    # Only parsed content has the keys that readers see.
    checksum = compute_json_checksum(json.loads(json.dumps(content)))
    with write_flushed(gfile.join(part, MANIFEST)) as file:
        file.write(json.dumps({**content, "crc32": checksum}, indent=1).encode())


def list_own_files(folder: str) -> Iterable[str]:
    """Return the names of the files in a folder that `write_folder` wrote.

    Args:
      folder: Path of the folder.

    Raises:
      FailedPreconditionError: If another program's file has the manifest's name.
    """
    manifest = gfile.join(folder, MANIFEST)
    present = {name.rstrip("/") for name in gfile.listdir(folder)}
    names = {name for name in present if _ARRAY_FILE_NAME.fullmatch(name)}
    if GRAPH_FILE in present:
        names |= present.intersection(_SAVED_MODEL)
    if gfile.exists(manifest):
        names.add(MANIFEST)
        with contextlib.suppress(ValueError, AttributeError, KeyError):
            with gfile.GFile(check_contained(manifest, folder), "rb") as file:
                content = parse_json(file.read())
            if content.get("format") != _FORMAT:
                raise FailedPreconditionError(
                    f"{manifest} is no file of Meshflow: choose another folder, or move it away."
                )
            names |= {f"{key}.npy" for key in content["arrays"] if os.path.basename(key) == key}
    return names


def _synchronize(barrier_name: str) -> None:
    """Wait for the other processes."""
    multihost_utils.sync_global_devices(barrier_name)


def _broadcast_path(part: str) -> str:
    """Return the path of the first process in all processes."""
    row = np.zeros(_MAX_PATH_BYTES, np.uint8)
    row[: len(part.encode())] = np.frombuffer(part.encode(), np.uint8)
    received = multihost_utils.broadcast_one_to_all(row)
    return bytes(np.asarray(received)).rstrip(b"\0").decode()


def _map_file(path: str, like: jax.Array, mode: MemoryMapMode = "r") -> np.ndarray:
    """Map an array's file into memory."""
    raw = np.lib.format.open_memmap(path, mode)
    return (raw if raw.dtype == like.dtype else raw.view(like.dtype)).reshape(like.shape)


def _allocate_file(file: IO[bytes], value: jax.Array) -> None:
    """Write the header of an array's file and allocate the space for all shards.

    Writing to mapped pages without free space on the disk would kill the process.
    """
    is_opaque = value.dtype.kind == "V"
    dtype = np.dtype(np.uint8) if is_opaque else np.dtype(value.dtype)
    shape = (value.nbytes,) if is_opaque else value.shape
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    file.flush()
    size = file.tell() + value.nbytes
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def _write_shards(path: str, value: jax.Array) -> None:
    """Write this process's shards of an array into the array's file."""
    mapped = _map_file(path, value, "r+")
    copy_owned_shards(mapped, value)
    del mapped
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _compute_checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write_array(file: IO[bytes], array: np.ndarray) -> None:
    # NumPy's format does not support bfloat16 and similar dtypes, so they are stored as bytes.
    raw = array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array
    contiguous = np.ascontiguousarray(raw).reshape(raw.shape)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(contiguous))
    # The errors of `np.save` do not state why writing failed.
    file.write(contiguous.reshape(-1).view(np.uint8).data)


class ArrayFolder:
    """Reader of a folder that `write_folder` wrote, array by array.

    Args:
      path: The folder.

    Raises:
      NotFoundError: If there is no such folder.
      DataLossError: If the manifest is damaged.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = find_folder(path, MANIFEST)
        self._bundle: BundleReader | None = None
        manifest = gfile.join(self.path, MANIFEST)
        try:
            with gfile.GFile(check_contained(manifest, self.path), "rb") as file:
                self.manifest: dict[str, Any] = parse_json(file.read())
            checksum = self.manifest.pop("crc32", None)
            if checksum not in (None, compute_json_checksum(self.manifest)):
                raise ValueError("its checksum does not match its content")
            self._keys = {e["name"]: key for key, e in self.manifest["arrays"].items()}
        except NotFoundError:
            raise make_missing_error(path) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataLossError(f"{manifest} is damaged: {error!r}.") from error

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the manifest's entry of each array, with name, dtype and shape, by name."""
        return {e["name"]: e for e in self.manifest["arrays"].values()}

    def read(self, name: str) -> np.ndarray:
        """Read an array by its name in the manifest.

        Args:
          name: The name.

        Raises:
          NotFoundError: If there is no such array.
          DataLossError: If its file is missing or damaged. The message names the file.
        """
        if name not in self._keys:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.path}.")
        return self.read_file(self._keys[name])

    def read_file(self, key: str) -> np.ndarray:
        """Read an array by its file name. Raises errors as `read`.

        Args:
          key: File name without `.npy`.
        """
        return self._load(key, None)

    # Each call of `read` returns a new array, so devices may share its memory.
    read_shareable = read

    def open(self, name: str) -> np.ndarray:
        """Map an array into memory after verifying its checksum. Raises errors as `read`.

        Args:
          name: Name in the manifest.
        """
        if name not in self._keys:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.path}.")
        size = math.prod(self.entries[name]["shape"])
        return self._load(self._keys[name], "r" if size else None)

    def _load(self, key: str, mode: MemoryMapMode | None) -> np.ndarray:
        if os.path.basename(key) != key:
            raise DataLossError(
                f"{self.path}/{MANIFEST} is damaged: {key!r} is not the name of a file."
            )
        entry = self.manifest["arrays"][key]
        if "bundled" in entry:
            return self._read_from_bundle(entry)
        file = check_contained(gfile.join(self.path, f"{key}.npy"), self.path)
        has_strings = entry["dtype"] == "string"
        try:
            raw = _load_file(file, mode)
            # A manifest may refer to one file many times.
            num_strings = math.prod(entry["shape"]) if has_strings else 0
            spend_load_budget(raw.nbytes + STRING_BYTES * num_strings, f"the array {key}")
            dtype = raw.dtype if has_strings else parse_dtype(entry["dtype"])
            raw = raw if raw.dtype == dtype else raw.view(dtype)
            checksum = _compute_checksum(raw)
            array = (
                unpack_strings(raw, entry["shape"]) if has_strings else raw.reshape(entry["shape"])
            )
        except (NotFoundError, OSError, ValueError, EOFError, TypeError) as error:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is missing or damaged: {error}."
            ) from error
        if "crc32" in entry and checksum != entry["crc32"]:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is damaged: its checksum does not match the manifest's."
            )
        return array

    def _read_from_bundle(self, entry: dict[str, Any]) -> np.ndarray:
        if self._bundle is None:
            self._bundle = BundleReader(gfile.join(self.path, VARIABLES, VARIABLES), self.path)
        try:
            return self._bundle.read(entry["bundled"])
        except NotFoundError as error:
            raise DataLossError(
                f"{self.path} (weight {entry['name']}) is damaged: {error}"
            ) from error


def _load_file(path: str, mode: MemoryMapMode | None) -> np.ndarray:
    """Load an array from a file. A local file is mapped into memory if `mode` is not None."""
    if not is_remote(path):
        return load_array(path, mode)
    with gfile.GFile(path, "rb") as file:
        return load_array(io.BytesIO(file.read()))


def read_folder(path: StrPath) -> dict[str, tuple[str, np.ndarray]]:
    """Read all arrays that `write_folder` wrote.

    Args:
      path: The folder.

    Returns:
      Name and value of each array, by file name without `.npy`.

    Raises:
      NotFoundError: If there is no such folder.
      DataLossError: If a file is missing or damaged. The message names the file.
    """
    folder = ArrayFolder(path)
    return {
        key: (entry["name"], folder.read_file(key))
        for key, entry in folder.manifest["arrays"].items()
    }


def is_array_folder(path: StrPath) -> bool:
    """Check whether a path is a folder of arrays.

    Args:
      path: Path that was passed to `write_folder`.
    """
    return gfile.exists(gfile.join(find_folder(path, MANIFEST), MANIFEST))


def remove_leftovers(path: StrPath) -> None:
    """Delete files that killed writers of a folder left. The folder itself is kept.

    Args:
      path: Path of the folder.
    """
    delete_leftovers(path, MANIFEST)


def remove_array_folder(path: StrPath) -> None:
    """Delete a folder of arrays. Does nothing if there is none.

    Args:
      path: Path of the folder.
    """
    # The manifest is removed first: a process that is killed leaves arrays without a manifest,
    # which are no checkpoint.
    delete_folder(path, MANIFEST, list_own_files)
