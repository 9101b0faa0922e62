"""Copies between this machine and stores, for libraries that know files of this machine alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from meshflow.files import gfile
from meshflow.files.paths import named_errors, remote, text
from meshflow.files.replacing import replacing


@contextlib.contextmanager
def local_copy(path: Any) -> Iterator[str]:
    """A file of a store on this machine, for as long as the block lasts; a local file is its own.

    Args:
      path: the file.

    Yields:
      A local path with the same ending.

    Raises:
      NotFoundError: when there is no such file in the store.

    Example:
      >>> with replacing("memory://docs/notes.txt", "w") as file:
      ...     _ = file.write("tea")
      >>> with local_copy("memory://docs/notes.txt") as path:
      ...     open(path).read()
      'tea'
    """
    name = text(path)
    store = remote(name)
    if store is None:
        yield name
        return
    with tempfile.TemporaryDirectory(prefix="meshflow-") as folder:
        here = os.path.join(folder, os.path.basename(name))
        with named_errors(name):
            store.get_file(name, here)
        yield here


def copy_folder(folder: str, target: Any) -> None:
    """Copies the files of a local folder, and of those below it, into another, here or in a store.

    Args:
      folder: the local folder.
      target: where; what is there stays, unless it has a copied file's name.

    Raises:
      PermissionDeniedError, ResourceExhaustedError (a full disk), ...: naming the file.
    """
    for place, _, names in os.walk(folder):
        below = os.path.relpath(place, folder)
        here = text(target) if below == os.curdir else gfile.join(target, *below.split(os.sep))
        for name in sorted(names):
            file = os.path.join(place, name)
            with open(file, "rb") as source, replacing(gfile.join(here, name)) as copy:
                shutil.copyfileobj(source, copy)
