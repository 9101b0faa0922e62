"""Copies between this machine and remote stores, for libraries that read local files only."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import get_file_system, to_path_string, translate_errors


@contextlib.contextmanager
def local_copy(path: StrPath) -> Iterator[str]:
    """Provide a local copy of a remote file while the block runs; a local file is not copied.

    Yields:
      A local path with the same base name.

    Raises:
      NotFoundError: The store has no such file.

    Example:
      >>> with replace_file("memory://docs/notes.txt", "w") as file:
      ...     _ = file.write("tea")
      >>> with local_copy("memory://docs/notes.txt") as path:
      ...     open(path).read()
      'tea'
    """
    name = to_path_string(path)
    store = get_file_system(name)
    if store is None:
        yield name
        return
    with tempfile.TemporaryDirectory(prefix="meshflow-") as folder:
        copy = os.path.join(folder, os.path.basename(name))
        with translate_errors(name):
            store.get_file(name, copy)
        yield copy


@contextlib.contextmanager
def local_file_or_folder(path: StrPath) -> Iterator[str]:
    """Yield a local path of a file or folder; a remote file is copied.

    Raises:
      UnimplementedError: For a folder of a store.
    """
    name = to_path_string(path)
    if get_file_system(name) is not None and gfile.isdir(name):
        raise UnimplementedError(f"{name} is a remote folder. Copy it to a local disk first.")
    with local_copy(name) as local_path:
        yield local_path


def copy_folder(folder: str, target: StrPath) -> None:
    """Copy the files of a local folder, recursively, into a local or remote folder.

    Args:
      folder: Local folder.
      target: Target folder. Its files are kept unless a copied file has the same name.

    Raises:
      PermissionDeniedError, ResourceExhaustedError (full disk), ...: A file cannot be written.
    """
    for root, _, names in os.walk(folder):
        relative = os.path.relpath(root, folder)
        target_root = (
            to_path_string(target)
            if relative == os.curdir
            else gfile.join(target, *relative.split(os.sep))
        )
        for name in sorted(names):
            file = os.path.join(root, name)
            with open(file, "rb") as source, replace_file(gfile.join(target_root, name)) as copy:
                shutil.copyfileobj(source, copy)
