"""Check of files in folders from others: regular files inside of the folder, not links to other files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from meshflow.core.runtime.errors import DataLossError
from meshflow.environment.types import StrPath
from meshflow.files.paths import is_remote, to_path_string


def check_contained(path: StrPath, folder: StrPath) -> str:
    """Check that a file is a regular file inside of a folder, before it is opened.

    A link would disclose other files of this machine, and a pipe would block the program. A path that
    does not exist is accepted, as are paths in stores, which have neither.

    Args:
      path: Path of the file.
      folder: Folder of the model, checkpoint or dataset, which may itself be a link. In the cache of
        Hugging Face, its files may be links to the files of the same repository.

    Returns:
      The path as a string.

    Raises:
      DataLossError: If the file is outside of the folder, or a folder, a pipe or a device.
    """
    name = to_path_string(path)
    if is_remote(name) or not os.path.exists(name):
        return name
    real_folder = os.path.realpath(to_path_string(folder) or os.curdir)
    real_path = os.path.realpath(name)
    roots = [real_folder, *_find_blobs(real_folder)]
    if all(os.path.commonpath([root, real_path]) != root for root in roots):
        raise DataLossError(
            f"{name} is a link out of its folder, to {real_path}. Expected a file in {real_folder}. If you trust the "
            "link, copy the folder with the files that it refers to (cp -rL)."
        )
    return check_regular(name)


def check_regular(path: StrPath) -> str:
    """Check that a path is a regular file or a link to one, and not a pipe that would block the program.

    A path that does not exist is accepted, as are paths in stores.

    Args:
      path: Path of the file.

    Returns:
      The path as a string.

    Raises:
      DataLossError: If it is a folder, a pipe or a device.
    """
    name = to_path_string(path)
    if not is_remote(name) and os.path.exists(name) and not stat.S_ISREG(os.stat(name).st_mode):
        raise DataLossError(f"{name} is not a regular file, so it is not read.")
    return name


def _find_blobs(folder: str) -> list[str]:
    """Return the folder `blobs` of a repository in the cache of Hugging Face, whose files are links to it."""
    for parent in (path := Path(folder), *path.parents):
        if parent.parent.name == "snapshots":
            blobs = parent.parent.parent / "blobs"
            return [str(blobs)] if os.path.realpath(blobs) == str(blobs) else []
    return []
