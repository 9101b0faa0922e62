"""Write-ahead log of a parameter server.

A journal is a snapshot `snapshot.N`, and the logs `log.N`, `log.N+1`, ... with a record of every
later call that changes the state; `record_files` defines their format. Without a snapshot, the logs
begin at 1. A restarted server loads the snapshot and replays the logs in this order. A record is
handed to the operating system before the call is answered, so it survives the death of the process,
but not of the machine.

Every process that opens the journal creates a log of its own, with the next free number, before it
reads those of its predecessors. A process that was suspended and replaced detects the higher number
when it continues (`check_ownership`), and does not answer its callers. Its last records were not
acknowledged, and may be incomplete or too late: the first record of each log contains the offsets
up to which its process has replayed the earlier ones, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from io import BufferedWriter
from pathlib import Path
from types import ModuleType
from typing import Any

from meshflow.distribute.parameter_server.server.record_files import (
    DamagedFileError,
    FileRecord,
    pack_header,
    pack_record,
    read_records,
    write_all,
)
from meshflow.distribute.parameter_server.transport.connection import FencedError, pickle_message
from meshflow.environment.types import StrPath
from meshflow.files.storage import LOCAL_STORAGE, Storage, open_file

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None

_logger = logging.getLogger("meshflow")
# Prefix of temporary folders, and the name of the file in them that their process has locked.
_PREFIX, _LOCK = "meshflow-servers-", "lock"


class JournalFolder:
    """Folder with the journals of the servers of a job.

    Args:
      path: A folder, in which each job creates a folder that is kept at the end. By default, a
        temporary folder.

    Attributes:
      path: The folder of this job.
      is_local: Whether this is a temporary folder, which other machines cannot access.
    """

    def __init__(self, path: StrPath | None = None) -> None:
        self.is_local = path is None
        self._lock: BufferedWriter | None = None
        if path is None:
            _remove_abandoned()
            self.path, self._lock = _create_temporary()
        else:
            # Servers must not replay the journals of an earlier job: its closures have the same ids,
            # so pushes of this job would seem to be repeated.
            self.path = Path(path) / f"job-{secrets.token_hex(4)}"
            self.path.mkdir(parents=True)

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


class JournalFiles:
    """The files of the journal of one server, as they are when this object is created.

    Args:
      folder: Folder of the server.
      storage: Storage of the folder.

    Attributes:
      snapshot: Generation of the latest snapshot, or 0.
      logs: Generations of the logs since the snapshot, in order.
      latest: The highest generation of a snapshot or log, or 0.
    """

    def __init__(self, folder: StrPath, storage: Storage = LOCAL_STORAGE) -> None:
        self.folder, self._storage = os.fspath(folder), storage
        names = [name.rpartition(".") for name in storage.list_names(self.folder)]
        self._files = sorted(
            (int(suffix), kind)
            for kind, _, suffix in names
            if suffix.isdecimal() and kind in ("snapshot", "log", "partial")
        )
        self.snapshot = max((g for g, kind in self._files if kind == "snapshot"), default=0)
        self.logs = [g for g, kind in self._files if kind == "log" and g >= self.snapshot]
        self.latest = max((g for g, kind in self._files if kind != "partial"), default=0)

    def get_path(self, kind: str, generation: int) -> str:
        """Return the path of a file.

        Args:
          kind: "snapshot", "log", or "partial" for a snapshot that is being written.
          generation: Its generation.
        """
        return os.path.join(self.folder, f"{kind}.{generation}")

    def read_snapshot(self) -> FileRecord | None:
        """Return the snapshot, or None if there is none.

        Raises:
          DamagedFileError: If the snapshot is damaged or incomplete.
        """
        if not self.snapshot:
            return None
        path = self.get_path("snapshot", self.snapshot)
        record = next(read_records(self._storage, path, "snapshot"), None)
        if record is None or record.end != self._storage.get_size(path):
            raise DamagedFileError(path, 0, "the snapshot is incomplete")
        return record

    def read_logs(self) -> Iterator[tuple[int, FileRecord]]:
        """Yield the records of the logs since the snapshot, each with the generation of its log.

        The first record of each log contains offsets; see the docstring of the module.

        Raises:
          DamagedFileError: If a record is damaged.
        """
        ends: dict[str, int] = {}
        for generation in reversed(self.logs):
            first = next(self._read_log(generation, ends), None)
            if first is not None:
                # Later processes know how far they have replayed this log.
                ends = {**json.loads(first.body), **ends}
        for generation in self.logs:
            for record in self._read_log(generation, ends):
                yield generation, record

    def _read_log(self, generation: int, ends: Mapping[str, int]) -> Iterator[FileRecord]:
        path = self.get_path("log", generation)
        return read_records(self._storage, path, "log", ends.get(str(generation)))

    def delete_replaced(self, owner: int) -> None:
        """Delete the files that the snapshot has replaced, and incomplete snapshots.

        Args:
          owner: Generation of the log of this process. Earlier processes cannot complete a snapshot.
        """
        # In ascending order, which `Journal.check_ownership` requires.
        for generation, kind in self._files:
            if generation < self.snapshot or (kind == "partial" and generation <= owner):
                self._storage.delete(self.get_path(kind, generation))


class Journal:
    """The journal of one server, which this process owns until another one opens it.

    Args:
      folder: Folder of the server, which may have a journal already.
      storage: Storage of the folder.

    Attributes:
      min_snapshot_bytes: The size in bytes of the records from which a snapshot is worthwhile.
    """

    min_snapshot_bytes = 1 << 26

    def __init__(self, folder: StrPath, storage: Storage = LOCAL_STORAGE) -> None:
        self._folder, self._storage = os.fspath(folder), storage
        storage.make_folder(self._folder)
        while True:
            self._files = JournalFiles(self._folder, storage)
            # Another process may be faster.
            with contextlib.suppress(FileExistsError):
                self._start_log(self._files.latest + 1, {})
                break

    def _start_log(self, generation: int, ends: dict[str, int]) -> None:
        """Create a log, to which later records are appended.

        Args:
          generation: Its generation.
          ends: The offsets up to which earlier logs are valid, by generation.

        Raises:
          FileExistsError: If another process has created this log.
        """
        path, next_path = (self._files.get_path("log", g) for g in (generation, generation + 1))
        self._log = self._storage.open(path, "xb")
        self._log_path, self._next_log_path = path, next_path
        self._generation, self._ends = generation, ends
        self._offset = self._index = 0

    def recover(self) -> Iterator[Any]:
        """Yield the snapshot, or None, and then the later records.

        Records can be appended after that.

        Raises:
          DamagedFileError: If a file is damaged.
        """
        snapshot = self._files.read_snapshot()
        yield None if snapshot is None else _load_record(snapshot)
        self._ends = {str(generation): 0 for generation in self._files.logs}
        for generation, record in self._files.read_logs():
            self._ends[str(generation)] = record.end
            if record.index:
                yield _load_record(record)
        self._files.delete_replaced(self._generation)

    def append(self, record: Any) -> None:
        """Append a record.

        Args:
          record: Any object that can be pickled.

        Raises:
          OSError: If the disk is full. Nothing was appended then.
        """
        parts: list[memoryview] = []
        index = self._index
        if not self._offset:
            parts.append(memoryview(pack_header("log", self._generation)))
            parts += pack_record(0, json.dumps(self._ends).encode())
            index = 1
        parts += pack_record(index, *pickle_message(record))
        try:
            self._offset += write_all(self._log, parts)
        except BaseException:
            # A record after an incomplete one could not be read.
            self._log.truncate(self._offset)
            self._log.seek(self._offset)
            raise
        self._index = index + 1

    def check_ownership(self) -> None:
        """Check that no other process has opened the journal before the last record was appended.

        Call it after a change or a read, before answering the caller: until then, the new process
        may not know of the change.

        Raises:
          FencedError: If another process has opened the journal.
        """
        # The next process creates the next log, and deletes this one before the next one.
        exists = self._storage.exists
        if exists(self._next_log_path) or not exists(self._log_path):
            raise FencedError(f"Another process has opened the journal in {self._folder}.")

    @property
    def size(self) -> int:
        """Return the size in bytes of the records since the snapshot."""
        return self._offset + sum(self._ends.values())

    def write_snapshot(self, state: Any) -> None:
        """Replace the logs by a snapshot.

        If the snapshot cannot be written, the logs are kept, and the next attempt waits until they
        are twice as large.

        Args:
          state: The first value that `recover` will yield.

        Raises:
          FencedError: If another process has opened the journal.
        """
        generation, replaced_log = self._generation + 1, self._log
        partial = self._files.get_path("partial", generation)
        try:
            with open_file(self._storage, partial, "wb") as file:
                header = memoryview(pack_header("snapshot", generation))
                write_all(file, [header, *pack_record(0, *pickle_message(state))])
            self._start_log(generation, {**self._ends, str(self._generation): self._offset})
        except OSError as error:
            self._storage.delete(partial)
            # If the new log exists, another process has created it.
            self.check_ownership()
            self.min_snapshot_bytes = 2 * self.size
            _logger.warning("Could not write a snapshot; keeping the log: %s", error)
            return
        replaced_log.close()
        try:
            self._storage.rename(partial, self._files.get_path("snapshot", generation))
        except OSError as error:
            _logger.warning("Could not rename a snapshot; keeping the logs: %s", error)
            return
        self._ends = {}
        JournalFiles(self._folder, self._storage).delete_replaced(generation)


def _load_record(record: FileRecord) -> Any:
    return pickle.loads(record.body, buffers=record.arrays)
