"""Storage of protocols that must survive crashes, such as journals.

These protocols access files only through a `Storage`, so a test can replace the disk by a simulated
one that loses power, fills up or tears writes.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Protocol


class StorageFile(Protocol):
    """An open file of a `Storage`. Writes are not buffered, and may be incomplete."""

    def read(self, size: int, /) -> bytes | None:
        """Read up to `size` bytes."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read bytes into a buffer, and return their number."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        """Write bytes at the current offset, and return the number of bytes written."""

    def seek(self, offset: int, /) -> int:
        """Change the current offset."""

    def truncate(self, size: int, /) -> int:
        """Shorten the file."""

    def close(self) -> None:
        """Close the file."""


class Storage(Protocol):
    """Files in folders. Errors are the `OSError`s of Python's functions for files."""

    def open(self, path: str, mode: str) -> StorageFile:
        """Open a file.

        Args:
          path: Path of the file.
          mode: 'rb' to read, 'wb' to write a new or empty file, 'xb' to create a file, which fails
            with a FileExistsError if another process has created it.
        """

    def get_size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def exists(self, path: str) -> bool:
        """Check whether a file exists."""

    def list_names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""

    def make_folder(self, folder: str) -> None:
        """Create a folder with its parents, unless it exists."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically; an existing target is replaced."""

    def delete(self, path: str) -> None:
        """Delete a file, unless it does not exist."""


class _LocalStorage:
    """Files of this machine and of its network mounts."""

    def open(self, path: str, mode: str) -> StorageFile:
        return open(path, "rb") if mode == "rb" else io.FileIO(path, mode)

    def get_size(self, path: str) -> int:
        return os.path.getsize(path)

    def exists(self, path: str) -> bool:
        # For a missing file, `os.path.exists` takes twice as long.
        return os.access(path, os.F_OK)

    def list_names(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def make_folder(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


LOCAL_STORAGE: Storage = _LocalStorage()


@contextlib.contextmanager
def open_file(storage: Storage, path: str, mode: str) -> Iterator[StorageFile]:
    """Open a file, and close it when the block ends.

    Args:
      storage: Storage of the file.
      path: Path of the file.
      mode: See `Storage.open`.
    """
    file = storage.open(path, mode)
    try:
        yield file
    finally:
        file.close()
