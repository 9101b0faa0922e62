"""Files and folders, local ones and, with the package fsspec, remote ones (`gs://...`)."""

from __future__ import annotations

import contextlib
import datetime
import glob as python_glob
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from meshflow.core.runtime import errors
from meshflow.files import paths as _paths
from meshflow.files.paths import full_disk_named, named_errors

__all__ = [
    "GFile",
    "copy",
    "exists",
    "get_registered_schemes",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]


class FileStatistics(NamedTuple):
    """What `stat` returns: size in bytes, time of the last change in nanoseconds, kind."""

    length: int
    mtime_nsec: int
    is_directory: bool


_MODES = tuple(m + e for m in "rwa" for e in ("", "b", "+", "b+", "+b"))


class GFile:
    """A file, opened when it is first read or written.

    Args:
      name: the path.
      mode: 'r', 'w', 'a', with 'b' for bytes and '+' for both directions.

    Raises:
      InvalidArgumentError: for another mode.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> path = tf.io.gfile.join(tempfile.mkdtemp(), "a.txt")
      >>> with tf.io.gfile.GFile(path, "w") as f:
      ...     f.write("hello")
      >>> tf.io.gfile.GFile(path).read()
      'hello'
    """

    def __init__(self, name: Any, mode: str = "r") -> None:
        if mode not in _MODES:
            raise errors.InvalidArgumentError(f"mode must be one of {_MODES}, got {mode!r}.")
        self._name = _paths.text(name)
        self._mode = mode
        self._file: Any = None

    @property
    def name(self) -> str:
        """The path."""
        return self._name

    @property
    def mode(self) -> str:
        """How it was opened."""
        return self._mode

    def _opened(self) -> Any:
        if self._file is None:
            remote = _paths.remote(self._name)
            opener = open if remote is None else remote.open
            encoding = None if "b" in self._mode else "utf-8"
            with named_errors(self._name):
                self._file = opener(self._name, self._mode, encoding=encoding)
        return self._file

    def size(self) -> int:
        """The size in bytes."""
        if self._file is not None and self._mode[0] != "r":
            self._file.flush()
        return stat(self._name).length

    def read(self, n: int = -1) -> Any:
        """The next n characters (bytes); default all that remain."""
        if self._mode[0] != "r" and "+" not in self._mode:
            raise errors.PermissionDeniedError("File isn't open for reading")
        return self._opened().read(n)

    def readline(self) -> Any:
        """The next line, with its end."""
        return self._opened().readline()

    def readlines(self) -> list[Any]:
        """All lines that remain."""
        return self._opened().readlines()

    def write(self, file_content: Any) -> None:
        """Writes text (or bytes)."""
        if self._mode[0] == "r" and "+" not in self._mode:
            raise errors.PermissionDeniedError("File isn't open for writing")
        if isinstance(file_content, bytes) and "b" not in self._mode:
            file_content = file_content.decode()
        if isinstance(file_content, str) and "b" in self._mode:
            file_content = file_content.encode()
        with full_disk_named(self._name):
            self._opened().write(file_content)

    def seek(self, offset: int, whence: int = 0) -> None:
        """Moves to a position."""
        self._opened().seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._opened().tell()

    def seekable(self) -> bool:
        """Always True."""
        return True

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        if self._file is not None:
            with full_disk_named(self._name):
                self._file.flush()

    def close(self) -> None:
        """Closes the file; a file opened for writing exists then, also when nothing was written."""
        if self._file is None and self._mode[0] in "wa":
            self._opened()
        if self._file is not None:
            file, self._file = self._file, None
            if self._mode in ("r", "rb"):
                file.close()
                return
            with full_disk_named(self._name):
                file.close()

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._opened())

    def __next__(self) -> Any:
        return next(self._opened())


def exists(path: Any) -> bool:
    """Whether there is a file or folder.

    Example:
      >>> import meshflow as tf
      >>> tf.io.gfile.exists("/no/such/file")
      False
    """
    path = _paths.text(path)
    remote = _paths.remote(path)
    return os.path.exists(path) if remote is None else remote.exists(path)


def isdir(path: Any) -> bool:
    """Whether there is a folder.

    Example:
      >>> import meshflow as tf
      >>> tf.io.gfile.isdir("/no/such/folder")
      False
    """
    path = _paths.text(path)
    remote = _paths.remote(path)
    return os.path.isdir(path) if remote is None else remote.isdir(path)


def listdir(path: Any) -> list[str]:
    """Names of a folder's files and folders.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(folder + "/a.txt", "")
      >>> tf.io.gfile.listdir(folder)
      ['a.txt']
    """
    path = _paths.text(path)
    if not isdir(path):
        raise errors.NotFoundError(f"Could not find directory {path}")
    remote = _paths.remote(path)
    if remote is None:
        return os.listdir(path)
    return [p.rstrip("/").rsplit("/", 1)[-1] for p in remote.ls(path, detail=False)]


def glob(pattern: Any) -> list[str]:
    """Paths that match a pattern (or any of a list of patterns), sorted.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> for name in ("b.txt", "a.txt", "c.png"):
      ...     tf.io.write_file(f"{folder}/{name}", "")
      >>> [path[-5:] for path in tf.io.gfile.glob(folder + "/*.txt")]
      ['a.txt', 'b.txt']
    """
    patterns = pattern if isinstance(pattern, (list, tuple)) else [pattern]
    found: list[str] = []
    for text in map(_paths.text, patterns):
        remote = _paths.remote(text)
        if remote is None:
            found += sorted(python_glob.glob(text))
        else:
            scheme = text.split("://", 1)[0]
            found += sorted(f"{scheme}://{p.lstrip('/')}" for p in remote.glob(text))
    return found


def makedirs(path: Any) -> None:
    """Makes a folder and those above it; one that is there already is fine.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> folder = tempfile.mkdtemp() + "/a/b"
      >>> tf.io.gfile.makedirs(folder)
      >>> tf.io.gfile.isdir(folder)
      True
    """
    path = _paths.text(path)
    remote = _paths.remote(path)
    if remote is None:
        with named_errors(path):
            os.makedirs(path, exist_ok=True)
    else:
        remote.makedirs(path, exist_ok=True)


def mkdir(path: Any) -> None:
    """Makes a folder whose parent exists; one that is there already is fine."""
    path = _paths.text(path)
    if isdir(path):
        return
    remote = _paths.remote(path)
    with named_errors(path):
        os.mkdir(path) if remote is None else remote.mkdir(path)


def remove(path: Any) -> None:
    """Deletes a file."""
    path = _paths.text(path)
    remote = _paths.remote(path)
    with named_errors(path):
        os.remove(path) if remote is None else remote.rm_file(path)


def rmtree(path: Any) -> None:
    """Deletes a folder with all that is in it, or a file.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(folder + "/a/b.txt", "")
      >>> tf.io.gfile.rmtree(folder)
      >>> tf.io.gfile.exists(folder)
      False
    """
    path = _paths.text(path)
    remote = _paths.remote(path)
    local = os.remove if os.path.isfile(path) else shutil.rmtree
    with named_errors(path):
        local(path) if remote is None else remote.rm(path, recursive=True)


def rename(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Moves a file or folder.

    Args:
      src: where it is.
      dst: where it goes.
      overwrite: whether a file that is there is replaced.

    Raises:
      AlreadyExistsError: when there is one and `overwrite` is False.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/a.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.rename(path, path + ".old")
      >>> tf.io.gfile.exists(path)
      False
    """
    src, dst = _paths.text(src), _paths.text(dst)
    stat(src)
    _check_free(dst, overwrite)
    remote = _paths.remote(src)
    with named_errors(src):
        os.replace(src, dst) if remote is None else remote.mv(src, dst, recursive=isdir(src))


def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Copies a file.

    Args:
      src: the file.
      dst: the copy's path.
      overwrite: whether a file that is there is replaced.

    Raises:
      AlreadyExistsError: when there is one and `overwrite` is False.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/a.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.copy(path, path + ".copy")
      >>> tf.io.read_file(path + ".copy").numpy()
      b'tea'
    """
    src, dst = _paths.text(src), _paths.text(dst)
    with GFile(src, "rb") as source:
        content = source.read()
    _check_free(dst, overwrite)
    with GFile(dst, "wb") as target:
        target.write(content)


def _check_free(path: str, overwrite: bool) -> None:
    if not overwrite and exists(path):
        raise errors.AlreadyExistsError(f"{path}; file already exists")


def stat(path: Any) -> FileStatistics:
    """Size, time of change and kind of a file or folder.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/a.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.stat(path).length
      3
    """
    path = _paths.text(path)
    remote = _paths.remote(path)
    if remote is not None:
        with named_errors(path):
            found = remote.info(path)
        return FileStatistics(
            found.get("size") or 0, _changed(found), found.get("type") == "directory"
        )
    with named_errors(path):
        local = os.stat(path)
    return FileStatistics(local.st_size, local.st_mtime_ns, os.path.isdir(path))


def _changed(found: dict[str, Any]) -> int:
    """When a store says that an object was changed, in nanoseconds; 0 where it does not say."""
    for key in ("LastModified", "mtime", "updated", "last_modified", "created"):
        when = found.get(key)
        if isinstance(when, str):
            with contextlib.suppress(ValueError):
                when = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
        if isinstance(when, datetime.datetime):
            when = when.timestamp()
        if isinstance(when, (int, float)):
            return int(when * 1e9)
    return 0


def walk(
    top: Any, topdown: bool = True, onerror: Callable[[Exception], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Goes through a folder and those below it.

    Args:
      top: the folder.
      topdown: whether a folder comes before those below it.
      onerror: called with an error, which is otherwise ignored.

    Yields:
      (path, names of folders, names of files).

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(folder + "/inner/a.txt", "")
      >>> [(folders, files) for _, folders, files in tf.io.gfile.walk(folder)]
      [(['inner'], []), ([], ['a.txt'])]
    """
    try:
        names = sorted(listdir(top))
    except errors.OpError as error:
        if onerror:
            onerror(error)
        return
    top = _paths.text(top)
    folders = [n for n in names if isdir(join(top, n))]
    here = top, folders, [n for n in names if n not in folders]
    if topdown:
        yield here
    for folder in folders:
        yield from walk(join(top, folder), topdown, onerror)
    if not topdown:
        yield here


def join(path: Any, *paths: Any) -> str:
    """Parts of a path joined.

    Example:
      >>> import meshflow as tf
      >>> tf.io.gfile.join("data", "train", "a.txt")
      'data/train/a.txt'
    """
    return os.path.join(_paths.text(path), *map(_paths.text, paths))


def get_registered_schemes() -> list[str]:
    """Schemes of paths that are understood, besides those of fsspec."""
    return ["", "file"]
