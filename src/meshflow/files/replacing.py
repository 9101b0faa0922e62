"""Files and folders that are whole or not there: written apart, and given their name at the end.

On a disk what is written lies beside its target, under a name that ends in `.part`, is flushed, and renamed.
Stores have no rename, but an object appears when its last byte has come: a file is written here and put,
and of a folder the file that makes it whole is put last. What a killed process left is cleared by
the next one that writes to the same place.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from meshflow.files import gfile
from meshflow.files.paths import full_disk_named, named_errors, parent, remote, text

_COUNT = itertools.count()
# Of a process on another machine nothing is known; what it has not touched for so long is left over.
_FORGOTTEN = 24 * 3600.0
# Stores in which an object is there when it is whole, so that it needs no other name before.
_OBJECTS = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "s3", "s3a"})


class Replacement:
    """A file to write that takes its name, or another's place, when it is whole.

    Args:
      path: where; folders above it are made.
      mode: 'w' or 'wb' (also with '+').
      encoding: of text; default UTF-8.

    Attributes:
      file: the open file.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (a full disk), ...: naming `path`.
      What was there before is there still then.
    """

    def __init__(self, path: Any, mode: str = "wb", encoding: str | None = None) -> None:
        self._target = text(path)
        self._store = remote(self._target)
        self._shown = False
        with named_errors(self._target):
            if self._store is not None:
                # The name of what is in the store already is not taken before the end.
                descriptor, self._part = tempfile.mkstemp(prefix="meshflow-", suffix=".part")
                os.close(descriptor)
            else:
                self._folder = os.path.dirname(os.path.abspath(self._target))
                os.makedirs(self._folder, exist_ok=True)
                clear_parts(self._target)
                self._part = part_name(self._target)
            encoding = encoding if "b" in mode else encoding or "utf-8"
            self.file: IO[Any] = open(self._part, mode, encoding=encoding)  # noqa: SIM115

    def show(self) -> None:
        """Gives what is written so far its name, before it is whole; what follows is added to it."""
        with named_errors(self._target):
            self.file.flush()
            if self._store is not None:
                _put(self._store, self._part, self._target)
            elif not self._shown:
                os.replace(self._part, self._target)
                self._part, self._shown = self._target, True

    def commit(self) -> None:
        """Ends the file and gives it its name."""
        try:
            with named_errors(self._target):
                self.file.flush()
                os.fsync(self.file.fileno())
                self.file.close()
                if self._store is not None:
                    _put(self._store, self._part, self._target)
                elif not self._shown:
                    os.replace(self._part, self._target)
                    self._shown = True
                    flush_folder(self._folder)
        finally:
            self.discard()

    def discard(self) -> None:
        """Deletes what was written, unless it has its name already."""
        with contextlib.suppress(OSError):
            self.file.close()
        if not self._shown:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)


@contextlib.contextmanager
def replacing(path: Any, mode: str = "wb", encoding: str | None = None) -> Iterator[IO[Any]]:
    """A file to write that takes its name, or another's place, when the block ends without an error.

    Args:
      path: where; folders above it are made.
      mode: 'w' or 'wb' (also with '+').
      encoding: of text; default UTF-8.

    Yields:
      The open file.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (a full disk), ...: naming `path`.
      What was there before is there still then.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "notes.txt")
      >>> with replacing(path, "w") as file:
      ...     _ = file.write("tea")
      >>> os.listdir(os.path.dirname(path))
      ['notes.txt']
    """
    written = Replacement(path, mode, encoding)
    try:
        with full_disk_named(text(path)):
            yield written.file
    except BaseException:
        written.discard()
        raise
    written.commit()


@contextlib.contextmanager
def replacing_folder(path: Any, last: str) -> Iterator[str]:
    """A folder to fill that takes its name, or another's place, when the block ends without an error.

    Args:
      path: where; folders above it are made.
      last: name of the file that makes the folder whole: write it after all others. Readers ask
        `existing_folder` where the folder is, and take one without this file for none.

    Yields:
      The path of the folder to fill, which is empty.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (a full disk), ...: naming `path`.
      What was there before is there still then.
    """
    target = text(path).rstrip("/")
    filling = _in_store(target, last) if remote(target) is not None else _on_disk(target)
    with filling as part:
        yield part


def existing_folder(path: Any, last: str) -> str:
    """Where a folder lies that `replacing_folder` wrote: at its path, or where a killed process left it.

    Args:
      path: its path.
      last: name of the file that makes it whole.

    Returns:
      The path, also when nothing is there.
    """
    target = text(path).rstrip("/")
    if not gfile.exists(gfile.join(target, last)):
        for aside in (f"{target}.old", f"{target}.new"):
            if gfile.exists(gfile.join(aside, last)):
                return aside
    return target


@contextlib.contextmanager
def _on_disk(target: str) -> Iterator[str]:
    above = os.path.dirname(os.path.abspath(target))
    part, old = part_name(target), f"{target}.old"
    with named_errors(target):
        os.makedirs(above, exist_ok=True)
        clear_parts(target)
        os.mkdir(part)
    try:
        with full_disk_named(target):
            yield part
        with named_errors(target):
            flush_folder(part)
            if os.path.lexists(target):
                shutil.rmtree(old, ignore_errors=True)
                os.replace(target, old)
            os.replace(part, target)
            flush_folder(above)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _in_store(target: str, last: str) -> Iterator[str]:
    """Fills the place itself while nothing whole is there; else a place beside it, which is copied."""
    replaced = gfile.exists(gfile.join(existing_folder(target, last), last))
    part = f"{target}.new" if replaced else target
    if (
        existing_folder(target, last) == part
    ):  # a process ended while it copied: that is finished first
        _copied(part, target, last)
    _emptied(part, last)
    try:
        yield part
    except BaseException:
        _emptied(part, last)
        raise
    if replaced:
        _copied(part, target, last)


def _copied(part: str, target: str, last: str) -> None:
    """Gives a whole folder of a store its name; at any moment one of the two is whole."""
    store = remote(part)
    with named_errors(target):
        _emptied(target, last)
        root = store._strip_protocol(part)
        names = [f[len(root) :].lstrip("/") for f in store.find(part)]
        for name in sorted(names, key=lambda n: n == last):
            store.cp_file(f"{part}/{name}", f"{target}/{name}")
        _emptied(part, last)


def _emptied(folder: str, last: str) -> None:
    """Deletes a folder of a store, first the file that makes it whole."""
    store = remote(folder)
    with contextlib.suppress(FileNotFoundError):
        store.rm_file(f"{folder}/{last}")
    if store.exists(folder):
        store.rm(folder, recursive=True)


def _put(store: Any, part: str, target: str) -> None:
    schemes = {store.protocol} if isinstance(store.protocol, str) else set(store.protocol)
    if schemes & _OBJECTS:
        store.put_file(part, target)
        return
    above = parent(target)
    store.makedirs(above, exist_ok=True)
    store.put_file(part, part_name(target))
    store.mv(part_name(target), target)


def part_name(path: str) -> str:
    """The name that what becomes `path` has while this process writes it."""
    return f"{path}.{_machine()}-{os.getpid()}-{next(_COUNT)}.part"


def clear_parts(path: str) -> None:
    """Deletes what processes that ended left of writing to a local path.

    Args:
      path: what they wanted to write.
    """
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(f"{name}.") and _is_left(entry):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Whether nobody writes a `.part` any more."""
    owner = entry.name.removesuffix(".part").rpartition(".")[2].rsplit("-", 2)
    if not entry.name.endswith(".part") or len(owner) != 3 or not owner[1].isdigit():
        return False
    if owner[0] != _machine():
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _FORGOTTEN
    return not _lives(int(owner[1]))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """This machine's name, without what separates the parts of a name."""
    return socket.gethostname().replace(".", "_").replace("/", "_")


def flush_folder(folder: str) -> None:
    """Makes renames and new names in a local folder last through a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
