"""What a parameter server has done, on a disk: a snapshot, and every call since that changed something.

A record is complete or ends with the file: a process that was killed while it wrote has not answered yet, and will be
called again. What is written is in the system's hands when the call is answered: it outlives the process, though not the
machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.distribute.parameter_server.wire import dumped

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None

__all__ = ["Folder", "Journal"]

_logger = logging.getLogger("meshflow")
_HEAD = struct.Struct("!QQ")
# Temporary folders, and the file in them that their process has locked.
_PREFIX, _LOCK = "meshflow-servers-", "lock"


class Folder:
    """Where the servers of a job keep their journals.

    Args:
      path: a folder, kept at the end; None for a temporary one.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._temporary = path is None
        self._lock: Any = None
        if path is None:
            _remove_left()
            self.path, self._lock = _made()
        else:
            self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def is_local(self) -> bool:
        """Whether it is a temporary folder of this machine."""
        return self._temporary

    def of_server(self, number: int) -> Path:
        """The folder of one server.

        Args:
          number: its number.
        """
        return self.path / f"server-{number}"

    def close(self) -> None:
        """Removes a temporary folder."""
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _made() -> tuple[Path, Any]:
    """A temporary folder, and a file in it that is locked as long as this process lives."""
    new = Path(tempfile.mkdtemp(prefix="meshflow-new-"))
    lock = open(new / _LOCK, "wb")  # noqa: SIM115
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    # Only now others may look whether it is in use.
    return new.rename(new.with_name(_PREFIX + new.name.rpartition("-")[2])), lock


def _remove_left() -> None:
    """Removes temporary folders whose processes were killed."""
    if fcntl is None:
        return
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


class Journal:
    """The journal of one server.

    Args:
      folder: its folder.
    """

    # Nothing is gained by a snapshot of less than so many bytes of records.
    least = 1 << 26

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        snapshots = [
            int(p.suffix[1:]) for p in self._folder.glob("snapshot.*") if p.suffix[1:].isdigit()
        ]
        self._number = max(snapshots, default=0)
        self._remove_old()
        self._size = 0
        self._log: Any = None

    def recover(self) -> Iterator[Any]:
        """The snapshot, or None, and then what was recorded since; afterwards records may be added."""
        kept = next(_records(self._path("snapshot")), (None, 0))[0]
        yield kept
        end = 0
        for record, at in _records(self._path("log")):
            end = at
            yield record
        self._log = open(self._path("log"), "ab", buffering=0)  # noqa: SIM115
        self._log.truncate(end)
        self._size = end

    def append(self, record: Any) -> None:
        """Adds a record.

        Args:
          record: what can be pickled.

        Raises:
          OSError: when there is no room; nothing was added.
        """
        try:
            self._size += _write(self._log, record)
        except BaseException:
            # What follows a part of a record could not be read.
            self._log.truncate(self._size)
            self._log.seek(self._size)
            raise

    @property
    def size(self) -> int:
        """How many bytes of records there are since the snapshot."""
        return self._size

    def snapshot(self, state: Any) -> None:
        """Has a state take the place of all records. Where there is no room for it they stay, until they are twice as long.

        Args:
          state: what `recover` is to begin with.
        """
        number = self._number + 1
        partial = self._path("partial", number)
        try:
            with open(partial, "wb", buffering=0) as file:
                _write(file, state)
            log = open(self._path("log", number), "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            partial.unlink(missing_ok=True)
            self.least = 2 * self._size
            _logger.warning("A parameter server's journal grows on: %s", error)
            return
        partial.rename(self._path("snapshot", number))
        self._log.close()
        self._log, self._size, self._number = log, 0, number
        self._remove_old()

    def _remove_old(self) -> None:
        """Removes what a snapshot has taken the place of, also one that the process was killed after."""
        for kind in ("snapshot", "log", "partial"):
            for path in self._folder.glob(f"{kind}.*"):
                if path != self._path(kind):
                    path.unlink(missing_ok=True)

    def _path(self, kind: str, number: int | None = None) -> Path:
        return self._folder / f"{kind}.{self._number if number is None else number}"


def _write(file: Any, record: Any) -> int:
    body, arrays = dumped(record)
    lengths = struct.pack(f"!{len(arrays)}Q", *(a.nbytes for a in arrays))
    total = 0
    for part in (_HEAD.pack(len(body), len(arrays)) + lengths + body, *arrays):
        view = memoryview(part).cast("B")  # type: ignore[arg-type]
        total += len(view)
        while view:
            view = view[file.write(view) :]
    return total


def _records(path: Path) -> Iterator[tuple[Any, int]]:
    """The whole records of a file, each with where it ends."""
    if not path.exists():
        return
    size = path.stat().st_size
    with open(path, "rb") as file:
        while size - file.tell() >= _HEAD.size:
            length, count = _HEAD.unpack(file.read(_HEAD.size))
            if length + 8 * count > size - file.tell():
                return
            lengths = struct.unpack(f"!{count}Q", file.read(8 * count))
            if length + sum(lengths) > size - file.tell():
                return
            body = file.read(length)
            arrays = [np.fromfile(file, np.uint8, n) for n in lengths]
            yield pickle.loads(body, buffers=arrays), file.tell()
