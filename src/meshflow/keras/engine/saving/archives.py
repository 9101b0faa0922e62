"""Readers of `.keras` archives and HDF5 files, which check a file before anything in it is used.

A small file may claim to hold more data than fits into memory, and an HDF5 file may link to other
files. The readers here limit the unpacked size to `get_unpacked_limit()` bytes, never unpack to disk,
and never open a second file.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import mmap
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshflow.environment import optional_packages
from meshflow.environment.json_documents import parse_json
from meshflow.environment.limits import (
    FileTooLargeError,
    UnpackedBudget,
    get_unpacked_limit,
    load_budget_scope,
    spend_load_budget,
)
from meshflow.environment.types import Config

if TYPE_CHECKING:
    from h5py import File as HDF5File
    from h5py import Group as HDF5Group

# Number of bytes that are unpacked at once.
_CHUNK_BYTES = 1 << 20
# The local header of a member of a zip file, with the lengths of the name and the extra field that follow it.
_LOCAL_HEADER = struct.Struct("<26xHH")
# Start of a collection of strings in an HDF5 file.
_HEAP_SIGNATURE = b"GCOL"
# Errors that `zipfile` raises while it reads a damaged member.
_READ_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError)


def load_h5py() -> ModuleType:
    """Import the module `h5py`.

    Raises:
      ImportError: if h5py is not installed; the message names the extra that installs it.
    """
    return optional_packages.import_extra("h5py", None, "HDF5 files need h5py")


def is_open_hdf5(value: object) -> bool:
    """Check whether a value is an open HDF5 file or group.

    Args:
      value: A path, or an `h5py.File` or `h5py.Group`.

    Raises:
      ValueError: if it is a closed file.
    """
    module = sys.modules.get("h5py")
    is_hdf5 = module is not None and isinstance(value, module.Group)
    if is_hdf5 and not value:
        raise ValueError(f"{value!r} cannot be used: open the file again, or pass its path.")
    return is_hdf5


class OverwriteError(FileExistsError, EOFError):
    """Error for a file that exists; TensorFlow reads an answer from the terminal, and raises EOFError without one."""


class Archive:
    """A `.keras` file that is open for reading.

    Args:
      path: Path of the file.
      label: Name of the file in error messages. Default: `path`.

    Raises:
      ValueError: if the file is damaged, has members with absolute or parent paths, or holds more
        than `get_unpacked_limit()` bytes.
    """

    def __init__(self, path: str, label: str | None = None) -> None:
        self._path, self._size, self._file = label or path, os.path.getsize(path), path
        with contextlib.ExitStack() as stack:
            try:
                self._zip = stack.enter_context(zipfile.ZipFile(path))
            except (zipfile.BadZipFile, NotImplementedError) as error:
                raise ValueError(f"{self._path} is damaged: {error}.") from error
            self._check_members()
            self._stack = stack.pop_all()

    def _check_members(self) -> None:
        members = self._zip.infolist()
        for member in members:
            parts = PurePosixPath(member.filename.replace("\\", "/")).parts
            if ".." in parts or parts[:1] == ("/",) or ":" in member.filename:
                raise ValueError(
                    f"{self._path} is not a model file: its member {member.filename!r} leads out of it. Expected "
                    "members with relative paths inside the archive."
                )
        total = sum(member.file_size for member in members)
        UnpackedBudget(self._path, self._size).spend(total, "its content")

    def __enter__(self) -> Archive:
        self._stack.enter_context(load_budget_scope(self._path, self._size))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def read(self, name: str) -> io.BytesIO:
        """Unpack a member into memory.

        Args:
          name: Name of the member.

        Raises:
          KeyError: if there is no such member.
          ValueError: if the member is damaged, or longer than its header declares.
        """
        content = io.BytesIO()
        for chunk in self._iter_chunks(name):
            content.write(chunk)
        return content

    def list_members(self, prefix: str) -> list[str]:
        """Return the names of the files whose paths start with a prefix."""
        names = self._zip.namelist()
        return [n for n in names if n.startswith(prefix) and not n.endswith("/")]

    def _iter_chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member, and compare it with its checksum; see `read`."""
        member = self._zip.getinfo(name)
        try:
            with self._zip.open(member) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    spend_load_budget(len(chunk), f"a part of {name}")
                    yield chunk
        except _READ_ERRORS as error:
            raise ValueError(f"{name} of {self._path} is damaged: {error}.") from error

    def _open_member(self, name: str) -> Any:
        """Open a member as a seekable file, which is read in place if it is not compressed; see `read`."""
        member = self._zip.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            return self.read(name)
        for _ in self._iter_chunks(name):
            pass
        with open(self._file, "rb") as file:
            header = os.pread(file.fileno(), _LOCAL_HEADER.size, member.header_offset)
        offset = member.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(header))
        return io.BufferedReader(_FileRange(self._file, offset, member.file_size))

    def read_config(self) -> Config:
        """Read the model's configuration.

        Raises:
          ValueError: if the configuration is missing or damaged.
        """
        try:
            config = parse_json(self.read("config.json").getvalue())
        except FileTooLargeError:
            raise
        except (KeyError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{self._path} holds no model: config.json is missing or damaged."
            ) from error
        if not isinstance(config, dict):
            raise ValueError(
                f"{self._path} holds no model: config.json must hold a dictionary, got "
                f"{type(config).__name__}."
            )
        return config

    def read_keras_version(self) -> str:
        """Read the version of Keras that defines the file's format.

        Returns:
          The version, or an empty string if the file does not declare one.

        Raises:
          ValueError: if the member that declares the version is damaged.
        """
        try:
            metadata = parse_json(self.read("metadata.json").getvalue())
        except KeyError:
            return ""
        except FileTooLargeError:
            raise
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{self._path} is damaged: metadata.json is not valid JSON."
            ) from error
        return str(metadata.get("keras_version", "")) if isinstance(metadata, dict) else ""

    @contextlib.contextmanager
    def open_weights(self) -> Iterator[HDF5Group]:
        """Open the HDF5 file with the weights.

        Raises:
          ValueError: if the archive holds no weights.
        """
        try:
            content = self._open_member("model.weights.h5")
        except KeyError:
            raise ValueError(
                f"{self._path} holds no weights (model.weights.h5 is missing)."
            ) from None
        label = f"model.weights.h5 of {self._path}"
        with content, open_hdf5(content, label, content.seek(0, os.SEEK_END)) as file:
            yield file


class _FileRange(io.RawIOBase):
    """Bytes of a file, as a file for reading.

    Args:
      path: Path of the file.
      offset: Offset of the first byte.
      size: Number of bytes.
    """

    def __init__(self, path: str, offset: int, size: int) -> None:
        self._stream = open(path, "rb")  # noqa: SIM115  `close` closes it.
        self._offset, self._size, self._position = offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        count = os.preadv(self._stream.fileno(), [view], self._offset + self._position)
        self._position += count
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


@contextlib.contextmanager
def open_hdf5(file: Any, label: str | None = None, size: int | None = None) -> Iterator[HDF5Group]:
    """Open an HDF5 file for reading, and check it.

    Args:
      file: A path, a file object, or an open `h5py.File`, which is not closed.
      label: Name of the file in error messages. Default: the path.
      size: Size of the file in bytes. Default: the size that HDF5 reports.

    Raises:
      OSError: if the file is not an HDF5 file, or damaged.
      ValueError: if the file links to other files, or holds more than `get_unpacked_limit()` bytes.
    """
    label = label or str(file)
    library = load_h5py()
    try:
        context = contextlib.nullcontext(file) if is_open_hdf5(file) else library.File(file, "r")
        with context as group:
            size = group.file.id.get_filesize() if size is None else size
            with load_budget_scope(label, size):
                _check_hdf5_contents(group, label, size)
                yield group
    except FileNotFoundError:
        raise
    except Exception as error:
        if not _is_raised_by_h5py(error):
            raise
        kind = "Keras archive or HDF5 file" if label.endswith(".keras") else "HDF5 file"
        raise OSError(f"{label} is no {kind}, or it is damaged or incomplete: {error}") from error


def _is_raised_by_h5py(error: Exception) -> bool:
    """Check whether h5py raised an error; a damaged file can cause errors of any class."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "h5py" in trace.tb_frame.f_code.co_filename


def _check_hdf5_contents(file: HDF5Group, label: str, size: int) -> None:
    """Visit every object of an HDF5 file once, and reject links to other files and too large data.

    Attributes of strings refer to the file's global heaps, and many elements may refer to one string,
    so each element counts with the size of the largest heap.

    Soft links are skipped: they lead to objects that a hard link of the same file also reaches, or
    to nothing.
    """
    library = load_h5py()
    budget = UnpackedBudget(label, size)
    seen: set[object] = set()
    stack: list[tuple[str, HDF5Group]] = [("", file)]
    num_strings = _count_strings(file)
    while stack:
        parent, group = stack.pop()
        for name in group:
            path, link = f"{parent}/{name}", group.get(name, getlink=True)
            if isinstance(link, library.SoftLink):
                continue
            if not isinstance(link, library.HardLink):
                raise _make_link_error(label, path, "is a link to another file")
            item = group[name]
            key = get_object_address(item)
            if key in seen:
                continue
            seen.add(key)
            num_strings += _count_strings(item)
            if isinstance(item, library.Group):
                stack.append((path, item))
            elif isinstance(item, library.Dataset):
                if item.is_virtual or item.external:
                    raise _make_link_error(label, path, "keeps its values in another file")
                budget.spend((item.size or 0) * item.dtype.itemsize, f"the array {path}")
    if num_strings * size > get_unpacked_limit(size):
        length = num_strings * _measure_longest_string(file.file, size)
        UnpackedBudget(label, size).spend(length, "the text of attributes")


def get_object_address(item: Any) -> int:
    """Return the address of a group or data set in its file.

    Args:
      item: An HDF5 object.
    """
    return int(load_h5py().h5o.get_info(item.id).addr)


def _count_strings(item: Any) -> int:
    """Count the elements of the attributes of an object that are strings of variable length."""
    attributes = [item.attrs.get_id(name) for name in item.attrs]
    return sum(math.prod(a.shape or ()) for a in attributes if a.dtype.hasobject)


def _measure_longest_string(file: HDF5File, size: int) -> int:
    """Return an upper bound of the length of the strings in an HDF5 file, from its global heaps."""
    with contextlib.ExitStack() as stack:
        data: Any
        if os.path.isfile(file.filename):
            stream = stack.enter_context(open(file.filename, "rb"))
            data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        else:
            data = file.id.get_file_image()
        if file.id.get_create_plist().get_sizes()[1] != 8:
            return size
        longest, offset = 0, data.find(_HEAP_SIGNATURE)
        while offset >= 0:
            # The signature, a version, and the size of the collection of strings.
            longest = max(longest, int.from_bytes(data[offset + 8 : offset + 16], "little"))
            offset = data.find(_HEAP_SIGNATURE, offset + 4)
    return min(longest, size)


def _make_link_error(label: str, path: str, reason: str) -> ValueError:
    return ValueError(
        f"{label}: {path} {reason}, but a model is only read from its own file. Save the model without "
        "external links."
    )
