"""Functions of `tf.io.gfile`, for local files and for remote ones of fsspec (`gs://...`)."""

from __future__ import annotations

import contextlib
import datetime
import glob as python_glob
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

from meshflow.core.runtime import errors
from meshflow.environment.types import StrPath
from meshflow.files import paths as _paths
from meshflow.files.paths import translate_errors, translate_full_disk_error

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
    """Result of `stat`: size in bytes, modification time in nanoseconds, and type."""

    length: int
    mtime_nsec: int
    is_directory: bool


_MODES = tuple(m + e for m in "rwa" for e in ("", "b", "+", "b+", "+b"))


class GFile:
    """A file that is opened on the first read or write.

    Args:
      name: Path of the file.
      mode: 'r', 'w' or 'a', with 'b' for bytes and '+' for reading and writing.

    Raises:
      InvalidArgumentError: The mode is invalid.

    Example:
      >>> import tempfile
      >>> path = tf.io.gfile.join(tempfile.mkdtemp(), "a.txt")
      >>> with tf.io.gfile.GFile(path, "w") as f:
      ...     f.write("hello")
      >>> tf.io.gfile.GFile(path).read()
      'hello'
    """

    def __init__(self, name: StrPath, mode: str = "r") -> None:
        if mode not in _MODES:
            raise errors.InvalidArgumentError(f"mode must be one of {_MODES}, got {mode!r}.")
        self._name = _paths.to_path_string(name)
        self._mode = mode
        self._file: IO[Any] | None = None

    @property
    def name(self) -> str:
        """Return the path."""
        return self._name

    @property
    def mode(self) -> str:
        """Return the mode."""
        return self._mode

    def _open(self) -> IO[Any]:
        if self._file is None:
            remote = _paths.get_file_system(self._name)
            opener = open if remote is None else remote.open
            encoding = None if "b" in self._mode else "utf-8"
            with translate_errors(self._name):
                self._file = opener(self._name, self._mode, encoding=encoding)
        return self._file

    def size(self) -> int:
        """Return the size in bytes."""
        if self._file is not None and self._mode[0] != "r":
            self._file.flush()
        return stat(self._name).length

    def read(self, n: int = -1) -> Any:
        """Read the next `n` characters (or bytes); by default, all that remain."""
        if self._mode[0] != "r" and "+" not in self._mode:
            raise errors.PermissionDeniedError("File isn't open for reading")
        return self._open().read(n)

    def readline(self) -> Any:
        """Read the next line, including its line break."""
        return self._open().readline()

    def readlines(self) -> list[Any]:
        """Read all remaining lines."""
        return self._open().readlines()

    def write(self, file_content: str | bytes) -> None:
        """Write text or bytes."""
        if self._mode[0] == "r" and "+" not in self._mode:
            raise errors.PermissionDeniedError("File isn't open for writing")
        if isinstance(file_content, bytes) and "b" not in self._mode:
            file_content = file_content.decode()
        if isinstance(file_content, str) and "b" in self._mode:
            file_content = file_content.encode()
        with translate_full_disk_error(self._name):
            self._open().write(file_content)

    def seek(self, offset: int, whence: int = 0) -> None:
        """Move to `offset`, relative to the start (0), the current position (1) or the end (2)."""
        self._open().seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._open().tell()

    def seekable(self) -> bool:
        """Return True, since all files are seekable."""
        return True

    def flush(self) -> None:
        """Pass buffered data to the operating system."""
        if self._file is not None:
            with translate_full_disk_error(self._name):
                self._file.flush()

    def close(self) -> None:
        """Close the file; a file in mode 'w' or 'a' is created even if nothing was written."""
        if self._file is None and self._mode[0] in "wa":
            self._open()
        if self._file is not None:
            file, self._file = self._file, None
            if self._mode in ("r", "rb"):
                file.close()
                return
            with translate_full_disk_error(self._name):
                file.close()

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._open())

    def __next__(self) -> Any:
        return next(self._open())


def exists(path: StrPath) -> bool:
    """Check whether a file or folder exists.

    Example:
      >>> tf.io.gfile.exists("/no/such/file")
      False
    """
    path = _paths.to_path_string(path)
    remote = _paths.get_file_system(path)
    return os.path.exists(path) if remote is None else remote.exists(path)


def isdir(path: StrPath) -> bool:
    """Check whether a folder exists.

    Example:
      >>> tf.io.gfile.isdir("/no/such/folder")
      False
    """
    path = _paths.to_path_string(path)
    remote = _paths.get_file_system(path)
    return os.path.isdir(path) if remote is None else remote.isdir(path)


def listdir(path: StrPath) -> list[str]:
    """Return the names of the files and folders in a folder.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(folder + "/a.txt", "")
      >>> tf.io.gfile.listdir(folder)
      ['a.txt']
    """
    path = _paths.to_path_string(path)
    if not isdir(path):
        raise errors.NotFoundError(f"Could not find directory {path}")
    remote = _paths.get_file_system(path)
    if remote is None:
        return os.listdir(path)
    return [p.rstrip("/").rsplit("/", 1)[-1] for p in remote.ls(path, detail=False)]


def glob(pattern: StrPath | Iterable[StrPath]) -> list[str]:
    """Return the sorted paths that match a pattern, or each of several patterns.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> for name in ("b.txt", "a.txt", "c.png"):
      ...     tf.io.write_file(f"{folder}/{name}", "")
      >>> [path[-5:] for path in tf.io.gfile.glob(folder + "/*.txt")]
      ['a.txt', 'b.txt']
    """
    is_single = isinstance(pattern, (str, bytes, os.PathLike)) or not isinstance(pattern, Iterable)
    patterns: Any = [pattern] if is_single else pattern
    matches: list[str] = []
    for text in map(_paths.to_path_string, patterns):
        remote = _paths.get_file_system(text)
        if remote is None:
            matches += sorted(python_glob.glob(text))
        else:
            scheme = text.split("://", 1)[0]
            matches += sorted(f"{scheme}://{p.lstrip('/')}" for p in remote.glob(text))
    return matches


def makedirs(path: StrPath) -> None:
    """Create a folder and its parents; an existing folder is kept.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp() + "/a/b"
      >>> tf.io.gfile.makedirs(folder)
      >>> tf.io.gfile.isdir(folder)
      True
    """
    path = _paths.to_path_string(path)
    remote = _paths.get_file_system(path)
    if remote is None:
        with translate_errors(path):
            os.makedirs(path, exist_ok=True)
    else:
        remote.makedirs(path, exist_ok=True)


def mkdir(path: StrPath) -> None:
    """Create a folder in an existing parent; an existing folder is kept."""
    path = _paths.to_path_string(path)
    if isdir(path):
        return
    remote = _paths.get_file_system(path)
    with translate_errors(path):
        os.mkdir(path) if remote is None else remote.mkdir(path)


def remove(path: StrPath) -> None:
    """Delete a file."""
    path = _paths.to_path_string(path)
    remote = _paths.get_file_system(path)
    with translate_errors(path):
        os.remove(path) if remote is None else remote.rm_file(path)


def rmtree(path: StrPath) -> None:
    """Delete a folder with its content, or a file.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(folder + "/a/b.txt", "")
      >>> tf.io.gfile.rmtree(folder)
      >>> tf.io.gfile.exists(folder)
      False
    """
    path = _paths.to_path_string(path)
    remote = _paths.get_file_system(path)
    local = os.remove if os.path.isfile(path) else shutil.rmtree
    with translate_errors(path):
        local(path) if remote is None else remote.rm(path, recursive=True)


def rename(src: StrPath, dst: StrPath, overwrite: bool = False) -> None:
    """Move a file or folder.

    Args:
      src: Current path.
      dst: New path.
      overwrite: Whether to replace an existing file.

    Raises:
      AlreadyExistsError: `dst` exists and `overwrite` is False.

    Example:
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/a.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.rename(path, path + ".old")
      >>> tf.io.gfile.exists(path)
      False
    """
    src, dst = _paths.to_path_string(src), _paths.to_path_string(dst)
    stat(src)
    _check_absent(dst, overwrite)
    remote = _paths.get_file_system(src)
    with translate_errors(src):
        os.replace(src, dst) if remote is None else remote.mv(src, dst, recursive=isdir(src))


def copy(src: StrPath, dst: StrPath, overwrite: bool = False) -> None:
    """Copy a file.

    Args:
      src: Path of the file.
      dst: Path of the copy.
      overwrite: Whether to replace an existing file.

    Raises:
      AlreadyExistsError: `dst` exists and `overwrite` is False.

    Example:
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/a.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.copy(path, path + ".copy")
      >>> tf.io.read_file(path + ".copy").numpy()
      b'tea'
    """
    src, dst = _paths.to_path_string(src), _paths.to_path_string(dst)
    with GFile(src, "rb") as source:
        content = source.read()
    _check_absent(dst, overwrite)
    with GFile(dst, "wb") as target:
        target.write(content)


def _check_absent(path: str, overwrite: bool) -> None:
    if not overwrite and exists(path):
        raise errors.AlreadyExistsError(f"{path}; file already exists")


def stat(path: StrPath) -> FileStatistics:
    """Return the size, the modification time and the type of a file or folder.

    Example:
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/a.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.stat(path).length
      3
    """
    path = _paths.to_path_string(path)
    remote = _paths.get_file_system(path)
    if remote is not None:
        with translate_errors(path):
            info = remote.info(path)
        return FileStatistics(
            info.get("size") or 0, _get_modification_time(info), info.get("type") == "directory"
        )
    with translate_errors(path):
        local = os.stat(path)
    return FileStatistics(local.st_size, local.st_mtime_ns, os.path.isdir(path))


def _get_modification_time(info: dict[str, Any]) -> int:
    """Return the modification time of a remote file in nanoseconds; 0 if unknown."""
    for key in ("LastModified", "mtime", "updated", "last_modified", "created"):
        time = info.get(key)
        if isinstance(time, str):
            with contextlib.suppress(ValueError):
                time = datetime.datetime.fromisoformat(time.replace("Z", "+00:00"))
        if isinstance(time, datetime.datetime):
            time = time.timestamp()
        if isinstance(time, (int, float)):
            return int(time * 1e9)
    return 0


def walk(
    top: StrPath, topdown: bool = True, onerror: Callable[[Exception], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk over a folder and its subfolders.

    Args:
      top: Path of the folder.
      topdown: Whether to yield a folder before its subfolders.
      onerror: Function that receives errors, which are ignored by default.

    Yields:
      Tuples of path, names of subfolders, and names of files.

    Example:
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
    top = _paths.to_path_string(top)
    folders = [n for n in names if isdir(join(top, n))]
    entry = top, folders, [n for n in names if n not in folders]
    if topdown:
        yield entry
    for folder in folders:
        yield from walk(join(top, folder), topdown, onerror)
    if not topdown:
        yield entry


def join(path: StrPath, *paths: StrPath) -> str:
    """Join the parts of a path; the result is a byte string if the first part is one.

    Example:
      >>> tf.io.gfile.join("data", "train", "a.txt")
      'data/train/a.txt'
    """
    joined = os.path.join(_paths.to_path_string(path), *map(_paths.to_path_string, paths))
    return os.fsencode(joined) if isinstance(path, bytes) else joined  # type: ignore[return-value]


def get_registered_schemes() -> list[str]:
    """Return the built-in schemes of paths; fsspec adds more."""
    return ["", "file"]
