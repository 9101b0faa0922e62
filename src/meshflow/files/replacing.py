"""Files and folders that are whole or not there: written apart, and given their name at the end.

On a disk what is written lies beside its target, under a name that ends in `.part`, is flushed, and renamed.
Stores have no rename, but an object appears when its last byte has come: a file is written here and put,
and of a folder the file that makes it whole is put last. What a killed process left is cleared by
the next one that writes to the same place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from meshflow.core.runtime import errors
from meshflow.files import gfile
from meshflow.files.parts import clear_parts, part_name
from meshflow.files.paths import full_disk_named, named_errors, parent, remote, text

# What is replaced, on a disk, and what replaces it, in a store, for the moment of the change.
_OLD, _NEW = ".meshflow.old", ".meshflow.new"
# How often processes that give the same name at once try, and how each finds that another was faster.
_ATTEMPTS = 20
_MET = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})
# Stores in which an object is there when it is whole, so that it needs no other name before.
_OBJECTS = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "s3", "s3a"})

# Gives the names of the files in a folder that its writers put there.
Own = Callable[[str], Iterable[str]]


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
                try:
                    os.makedirs(self._folder, exist_ok=True)
                except FileExistsError:
                    raise NotADirectoryError(errno.ENOTDIR, "A folder of it is a file") from None
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
def writing(path: Any) -> Iterator[IO[Any]]:
    """A file of a folder that `replacing_folder` fills: on the disk, or in the store, when the block ends.

    Args:
      path: the file.

    Yields:
      The file, open for bytes; its `name` is a path on this machine.

    Raises:
      ResourceExhaustedError, ...: as for `replacing`.
    """
    name = text(path)
    if remote(name) is not None:
        with replacing(name) as file:
            yield file
        return
    with named_errors(name):
        opened = open(name, "w+b")  # noqa: SIM115
    with full_disk_named(name), opened as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing_folder(path: Any, last: str, own: Own | None = None) -> Iterator[str]:
    """A folder to fill that takes its name, or another's place, when the block ends without an error.

    Args:
      path: where; folders above it are made.
      last: name of the file that makes the folder whole: write it after all others. Readers ask
        `existing_folder` where the folder is, and take one without this file for none.
      own: gives the names of the files in a folder that an earlier writer put there; others stay. Default: all.

    Yields:
      The path of the folder to fill, which is empty, or holds what stays.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (a full disk), ...: naming `path`.
      What was there before is there still then.
    """
    target = _resolved(path)
    store = remote(target)
    filling = _on_disk(target, own) if store is None else _in_store(target, last, own)
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
    target = _resolved(path)
    if not gfile.exists(gfile.join(target, last)):
        for aside in (f"{target}{_OLD}", f"{target}{_NEW}"):
            if gfile.exists(gfile.join(aside, last)):
                return aside
    return text(path).rstrip("/") or "/"


def remove_folder(path: Any, last: str, own: Own | None = None) -> None:
    """Deletes what `replacing_folder` wrote, first the file that makes it whole; nothing where nothing is.

    Args:
      path: the folder.
      last: name of the file that makes it whole.
      own: as for `replacing_folder`; a folder with other files stays, with them.
    """
    target = _resolved(path)
    if remote(target) is None:
        _put_back(target)
        clear_parts(target)
    for folder, whose in ((f"{target}{_NEW}", None), (target, own), (f"{target}{_OLD}", None)):
        _emptied(folder, last, whose)


def clear_folder(path: Any, last: str) -> None:
    """Deletes what writers of a folder that ended left beside it.

    Args:
      path: the folder.
      last: name of the file that makes it whole.
    """
    target = _resolved(path)
    if remote(target) is None:
        clear_parts(target)
    if gfile.exists(gfile.join(target, last)):
        for aside in (f"{target}{_OLD}", f"{target}{_NEW}"):
            _emptied(aside, last, None)


def _resolved(path: Any) -> str:
    """A folder's path without an ending slash; where it is a link, what it leads to."""
    target = text(path).rstrip("/") or "/"
    return os.path.realpath(target) if remote(target) is None and os.path.islink(target) else target


@contextlib.contextmanager
def _on_disk(target: str, own: Own | None) -> Iterator[str]:
    above = os.path.dirname(os.path.abspath(target))
    part = part_name(target)
    with named_errors(target):
        if os.path.lexists(target) and not os.path.isdir(target):
            raise NotADirectoryError(errno.ENOTDIR, "there is a file, not a folder", target)
        os.makedirs(above, exist_ok=True)
        clear_parts(target)
        _put_back(target)
        os.mkdir(part)
    try:
        with full_disk_named(target):
            yield part
        with named_errors(target):
            _swap(part, target, own)
            flush_folder(above)
        shutil.rmtree(f"{target}{_OLD}", ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put_back(target: str) -> None:
    """Ends what a killed process began: the folder that was to be replaced has its name again."""
    if not os.path.lexists(target):
        try:
            os.replace(f"{target}{_OLD}", target)
        except OSError as error:
            if error.errno not in _MET:
                raise


def _swap(part: str, target: str, own: Own | None) -> None:
    """Gives a folder its name. Another process may be doing the same: the last one stays."""
    old = f"{target}{_OLD}"
    for attempt in range(_ATTEMPTS):
        try:
            if own is not None and os.path.isdir(target):
                _carry_over(target, part, set(own(target)))
            flush_folder(part)
            if os.path.lexists(target):
                shutil.rmtree(old, ignore_errors=True)
                os.replace(target, old)
            os.replace(part, target)
            return
        except (OSError, errors.NotFoundError) as error:
            met = not isinstance(error, OSError) or error.errno in _MET
            if not met or attempt == _ATTEMPTS - 1:
                _put_back(target)
                raise


def _carry_over(source: str, target: str, without: set[str]) -> None:
    """What others put into a folder is in the new one, too."""
    for name in sorted(set(os.listdir(source)) - without - set(os.listdir(target))):
        found, here = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(found) and not os.path.islink(found):
            shutil.copytree(found, here, symlinks=True, copy_function=_linked)
        else:
            _linked(found, here)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # of a file system without links
        shutil.copy2(source, target, follow_symlinks=False)


@contextlib.contextmanager
def _in_store(target: str, last: str, own: Own | None) -> Iterator[str]:
    """Fills the place itself while nothing whole is there; else a place beside it, which is copied."""
    new = f"{target}{_NEW}"
    if existing_folder(target, last) == new:
        # A process ended while it copied: that is finished first.
        _copied(new, target, last, own)
    replaced = gfile.exists(gfile.join(target, last))
    part, whose = (new, None) if replaced else (target, own)
    with named_errors(target):
        _emptied(part, last, whose)
    try:
        yield part
    except BaseException:
        _emptied(part, last, whose)
        raise
    if replaced:
        _copied(part, target, last, own)


def _copied(part: str, target: str, last: str, own: Own | None) -> None:
    """Gives a whole folder of a store its name; at any moment one of the two is whole."""
    store = remote(part)
    with named_errors(target):
        _emptied(target, last, own)
        root = store._strip_protocol(part)
        names = [f[len(root) :].lstrip("/") for f in store.find(part)]
        for name in sorted(names, key=lambda n: n == last):
            store.cp_file(f"{part}/{name}", f"{target}/{name}")
        _emptied(part, last, None)


def _emptied(folder: str, last: str, own: Own | None) -> None:
    """Deletes a folder, or what an earlier writer put there; first the file that makes it whole."""
    if not gfile.isdir(folder):
        return
    present = {name.rstrip("/") for name in gfile.listdir(folder)}
    names = present if own is None else present & set(own(folder))
    if last in names:
        gfile.remove(gfile.join(folder, last))
    if own is None:
        gfile.rmtree(folder) if gfile.isdir(folder) else None
        return
    for name in sorted(names - {last}):
        found = gfile.join(folder, name)
        gfile.rmtree(found) if gfile.isdir(found) else gfile.remove(found)
    store = remote(folder)
    if gfile.isdir(folder) and not gfile.listdir(folder):
        os.rmdir(folder) if store is None else store.rmdir(folder)


def _put(store: Any, part: str, target: str) -> None:
    schemes = {store.protocol} if isinstance(store.protocol, str) else set(store.protocol)
    if schemes & _OBJECTS:
        store.put_file(part, target)
        return
    above = parent(target)
    store.makedirs(above, exist_ok=True)
    store.put_file(part, part_name(target))
    store.mv(part_name(target), target)


def flush_folder(folder: str) -> None:
    """Makes renames and new names in a local folder last through a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
