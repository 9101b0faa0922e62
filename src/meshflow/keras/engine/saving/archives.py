"""Opening what holds a model: `.keras` archives and HDF5 files, checked before anything of them is used.

A small file may say that it holds more than memory does, and an HDF5 file may point into other files. What is
inside may take up `unpacked_limit` bytes; nothing is written to the disk; no other file is opened.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from meshflow.environment import extras
from meshflow.environment.limits import UNPACKED_VARIABLE, unpacked_limit

__all__ = ["Archive", "h5py", "is_hdf5", "open_hdf5"]

_CHUNK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError)


def h5py() -> Any:
    """The module `h5py`.

    Raises:
      ImportError: naming the extra that installs it.
    """
    return extras.load("h5py", "keras", "HDF5 files need h5py")


def is_hdf5(value: Any) -> bool:
    """Whether a value is an HDF5 file that somebody has opened.

    Args:
      value: a path, or an `h5py.File` or group.
    """
    module = sys.modules.get("h5py")
    return module is not None and isinstance(value, module.Group)


class _TooLargeError(ValueError):
    """A file holds more than may be unpacked."""


def _too_large(what: str, found: int, limit: int) -> ValueError:
    return _TooLargeError(
        f"{what} holds {found:,} bytes when unpacked, and at most {limit:,} are read from a file of its size. If "
        f"you trust its author, set the environment variable {UNPACKED_VARIABLE} to a larger number."
    )


class Archive:
    """A `.keras` file that is open for reading.

    Args:
      path: the file.
      what: what it is called in errors; default the path.

    Raises:
      ValueError: when it is damaged, has members with paths, or holds more than `unpacked_limit`.
    """

    def __init__(self, path: str, what: str | None = None) -> None:
        self._path = what or path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"{self._path} is damaged: {error}.") from error
        members = self._zip.infolist()
        for member in members:
            parts = PurePosixPath(member.filename.replace("\\", "/")).parts
            if ".." in parts or parts[:1] == ("/",) or ":" in member.filename:
                self.close()
                raise ValueError(
                    f"{self._path} is no model: it has a member {member.filename!r}, which leads out of it."
                )
        self._limit = unpacked_limit(os.path.getsize(path))
        total = sum(member.file_size for member in members)
        if total > self._limit:
            self.close()
            raise _too_large(self._path, total, self._limit)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._zip.close()

    def read(self, name: str) -> io.BytesIO:
        """A member's content, in memory.

        Args:
          name: the member.

        Raises:
          KeyError: when there is none.
          ValueError: when it is damaged, or longer than it says.
        """
        member = self._zip.getinfo(name)
        content = io.BytesIO()
        try:
            with self._zip.open(member) as stream:
                while chunk := stream.read(_CHUNK):
                    content.write(chunk)
                    if content.tell() > self._limit:
                        raise _too_large(f"{name} of {self._path}", content.tell(), self._limit)
        except _DAMAGE as error:
            raise ValueError(f"{name} of {self._path} is damaged: {error}.") from error
        return content

    def config(self) -> dict[str, Any]:
        """The model's configuration.

        Raises:
          ValueError: when it is missing or damaged.
        """
        try:
            config = json.loads(self.read("config.json").getvalue())
        except _TooLargeError:
            raise
        except (KeyError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{self._path} holds no model: config.json is missing or damaged."
            ) from error
        if not isinstance(config, dict):
            raise ValueError(f"{self._path} holds no model: config.json is no configuration.")
        return config

    def keras_version(self) -> str:
        """The version of Keras whose form the file has; empty where it does not say that.

        Raises:
          ValueError: when what says it is damaged.
        """
        try:
            about = json.loads(self.read("metadata.json").getvalue())
        except KeyError:
            return ""
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._path} is damaged: metadata.json is no JSON.") from error
        return str(about.get("keras_version", "")) if isinstance(about, dict) else ""

    @contextlib.contextmanager
    def weights(self) -> Iterator[Any]:
        """The HDF5 file inside.

        Raises:
          ValueError: when there is none.
        """
        try:
            content = self.read("model.weights.h5")
        except KeyError:
            raise ValueError(
                f"{self._path} holds no weights (model.weights.h5 is missing)."
            ) from None
        what = f"model.weights.h5 of {self._path}"
        with open_hdf5(content, what, content.tell()) as file:
            yield file


@contextlib.contextmanager
def open_hdf5(file: Any, what: str | None = None, size: int | None = None) -> Iterator[Any]:
    """An HDF5 file, open for reading.

    Args:
      file: its path, an object like a file, or an `h5py.File` that is open already, and stays so.
      what: what it is called in errors; default the path.
      size: its size in bytes; default that of the path.

    Raises:
      OSError: when it is none, or damaged.
      ValueError: when it points into other files, or holds more than `unpacked_limit`.
    """
    what = what or str(file)
    library = h5py()
    try:
        opening = contextlib.nullcontext(file) if is_hdf5(file) else library.File(file, "r")
        with opening as opened:
            size = opened.file.id.get_filesize() if size is None else size
            limit = unpacked_limit(size)
            _check_hdf5(opened, what, limit)
            yield opened
    except FileNotFoundError:
        raise
    except Exception as error:
        if not _is_from_hdf5(error):
            raise
        raise OSError(f"{what} is no HDF5 file, or it is damaged: {error}") from error


def _is_from_hdf5(error: Exception) -> bool:
    """Whether h5py raised an error: where a file is damaged it may be of any class."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "h5py" in trace.tb_frame.f_code.co_filename


def _check_hdf5(file: Any, what: str, limit: int) -> None:
    """Follows all links of a file once; soft ones lead to what others lead to, or nowhere."""
    library = h5py()
    total = 0
    seen: set[Any] = set()
    waiting: list[tuple[str, Any]] = [("", file)]
    while waiting:
        path, group = waiting.pop()
        for name in group:
            place, link = f"{path}/{name}", group.get(name, getlink=True)
            if isinstance(link, library.SoftLink):
                continue
            if not isinstance(link, library.HardLink):
                raise _elsewhere(what, place, "is a link to another file")
            item = group[name]
            key = library.h5o.get_info(item.id).addr
            if key in seen:
                continue
            seen.add(key)
            if isinstance(item, library.Group):
                waiting.append((place, item))
            elif isinstance(item, library.Dataset):
                if item.is_virtual or item.external:
                    raise _elsewhere(what, place, "keeps its values in another file")
                total += (item.size or 0) * item.dtype.itemsize
                if total > limit:
                    raise _too_large(what, total, limit)


def _elsewhere(what: str, place: str, how: str) -> ValueError:
    return ValueError(f"{what}: {place} {how}, and models are read from their own file alone.")
