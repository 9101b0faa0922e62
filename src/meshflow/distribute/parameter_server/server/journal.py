"""Write-ahead log of a parameter server.

It consists of a snapshot, and of a record of every later call that changes the state.

A restarted server loads the snapshot and replays the records. An incomplete record can only be the
last one of the file. The process was then killed before it answered the call, which the caller will
repeat. A record is handed to the operating system before the call is answered, so it survives the
death of the process, but not of the machine.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import shutil
import struct
import tempfile
from collections.abc import Iterator
from io import BufferedWriter, FileIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meshflow.distribute.parameter_server.transport.connection import pickle_message
from meshflow.environment.types import StrPath

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None

__all__ = ["Journal", "JournalFolder"]

_logger = logging.getLogger("meshflow")
_HEAD = struct.Struct("!QQ")
# Prefix of temporary folders, and the name of the file in them that their process has locked.
_PREFIX, _LOCK = "meshflow-servers-", "lock"


class JournalFolder:
    """Folder with the journals of the servers of a job.

    Args:
      path: A folder, which is kept at the end. By default, a temporary folder.

    Attributes:
      is_local: Whether this is a temporary folder, which other machines cannot access.
    """

    def __init__(self, path: StrPath | None = None) -> None:
        self.is_local = path is None
        self._lock: BufferedWriter | None = None
        if path is None:
            _remove_abandoned()
            self.path, self._lock = _create_temporary()
        else:
            self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def get_server_folder(self, index: int) -> Path:
        """Return the folder of one server.

        Args:
          index: Index of the server.
        """
        return self.path / f"server-{index}"

    def close(self) -> None:
        """Delete a temporary folder."""
        if self.is_local:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _create_temporary() -> tuple[Path, BufferedWriter]:
    """Create a temporary folder, and a file in it that is locked for the lifetime of this process."""
    new = Path(tempfile.mkdtemp(prefix="meshflow-new-"))
    lock = open(new / _LOCK, "wb")  # noqa: SIM115
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    # The final name makes the folder visible to `_remove_abandoned`, so it must be locked before.
    return new.rename(new.with_name(_PREFIX + new.name.rpartition("-")[2])), lock


def _remove_abandoned() -> None:
    """Delete temporary folders of processes that were killed."""
    if fcntl is None:
        return
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


class Journal:
    """The journal of one server.

    Args:
      folder: Folder of the server, which may have a journal already.

    Attributes:
      min_snapshot_bytes: The size in bytes of the records from which a snapshot is worthwhile.
    """

    min_snapshot_bytes = 1 << 26

    def __init__(self, folder: StrPath) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        snapshots = [
            int(p.suffix[1:]) for p in self._folder.glob("snapshot.*") if p.suffix[1:].isdigit()
        ]
        self._generation = max(snapshots, default=0)
        self._remove_replaced()
        self._size = 0
        self._log: FileIO | None = None

    def recover(self) -> Iterator[Any]:
        """Yield the snapshot, or None, and then the later records.

        Records can be appended after that.
        """
        snapshot = next(_read_records(self._get_path("snapshot")), (None, 0))[0]
        yield snapshot
        end = 0
        for record, record_end in _read_records(self._get_path("log")):
            end = record_end
            yield record
        self._log = open(self._get_path("log"), "ab", buffering=0)  # noqa: SIM115
        self._log.truncate(end)
        self._size = end

    def append(self, record: Any) -> None:
        """Append a record.

        Args:
          record: Any object that can be pickled.

        Raises:
          OSError: If the disk is full. Nothing was appended then.
        """
        assert self._log is not None
        try:
            self._size += _write_record(self._log, record)
        except BaseException:
            # A record after an incomplete one could not be read.
            self._log.truncate(self._size)
            self._log.seek(self._size)
            raise

    @property
    def size(self) -> int:
        """Return the size in bytes of the records since the snapshot."""
        return self._size

    def write_snapshot(self, state: Any) -> None:
        """Replace the log by a snapshot.

        If the snapshot cannot be written, the log is kept, and the next attempt waits until the log
        is twice as large.

        Args:
          state: The first value that `recover` will yield.
        """
        generation = self._generation + 1
        partial = self._get_path("partial", generation)
        try:
            with open(partial, "wb", buffering=0) as file:
                _write_record(file, state)
            log = open(self._get_path("log", generation), "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            partial.unlink(missing_ok=True)
            self.min_snapshot_bytes = 2 * self._size
            _logger.warning("Could not write a snapshot; keeping the log: %s", error)
            return
        partial.rename(self._get_path("snapshot", generation))
        if self._log is not None:
            self._log.close()
        self._log, self._size, self._generation = log, 0, generation
        self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Delete files that a snapshot has replaced, including those of a process that was killed."""
        for kind in ("snapshot", "log", "partial"):
            for path in self._folder.glob(f"{kind}.*"):
                if path != self._get_path(kind):
                    path.unlink(missing_ok=True)

    def _get_path(self, kind: str, generation: int | None = None) -> Path:
        return self._folder / f"{kind}.{self._generation if generation is None else generation}"


def _write_record(file: FileIO, record: object) -> int:
    body, arrays = pickle_message(record)
    lengths = struct.pack(f"!{len(arrays)}Q", *(a.nbytes for a in arrays))
    total = 0
    for part in (_HEAD.pack(len(body), len(arrays)) + lengths + body, *arrays):
        view = memoryview(part).cast("B")  # type: ignore[arg-type]
        total += len(view)
        while view:
            view = view[file.write(view) :]
    return total


def _read_records(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield the complete records of a file, each with the offset of its end."""
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
