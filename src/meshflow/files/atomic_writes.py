"""Atomic writes: a file or folder appears under its path only when it is complete.

On a local disk, the data is written to a `.part` name in the same folder, flushed, and renamed.
Object stores cannot rename, but an object appears only when its upload is complete: a file is
written locally and uploaded at the end. A folder is complete when its marker file exists, which is
uploaded last. The next writer to the same path deletes the files that a killed process left.
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
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.part_files import delete_abandoned_parts, make_part_name
from meshflow.files.paths import (
    get_file_system,
    get_parent,
    to_path_string,
    translate_errors,
    translate_full_disk_error,
)

# Suffixes of the old folder (on a disk) and of the new folder (in a store) during a replacement.
_OLD_SUFFIX, _NEW_SUFFIX = ".meshflow.old", ".meshflow.new"
# Attempts if several processes replace the same folder, and the error codes of a lost race.
_ATTEMPTS = 20
_RACE_CODES = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})
# Schemes of stores that hide partially uploaded objects, which thus need no temporary name.
_OBJECT_STORES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "s3", "s3a"})

# A function that returns the names of the entries of a folder that belong to the writer.
OwnedNames = Callable[[str], Iterable[str]]


class AtomicFile:
    """A file that appears under its path when it is committed.

    Args:
      path: Final path; its parent folders are created.
      mode: 'w' or 'wb' (optionally with '+').
      encoding: Encoding of text. Default: UTF-8.

    Attributes:
      file: The open file.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (full disk), ...: `path` cannot
      be written; an existing file is kept.
    """

    def __init__(self, path: StrPath, mode: str = "wb", encoding: str | None = None) -> None:
        self._target = _to_target(path)
        self._store = get_file_system(self._target)
        self._published = False
        with translate_errors(self._target):
            if self._store is not None:
                # An older file in the store is kept until the new one is complete.
                descriptor, self._part = tempfile.mkstemp(prefix="meshflow-", suffix=".part")
                os.close(descriptor)
            else:
                self._folder = os.path.dirname(os.path.abspath(self._target))
                try:
                    os.makedirs(self._folder, exist_ok=True)
                except FileExistsError:
                    raise NotADirectoryError(errno.ENOTDIR, "A parent folder is a file") from None
                delete_abandoned_parts(self._target)
                self._part = make_part_name(self._target)
            encoding = encoding if "b" in mode else encoding or "utf-8"
            self.file: IO[Any] = open(self._part, mode, encoding=encoding)  # noqa: SIM115

    def publish(self) -> None:
        """Make the content so far visible under the final path; later writes append to it."""
        with translate_errors(self._target):
            self.file.flush()
            if self._store is not None:
                _upload(self._store, self._part, self._target)
            elif not self._published:
                os.replace(self._part, self._target)
                self._part, self._published = self._target, True

    def commit(self) -> None:
        """Close the file and make it visible under the final path."""
        try:
            with translate_errors(self._target):
                self.file.flush()
                os.fsync(self.file.fileno())
                self.file.close()
                if self._store is not None:
                    _upload(self._store, self._part, self._target)
                elif not self._published:
                    os.replace(self._part, self._target)
                    self._published = True
                    sync_folder(self._folder)
        finally:
            self.discard()

    def discard(self) -> None:
        """Delete the file unless it is already visible under the final path."""
        with contextlib.suppress(OSError):
            self.file.close()
        if not self._published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)


@contextlib.contextmanager
def replace_file(path: StrPath, mode: str = "wb", encoding: str | None = None) -> Iterator[IO[Any]]:
    """Write a file that replaces `path` atomically when the block ends without an error.

    Args:
      path: Final path; its parent folders are created.
      mode: 'w' or 'wb' (optionally with '+').
      encoding: Encoding of text. Default: UTF-8.

    Yields:
      The open file.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (full disk), ...: `path` cannot
      be written; an existing file is kept.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "notes.txt")
      >>> with replace_file(path, "w") as file:
      ...     _ = file.write("tea")
      >>> os.listdir(os.path.dirname(path))
      ['notes.txt']
    """
    replacement = AtomicFile(path, mode, encoding)
    try:
        with translate_full_disk_error(to_path_string(path)):
            yield replacement.file
    except BaseException:
        replacement.discard()
        raise
    replacement.commit()


@contextlib.contextmanager
def write_flushed(path: StrPath) -> Iterator[IO[Any]]:
    """Write a file in a folder of `replace_folder`, which is flushed or uploaded when the block ends.

    Yields:
      The file, open for bytes; its `name` is a local path.

    Raises:
      ResourceExhaustedError, ...: As for `replace_file`.
    """
    name = to_path_string(path)
    if get_file_system(name) is not None:
        with replace_file(name) as file:
            yield file
        return
    with translate_errors(name):
        stream = open(name, "w+b")  # noqa: SIM115
    with translate_full_disk_error(name), stream as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replace_folder(path: StrPath, marker: str, owned: OwnedNames | None = None) -> Iterator[str]:
    """Fill a folder that replaces `path` when the block ends without an error.

    Args:
      path: Final path; its parent folders are created.
      marker: Name of the file that makes the folder complete; write it after all others. Readers
        locate the folder with `find_folder`, and ignore folders without this file.
      owned: Function that returns the names of the entries that an earlier writer created in a
        folder; other entries are kept. Default: all entries are replaced.

    Yields:
      Path of the folder to fill, which contains only entries that are kept.

    Raises:
      NotFoundError, PermissionDeniedError, ResourceExhaustedError (full disk), ...: `path` cannot
      be written; the existing folder is kept.
    """
    target = _resolve_folder(path)
    store = get_file_system(target)
    if store is not None:
        filling = _replace_remote_folder(target, marker, owned)
    elif _is_fixed(target):
        filling = _replace_entries(target, marker, owned)
    else:
        filling = _replace_local_folder(target, owned)
    with filling as part:
        yield part


def find_folder(path: StrPath, marker: str) -> str:
    """Locate a folder of `replace_folder`: at its path, or where a killed process left it.

    Args:
      path: Final path of the folder.
      marker: Name of the file that makes the folder complete.

    Returns:
      The location; `path` if there is no complete folder.
    """
    target = _resolve_folder(path)
    if not gfile.exists(gfile.join(target, marker)):
        for alternative in (f"{target}{_OLD_SUFFIX}", f"{target}{_NEW_SUFFIX}"):
            if gfile.exists(gfile.join(alternative, marker)):
                return alternative
    return _to_target(path).rstrip("/") or "/"


def delete_folder(path: StrPath, marker: str, owned: OwnedNames | None = None) -> None:
    """Delete a folder of `replace_folder`, beginning with its marker; a missing folder is ignored.

    Args:
      path: Path of the folder.
      marker: Name of the file that makes the folder complete.
      owned: As for `replace_folder`; a folder with other entries is kept with them.
    """
    target = _resolve_folder(path)
    if get_file_system(target) is None:
        _restore_old_folder(target)
        delete_abandoned_parts(target)
    for folder, names in (
        (f"{target}{_NEW_SUFFIX}", None),
        (target, owned),
        (f"{target}{_OLD_SUFFIX}", None),
    ):
        _delete_entries(folder, marker, names)


def delete_leftovers(path: StrPath, marker: str) -> None:
    """Delete the temporary folders that dead writers of a folder left.

    Args:
      path: Path of the folder.
      marker: Name of the file that makes the folder complete.
    """
    target = _resolve_folder(path)
    if get_file_system(target) is None:
        delete_abandoned_parts(target)
    if gfile.exists(gfile.join(target, marker)):
        for leftover in (f"{target}{_OLD_SUFFIX}", f"{target}{_NEW_SUFFIX}"):
            _delete_entries(leftover, marker, None)


def _to_target(path: StrPath) -> str:
    """Convert a path to a string, and refuse an empty one, which names nothing."""
    target = to_path_string(path)
    if not target:
        raise errors.InvalidArgumentError(
            "The path is empty: pass the name of a file or folder ('.' is the current folder)."
        )
    return target


def _resolve_folder(path: StrPath) -> str:
    """Return a folder's path without a trailing slash; links and the dots at its end are resolved."""
    target = _to_target(path).rstrip("/") or "/"
    is_resolved = get_file_system(target) is not None or not (
        os.path.islink(target) or os.path.basename(target) in {".", ".."}
    )
    return target if is_resolved else os.path.realpath(target)


def _is_fixed(target: str) -> bool:
    """Check whether a local folder cannot be renamed: a mount point, or a folder we work in."""
    here = ""
    with contextlib.suppress(FileNotFoundError):  # Another process deleted the current folder.
        here = os.path.join(os.getcwd(), "")
    folder = os.path.join(os.path.realpath(target), "")
    return here.startswith(folder) or os.path.ismount(target)


@contextlib.contextmanager
def _replace_local_folder(target: str, owned: OwnedNames | None) -> Iterator[str]:
    parent_folder = os.path.dirname(os.path.abspath(target))
    part = make_part_name(target)
    with translate_errors(target):
        if os.path.lexists(target) and not os.path.isdir(target):
            raise NotADirectoryError(errno.ENOTDIR, "the path is a file, not a folder", target)
        os.makedirs(parent_folder, exist_ok=True)
        delete_abandoned_parts(target)
        _restore_old_folder(target)
        os.mkdir(part)
    try:
        with translate_full_disk_error(target):
            yield part
        with translate_errors(target):
            _swap_folders(part, target, owned)
            sync_folder(parent_folder)
        shutil.rmtree(f"{target}{_OLD_SUFFIX}", ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _replace_entries(target: str, marker: str, owned: OwnedNames | None) -> Iterator[str]:
    """Fill a subfolder, then move its entries to the folder, the marker last."""
    name = os.path.join(target, "new")
    part = make_part_name(name)
    with translate_errors(target):
        delete_abandoned_parts(name)
        os.mkdir(part)
    try:
        with translate_full_disk_error(target):
            yield part
        with translate_errors(target):
            sync_folder(part)
            new = set(os.listdir(part))
            old = new.union(os.listdir(target) if owned is None else owned(target))
            _delete_entries(target, marker, lambda _: old - {os.path.basename(part)})
            for entry in sorted(new, key=lambda n: n == marker):
                os.replace(os.path.join(part, entry), os.path.join(target, entry))
            sync_folder(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _restore_old_folder(target: str) -> None:
    """Restore the old folder if a process was killed between the two renames of a replacement."""
    if not os.path.lexists(target):
        try:
            os.replace(f"{target}{_OLD_SUFFIX}", target)
        except OSError as error:
            if error.errno not in _RACE_CODES:
                raise


def _swap_folders(part: str, target: str, owned: OwnedNames | None) -> None:
    """Rename a complete folder to its final path. If several processes do so, the last one wins."""
    old = f"{target}{_OLD_SUFFIX}"
    for attempt in range(_ATTEMPTS):
        try:
            if owned is not None and os.path.isdir(target):
                _link_kept_entries(target, part, set(owned(target)))
            sync_folder(part)
            if os.path.lexists(target):
                shutil.rmtree(old, ignore_errors=True)
                os.replace(target, old)
            os.replace(part, target)
            return
        except (OSError, errors.NotFoundError) as error:
            is_race = not isinstance(error, OSError) or error.errno in _RACE_CODES
            if not is_race or attempt == _ATTEMPTS - 1:
                _restore_old_folder(target)
                raise


def _link_kept_entries(source: str, target: str, owned_names: set[str]) -> None:
    """Link or copy the entries of the old folder that do not belong to the writer into the new one."""
    for name in sorted(set(os.listdir(source)) - owned_names - set(os.listdir(target))):
        entry, copy = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(entry) and not os.path.islink(entry):
            shutil.copytree(entry, copy, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(entry, copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # The file system does not support hard links.
        shutil.copy2(source, target, follow_symlinks=False)


@contextlib.contextmanager
def _replace_remote_folder(target: str, marker: str, owned: OwnedNames | None) -> Iterator[str]:
    """Fill the final folder itself unless it is complete; else fill a temporary folder and copy it."""
    new = f"{target}{_NEW_SUFFIX}"
    if find_folder(target, marker) == new:
        # A process ended during this copy, which must be completed first.
        _copy_remote_folder(new, target, marker, owned)
    replaced = gfile.exists(gfile.join(target, marker))
    part, part_owned = (new, None) if replaced else (target, owned)
    with translate_errors(target):
        _delete_entries(part, marker, part_owned)
    try:
        yield part
    except BaseException:
        _delete_entries(part, marker, part_owned)
        raise
    if replaced:
        _copy_remote_folder(part, target, marker, owned)


def _copy_remote_folder(part: str, target: str, marker: str, owned: OwnedNames | None) -> None:
    """Copy a complete remote folder to its final path; one of them is complete at any moment."""
    store = get_file_system(part)
    with translate_errors(target):
        _delete_entries(target, marker, owned)
        root = store._strip_protocol(part)
        names = [f[len(root) :].lstrip("/") for f in store.find(part)]
        for name in sorted(names, key=lambda n: n == marker):
            store.cp_file(f"{part}/{name}", f"{target}/{name}")
        _delete_entries(part, marker, None)


def _delete_entries(folder: str, marker: str, owned: OwnedNames | None) -> None:
    """Delete a folder, or the entries of an earlier writer in it, beginning with the marker."""
    if not gfile.isdir(folder):
        return
    present = {name.rstrip("/") for name in gfile.listdir(folder)}
    names = present if owned is None else present & set(owned(folder))
    if marker in names:
        gfile.remove(gfile.join(folder, marker))
    if owned is None:
        gfile.rmtree(folder) if gfile.isdir(folder) else None
        return
    for name in sorted(names - {marker}):
        entry = gfile.join(folder, name)
        gfile.rmtree(entry) if gfile.isdir(entry) else gfile.remove(entry)
    store = get_file_system(folder)
    if gfile.isdir(folder) and not gfile.listdir(folder):
        os.rmdir(folder) if store is None else store.rmdir(folder)


def _upload(store: Any, part: str, target: str) -> None:
    schemes = {store.protocol} if isinstance(store.protocol, str) else set(store.protocol)
    if schemes & _OBJECT_STORES:
        store.put_file(part, target)
        return
    folder = get_parent(target)
    store.makedirs(folder, exist_ok=True)
    store.put_file(part, make_part_name(target))
    store.mv(make_part_name(target), target)


def sync_folder(folder: str) -> None:
    """Flush a local folder, so that renames and new names in it survive a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
