"""Arrays on disk: a folder with one `.npy` file each and a JSON manifest.

The folder is written under a temporary name, flushed to the disk and renamed, so that a program killed
at any moment leaves the checkpoint before or the one after, never half of one. Each array has a
checksum; damage is reported with the file's name.

An array that is split over devices is written part by part into its place in the file, and read back
the same way, so that the whole never lies in memory; the file does not tell how it was split. Where
several processes hold parts, all of them write, into one folder that all can reach.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import jax
import ml_dtypes  # noqa: F401  registers bfloat16 and others with NumPy
import numpy as np

from meshflow.checkpoint.strings import packed, unpacked
from meshflow.core.errors import DataLossError, NotFoundError

MANIFEST = "manifest.json"


def write_folder(
    path: Any, arrays: dict[str, tuple[str, Any]], extra: dict[str, Any] | None = None
) -> None:
    """Writes arrays and a manifest to a folder, completely or not at all.

    Args:
      path: the folder; one that is there is replaced.
      arrays: name in the manifest and value, by file name without `.npy`.
      extra: further entries of the manifest, plain JSON values.
    """
    target = Path(path)
    together = any(_is_split(v) and not v.is_fully_addressable for _, v in arrays.values())
    first = not together or jax.process_index() == 0
    # Without parts to bring together every process of a job writes by itself, maybe to one place.
    own = "" if together or jax.process_index() == 0 else str(jax.process_index())
    part, old = _beside(target, f".part{own}"), _beside(target, ".old")
    if first:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for key, (_, value) in arrays.items():
            if _is_split(value):
                _write_parts(part / f"{key}.npy", value, "w+")
            else:
                _write_array(part / f"{key}.npy", np.asarray(value))
    if together:
        _meet(f"{target} made")
        if not first:
            for key, (_, value) in arrays.items():
                if _is_split(value):
                    _write_parts(part / f"{key}.npy", value, "r+")
        _meet(f"{target} written")
    if first:
        manifest = {}
        for key, (name, value) in arrays.items():
            split = _is_split(value)
            array = _opened(part / f"{key}.npy", value) if split else np.asarray(value)
            manifest[key] = {
                "name": name,
                "dtype": "string" if array.dtype.hasobject else str(array.dtype),
                "shape": list(array.shape),
                "crc32": _checksum(packed(array) if array.dtype.hasobject else array),
            }
        content = {"format": "meshflow-arrays", "version": 1, **(extra or {}), "arrays": manifest}
        with open(part / MANIFEST, "w") as file:
            json.dump(content, file, indent=1)
            _flush(file)
        _flush_folder(part)
        try:
            if target.is_dir():
                shutil.rmtree(old, ignore_errors=True)
                os.replace(target, old)
            os.replace(part, target)
        except OSError:
            if not own:
                raise
            shutil.rmtree(part, ignore_errors=True)  # another process was here at the same moment
        _flush_folder(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    if together:
        _meet(f"{target} done")


def _meet(what: str) -> None:
    """Waits for the other processes."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(what)


def _is_split(value: Any) -> bool:
    """Whether devices hold different parts of an array."""
    return isinstance(value, jax.Array) and bool(value.size) and not value.is_fully_replicated


def _opened(path: Path, like: Any, mode: Any = "r") -> np.ndarray:
    """A file's array without reading it."""
    raw = np.lib.format.open_memmap(path, mode)
    return (raw if raw.dtype == like.dtype else raw.view(like.dtype)).reshape(like.shape)


def _write_parts(path: Path, value: jax.Array, mode: str) -> None:
    """Writes this process's parts of an array into its file."""
    if mode == "w+":
        opaque = value.dtype.kind == "V"
        np.lib.format.open_memmap(
            path,
            "w+",
            np.uint8 if opaque else value.dtype,
            (value.nbytes,) if opaque else value.shape,
        )
    whole = _opened(path, value, "r+")
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data)
    del whole
    with open(path, "rb+") as file:
        _flush(file)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Makes renames and new names in a folder durable."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write_array(path: Path, array: np.ndarray) -> None:
    if array.dtype.hasobject:
        array = packed(array)
    # NumPy's format does not know bfloat16 and its relatives: they are kept as bytes.
    raw = array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array
    with open(path, "wb") as file:
        np.save(file, raw)
        _flush(file)


class Folder:
    """Reads what `write_folder` wrote, array by array.

    Args:
      path: the folder.

    Raises:
      NotFoundError: when there is nothing.
      DataLossError: when the manifest is damaged.
    """

    def __init__(self, path: Any) -> None:
        self.path = _existing(Path(path))
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / MANIFEST).read_text())
            self._keys = {e["name"]: key for key, e in self.manifest["arrays"].items()}
        except FileNotFoundError:
            raise NotFoundError(
                f"Failed to find a checkpoint at {path}. Please double-check that the path is "
                "correct: you may be missing the suffix (such as the '-1' in 'path/to/ckpt-1')."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataLossError(f"{self.path / MANIFEST} is damaged: {error!r}.") from error

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
        if Path(key).name != key:
            raise DataLossError(f"{self.path / MANIFEST} is damaged: {key!r} is no name of a file.")
        entry, file = self.manifest["arrays"][key], self.path / f"{key}.npy"
        strings = entry["dtype"] == "string"
        try:
            raw = np.load(file, mmap_mode=mode)
            dtype = raw.dtype if strings else np.dtype(entry["dtype"])
            raw = raw if raw.dtype == dtype else raw.view(dtype)
            checksum = _checksum(raw)
            array = unpacked(raw, entry["shape"]) if strings else raw.reshape(entry["shape"])
        except (OSError, ValueError, EOFError, TypeError) as error:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is missing or damaged: {error}."
            ) from error
        if "crc32" in entry and checksum != entry["crc32"]:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is damaged: its checksum does not match the manifest's."
            )
        return array


def _existing(path: Path) -> Path:
    """The folder, or the one it was about to replace when the program was killed."""
    old = _beside(path, ".old")
    return old if not path.exists() and (old / MANIFEST).exists() else path


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
    """Whether a checkpoint lies at a path.

    Args:
      path: the path given to `Checkpoint.write`, or returned by `save`.
    """
    return (_existing(Path(path)) / MANIFEST).exists()


def remove(path: Any) -> None:
    """Deletes a checkpoint; nothing happens when there is none.

    Args:
      path: its path.
    """
    shutil.rmtree(path, ignore_errors=True)
    index = Path(f"{os.fspath(path)}.index")
    index.unlink(missing_ok=True)
