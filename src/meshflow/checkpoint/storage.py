"""Arrays on disk: a folder with one `.npy` file each and a JSON manifest.

The folder is written under a temporary name, flushed to the disk and renamed, so that a program killed
at any moment leaves the checkpoint before or the one after, never half of one. Each array has a
checksum; damage is reported with the file's name.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and others with NumPy
import numpy as np

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
    part, old = _beside(target, ".part"), _beside(target, ".old")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    manifest = {}
    for key, (name, value) in arrays.items():
        array = np.asarray(value)
        _write_array(part / f"{key}.npy", array)
        manifest[key] = {
            "name": name,
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "crc32": _checksum(array),
        }
    content = {"format": "meshflow-arrays", "version": 1, **(extra or {}), "arrays": manifest}
    with open(part / MANIFEST, "w") as file:
        json.dump(content, file, indent=1)
        _flush(file)
    _flush_folder(part)
    if target.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(target, old)
    os.replace(part, target)
    _flush_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


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
        raise TypeError(f"{path.stem}: arrays of Python objects cannot be saved.")
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
        entry, file = self.manifest["arrays"][key], self.path / f"{key}.npy"
        try:
            raw, dtype = np.load(file), np.dtype(entry["dtype"])
            array = (raw if raw.dtype == dtype else raw.view(dtype)).reshape(entry["shape"])
        except (OSError, ValueError, EOFError, TypeError) as error:
            raise DataLossError(
                f"{file} (weight {entry['name']}) is missing or damaged: {error}."
            ) from error
        if "crc32" in entry and _checksum(array) != entry["crc32"]:
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
