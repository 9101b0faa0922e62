"""Arrays in a folder, on a disk or in a store: one `.npy` file each and a JSON manifest.

The folder is written by `replacing_folder`, the manifest last, so that a program killed at any moment leaves the
checkpoint before or the one after, never half of one. Each array has a checksum; damage is reported with the
file's name.

An array that is split over devices is written part by part into its place in the file, and read back
the same way, so that the whole never lies in memory; the file does not tell how it was split. Where
several processes hold parts, all of them write, into one folder that all can reach.
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
from typing import Any

import jax
import ml_dtypes  # noqa: F401  registers bfloat16 and others with NumPy
import numpy as np
from jax.experimental import multihost_utils

from meshflow.checkpoint.bundle import Bundle
from meshflow.checkpoint.bundle_writer import held_apart, in_memory, is_split, write_bundle
from meshflow.checkpoint.strings import packed, unpacked
from meshflow.core.runtime.device_to_host import fill, read
from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    UnimplementedError,
)
from meshflow.files import gfile
from meshflow.files.arrays import load_array
from meshflow.files.paths import is_remote, text
from meshflow.files.replacing import (
    clear_folder,
    existing_folder,
    remove_folder,
    replacing_folder,
    writing,
)
from meshflow.placement.file_store import FileArray

MANIFEST = "manifest.json"
_FORMAT = "meshflow-arrays"
_LONGEST = 8192
# Names in a SavedModel: its graph, and both the bundle and the folder of it.
GRAPH_FILE, VARIABLES = "saved_model.pb", "variables"
_SAVED_MODEL = (
    GRAPH_FILE,
    VARIABLES,
    "assets",
    "assets.extra",
    "keras_metadata.pb",
    "fingerprint.pb",
)
_FILE = re.compile(r"(\w*_)?\d{5}\.npy")


@dataclasses.dataclass
class Bundled:
    """Arrays of a folder that lie in TensorFlow's bundle.

    Attributes:
      keys: their keys there, by the names of the files that they would have.
      more: what else the bundle holds.
    """

    keys: dict[str, str]
    more: dict[str, np.ndarray]


def write_folder(
    path: Any,
    arrays: dict[str, tuple[str, Any]],
    extra: dict[str, Any] | None = None,
    bundled: Bundled | None = None,
    files: Mapping[str, bytes | Callable[[str], bytes]] | None = None,
) -> None:
    """Writes arrays and a manifest to a folder, completely or not at all.

    Args:
      path: the folder; arrays that are there are replaced, other files stay.
      arrays: name in the manifest and value, by file name without `.npy`.
      extra: further entries of the manifest, plain JSON values.
      bundled: which arrays lie in TensorFlow's bundle instead, for those that one process holds.
      files: further files by name: their content, or what gives it for the folder that has all before it.

    Raises:
      UnimplementedError: for a store and arrays that are split over several processes.
      FailedPreconditionError: when the path is a file, or the folder has another program's `manifest.json`.
      ResourceExhaustedError: when the disk is full. What was there before is there still, after any error.
    """
    target = text(path)
    if not held_apart(value for _, value in arrays.values()):
        # Without parts to bring together every process of a job writes by itself, maybe to one place.
        with replacing_folder(target, MANIFEST, own_files) as part:
            apart = bundled.keys if bundled is not None else {}
            entries = {
                key: _written(part, key, *pair) for key, pair in arrays.items() if key not in apart
            }
            if bundled is not None:
                entries |= _write_bundled(part, arrays, bundled)
            for name, data in (files or {}).items():
                if "/" in name:
                    gfile.makedirs(gfile.join(part, name.rpartition("/")[0]))
                with writing(gfile.join(part, name)) as file:
                    file.write(data if isinstance(data, bytes) else data(part))
            _write_manifest(part, entries, extra)
        return
    if is_remote(target):
        raise UnimplementedError(
            f"{target}: arrays that are split over several processes are written to disks only, where each process "
            "writes its parts into one file: save to a folder that all processes share."
        )
    _write_together(target, arrays, extra)


def _write_bundled(
    part: str, arrays: dict[str, tuple[str, Any]], bundled: Bundled
) -> dict[str, Any]:
    """Writes arrays into TensorFlow's bundle; gives their entries of the manifest."""
    values: dict[str, Any] = dict(bundled.more)
    entries = {}
    for key, place in bundled.keys.items():
        name, value = arrays[key]
        array = value if isinstance(value, (jax.Array, FileArray)) else np.asarray(value)
        values[place] = array
        dtype = "string" if array.dtype.hasobject else str(array.dtype)
        entries[key] = {"name": name, "dtype": dtype, "shape": list(array.shape), "bundled": place}
    gfile.makedirs(gfile.join(part, VARIABLES))
    write_bundle(gfile.join(part, VARIABLES, VARIABLES), values)
    return entries


def _write_together(
    target: str, arrays: dict[str, tuple[str, Any]], extra: dict[str, Any] | None
) -> None:
    """Writes arrays of which several processes hold parts."""
    first = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        part, entries = "", {}
        if first:
            part = stack.enter_context(replacing_folder(target, MANIFEST, own_files))
            entries = {key: _written(part, key, *pair) for key, pair in arrays.items()}
        part = _from_first(part)
        if not first:
            for key, (_, value) in arrays.items():
                if is_split(value):
                    _write_parts(f"{part}/{key}.npy", in_memory(value))
        _meet(f"{target} written")
        if first:
            for key, (_, value) in arrays.items():
                if is_split(value):
                    entries[key]["crc32"] = _checksum(_opened(f"{part}/{key}.npy", value))
            _write_manifest(part, entries, extra)
    _meet(f"{target} done")


def _written(part: str, key: str, name: str, value: Any) -> dict[str, Any]:
    """Writes an array, or this process's parts of it; gives its entry of the manifest."""
    split, value = is_split(value), in_memory(value)
    array = value if split else read(value)
    dtype, shape = str(array.dtype), list(array.shape)
    if array.dtype.hasobject:
        array, dtype = packed(array), "string"
    with writing(gfile.join(part, f"{key}.npy")) as file:
        if split:
            _make_file(file, value)
            _write_parts(file.name, value)
            checksum = _checksum(_opened(file.name, value))
        else:
            _write_array(file, array)
            checksum = _checksum(array)
    return {"name": name, "dtype": dtype, "shape": shape, "crc32": checksum}


def _write_manifest(part: str, entries: dict[str, Any], extra: dict[str, Any] | None) -> None:
    content = {"format": _FORMAT, "version": 1, **(extra or {}), "arrays": entries}
    with writing(gfile.join(part, MANIFEST)) as file:
        file.write(json.dumps(content, indent=1).encode())


def own_files(folder: str) -> Iterable[str]:
    """Names of the files in a folder that `write_folder` put there.

    Args:
      folder: its path.

    Raises:
      FailedPreconditionError: when another program's file has the manifest's name.
    """
    manifest = gfile.join(folder, MANIFEST)
    present = {name.rstrip("/") for name in gfile.listdir(folder)}
    found = {name for name in present if _FILE.fullmatch(name)}
    if GRAPH_FILE in present:
        found |= present.intersection(_SAVED_MODEL)
    if gfile.exists(manifest):
        found.add(MANIFEST)
        with contextlib.suppress(ValueError, AttributeError, KeyError):
            with gfile.GFile(manifest, "rb") as file:
                content = json.loads(file.read())
            if content.get("format") != _FORMAT:
                raise FailedPreconditionError(
                    f"{manifest} is no file of Meshflow's: choose another folder, or move it away."
                )
            found |= {f"{key}.npy" for key in content["arrays"] if os.path.basename(key) == key}
    return found


def _meet(what: str) -> None:
    """Waits for the other processes."""
    multihost_utils.sync_global_devices(what)


def _from_first(part: str) -> str:
    """What the first process says, told to the others."""
    row = np.zeros(_LONGEST, np.uint8)
    row[: len(part.encode())] = np.frombuffer(part.encode(), np.uint8)
    told = multihost_utils.broadcast_one_to_all(row)
    return bytes(np.asarray(told)).rstrip(b"\0").decode()


def _opened(path: str, like: Any, mode: Any = "r") -> np.ndarray:
    """A file's array without reading it."""
    raw = np.lib.format.open_memmap(path, mode)
    return (raw if raw.dtype == like.dtype else raw.view(like.dtype)).reshape(like.shape)


def _make_file(file: Any, value: jax.Array) -> None:
    """An array's file, with room for all parts: what is mapped and finds no room ends the process."""
    opaque = value.dtype.kind == "V"
    dtype = np.dtype(np.uint8) if opaque else np.dtype(value.dtype)
    shape = (value.nbytes,) if opaque else value.shape
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    file.flush()
    size = file.tell() + value.nbytes
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def _write_parts(path: str, value: jax.Array) -> None:
    """Writes this process's parts of an array into its file."""
    whole = _opened(path, value, "r+")
    fill(whole, value)
    del whole
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write_array(file: Any, array: np.ndarray) -> None:
    # NumPy's format does not know bfloat16 and its relatives: they are kept as bytes.
    raw = array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array
    whole = np.ascontiguousarray(raw).reshape(raw.shape)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
    # Not `np.save`, which does not say why it could not write.
    file.write(whole.reshape(-1).view(np.uint8).data)


class Folder:
    """Reads what `write_folder` wrote, array by array.

    Args:
      path: the folder.

    Raises:
      NotFoundError: when there is nothing.
      DataLossError: when the manifest is damaged.
    """

    def __init__(self, path: Any) -> None:
        self.path = existing_folder(path, MANIFEST)
        self._bundle: Bundle | None = None
        manifest = gfile.join(self.path, MANIFEST)
        try:
            with gfile.GFile(manifest, "rb") as file:
                self.manifest: dict[str, Any] = json.loads(file.read())
            self._keys = {e["name"]: key for key, e in self.manifest["arrays"].items()}
        except NotFoundError:
            raise NotFoundError(
                f"Failed to find a checkpoint at {path}. Please double-check that the path is "
                "correct: you may be missing the suffix (such as the '-1' in 'path/to/ckpt-1')."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataLossError(f"{manifest} is damaged: {error!r}.") from error

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Dtype and shape by name."""
        return {e["name"]: e for e in self.manifest["arrays"].values()}

    def read(self, name: str) -> np.ndarray:
        """An array by its name in the manifest.

        Args:
          name: the name.

        Raises:
          NotFoundError: when there is no such array.
          DataLossError: when its file is missing or damaged, naming it.
        """
        if name not in self._keys:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.path}.")
        return self.read_file(self._keys[name])

    def read_file(self, key: str) -> np.ndarray:
        """An array by its file name; errors as in `read`.

        Args:
          key: the file name without `.npy`.
        """
        return self._load(key, None)

    # Each call reads another one.
    lent = read

    def open(self, name: str) -> np.ndarray:
        """An array that is read from its file where it is used, after its checksum was found right.

        Args:
          name: the name in the manifest; errors as in `read`.
        """
        if name not in self._keys:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.path}.")
        size = math.prod(self.entries[name]["shape"])
        return self._load(self._keys[name], "r" if size else None)

    def _load(self, key: str, mode: Any) -> np.ndarray:
        if os.path.basename(key) != key:
            raise DataLossError(f"{self.path}/{MANIFEST} is damaged: {key!r} is no name of a file.")
        entry, file = self.manifest["arrays"][key], gfile.join(self.path, f"{key}.npy")
        if "bundled" in entry:
            return self._from_bundle(entry)
        strings = entry["dtype"] == "string"
        try:
            raw = _loaded(file, mode)
            dtype = raw.dtype if strings else np.dtype(entry["dtype"])
            raw = raw if raw.dtype == dtype else raw.view(dtype)
            checksum = _checksum(raw)
            array = unpacked(raw, entry["shape"]) if strings else raw.reshape(entry["shape"])
        except (NotFoundError, OSError, ValueError, EOFError, TypeError) as error:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is missing or damaged: {error}."
            ) from error
        if "crc32" in entry and checksum != entry["crc32"]:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is damaged: its checksum does not match the manifest's."
            )
        return array

    def _from_bundle(self, entry: dict[str, Any]) -> np.ndarray:
        if self._bundle is None:
            self._bundle = Bundle(gfile.join(self.path, VARIABLES, VARIABLES))
        try:
            return self._bundle.read(entry["bundled"])
        except NotFoundError as error:
            raise DataLossError(
                f"{self.path} (weight {entry['name']}) is damaged: {error}"
            ) from error


def _loaded(path: str, mode: Any) -> np.ndarray:
    """An array's file, which is mapped where it can be."""
    if not is_remote(path):
        return load_array(path, mode)
    with gfile.GFile(path, "rb") as file:
        return load_array(io.BytesIO(file.read()))


def read_folder(path: Any) -> dict[str, tuple[str, np.ndarray]]:
    """Reads all that `write_folder` wrote.

    Args:
      path: the folder.

    Returns:
      Name and value by file name without `.npy`.

    Raises:
      NotFoundError: when there is nothing.
      DataLossError: when a file is missing or damaged, naming it.
    """
    folder = Folder(path)
    return {
        key: (entry["name"], folder.read_file(key))
        for key, entry in folder.manifest["arrays"].items()
    }


def is_checkpoint(path: Any) -> bool:
    """Whether a folder of arrays lies at a path.

    Args:
      path: the path given to `write_folder`.
    """
    return gfile.exists(gfile.join(existing_folder(path, MANIFEST), MANIFEST))


def clear(path: Any) -> None:
    """Deletes what processes left that were killed while they wrote a folder; the folder stays.

    Args:
      path: the folder's path.
    """
    clear_folder(path, MANIFEST)


def remove(path: Any) -> None:
    """Deletes a folder of arrays; nothing happens when there is none.

    Args:
      path: its path.
    """
    # Whoever is killed leaves arrays without a manifest, which are no checkpoint.
    remove_folder(path, MANIFEST, own_files)
