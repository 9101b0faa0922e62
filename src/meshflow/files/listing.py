"""The folders and files of a folder, here or in a store, in the order of their names."""

from __future__ import annotations

import os
from typing import Any

from meshflow.core.runtime.errors import NotFoundError
from meshflow.files import gfile
from meshflow.files.paths import remote, text


def folders_in(folder: Any) -> list[str]:
    """Names of the folders in a folder, sorted.

    Args:
      folder: its path.

    Raises:
      NotFoundError: when it is not there.
    """
    path = text(folder)
    if not gfile.isdir(path):
        raise NotFoundError(f"Could not find directory {path}")
    if remote(path) is None:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir())
    return sorted(n for n in gfile.listdir(path) if gfile.isdir(gfile.join(path, n)))


def files_below(folder: Any, endings: tuple[str, ...], follow_links: bool = False) -> list[str]:
    """Paths of the files in a folder and those below it, folder by folder.

    Args:
      folder: its path; nothing is found where it is not there.
      endings: how the names end, in lower case.
      follow_links: whether folders are entered that are links.
    """
    path = text(folder)
    local = remote(path) is None
    walk = os.walk(path, followlinks=follow_links) if local else gfile.walk(path)
    return [
        gfile.join(root, name)
        for root, _, names in sorted(walk, key=lambda found: found[0])
        for name in sorted(names)
        if name.lower().endswith(endings)
    ]
