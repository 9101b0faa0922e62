"""Sorted listings of local and remote folders."""

from __future__ import annotations

import os

from meshflow.core.runtime.errors import NotFoundError
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import get_file_system, to_path_string


def list_folders(folder: StrPath) -> list[str]:
    """Return the sorted names of the subfolders of a folder.

    Raises:
      NotFoundError: The folder does not exist.
    """
    path = to_path_string(folder)
    if not gfile.isdir(path):
        raise NotFoundError(f"Could not find directory {path}")
    if get_file_system(path) is None:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir())
    return sorted(n for n in gfile.listdir(path) if gfile.isdir(gfile.join(path, n)))


def find_files(folder: StrPath, endings: tuple[str, ...], follow_links: bool = False) -> list[str]:
    """Return the paths of the files in a folder and its subfolders, folder by folder.

    Args:
      folder: Path of the folder; a missing folder has no files.
      endings: Endings of the file names, in lower case.
      follow_links: Whether to enter folders that are symbolic links.
    """
    path = to_path_string(folder)
    local = get_file_system(path) is None
    walk = os.walk(path, followlinks=follow_links) if local else gfile.walk(path)
    return [
        gfile.join(root, name)
        for root, _, names in sorted(walk, key=lambda entry: entry[0])
        for name in sorted(names)
        if name.lower().endswith(endings)
    ]


def measure_folder(folder: StrPath) -> int:
    """Return the total size of the files in a folder and its subfolders, in bytes.

    Args:
      folder: Path of the folder; a missing folder has no files.
    """
    path = to_path_string(folder)
    if (store := get_file_system(path)) is not None:
        return int(store.du(path)) if store.exists(path) else 0
    return sum(os.lstat(file).st_size for file in find_files(path, ("",)))
