"""Test the journal of a server, and its replay after a restart."""

import contextlib
import itertools
import os
import pickle
import random
import resource
import signal
import struct
from pathlib import Path

import numpy as np
import pytest

from distribute.parameter_server.connections import pair
from helpers import rounds
from meshflow.core.runtime.errors import DataLossError
from meshflow.distribute.parameter_server.server.journal import (
    Journal,
    JournalFiles,
    JournalFolder,
)
from meshflow.distribute.parameter_server.server.record_files import DamagedFileError
from meshflow.distribute.parameter_server.server.remote_server import ServerService
from meshflow.distribute.parameter_server.transport.connection import FencedError
from meshflow.distribute.parameter_server.transport.messages import PullRequest, Push
from meshflow.files.storage import LOCAL_STORAGE


def recover_records(folder):
    first, *records = Journal(folder).recover()
    return first, records


def open_journal(folder, storage=LOCAL_STORAGE):
    journal = Journal(folder, storage)
    list(journal.recover())
    return journal


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_records_are_read_in_order(tmp_path):
    journal = Journal(tmp_path)
    assert list(journal.recover()) == [None]
    for i in range(3):
        journal.append(("n", i, np.full(1000, i)))
    first, records = recover_records(tmp_path)
    assert first is None
    assert [(n, i, a.tolist()) for n, i, a in records] == [("n", i, [i] * 1000) for i in range(3)]


def test_unfinished_record_is_ignored(tmp_path, caplog):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.append("whole")
    before = journal.size
    journal.append(np.arange(100))
    [log] = tmp_path.glob("log.*")
    data = log.read_bytes()
    # Both kinds of damage, in the header and throughout the record.
    ends = [*range(before, before + 24), *range(before + 24, len(data), rounds(61, 1))]
    for end in ends:
        # A file system may have extended the file without its new contents.
        log.write_bytes(data[:end] if end % 2 else data[:before] + bytes(end - before))
        assert recover_records(tmp_path)[1] == ["whole"]
        assert (f"offset {before}" in caplog.text) == (end > before)
        caplog.clear()
    open_journal(tmp_path).append("after")
    assert recover_records(tmp_path)[1] == ["whole", "after"]


def test_snapshot_replaces_records(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.append("before")
    journal.write_snapshot({"state": np.ones(3)})
    assert journal.size == 0
    journal.append("after")
    first, records = recover_records(tmp_path)
    assert first["state"].tolist() == [1, 1, 1]
    assert records == ["after"]
    assert names(tmp_path) == ["log.2", "log.3", "snapshot.2"]


def test_full_disk_loses_nothing(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.append("before")
    large = np.ones(100_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append(large)
        journal.append("between")
        journal.write_snapshot({"state": large})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.append("after")
    assert recover_records(tmp_path) == (None, ["before", "between", "after"])
    open_journal(tmp_path).write_snapshot({"state": 1})
    assert names(tmp_path) == ["log.4", "snapshot.4"]
    assert recover_records(tmp_path) == ({"state": 1}, [])


def test_leftovers_of_a_snapshot_are_removed(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.write_snapshot("whole")
    # Killed before it removed the old files, and once more in the next snapshot.
    for name in ("snapshot.1", "log.1", "partial.3", "log.3"):
        (tmp_path / name).write_bytes(b"")
    assert recover_records(tmp_path) == ("whole", [])
    assert names(tmp_path) == ["log.2", "log.3", "log.4", "snapshot.2"]


def write_journal(folder):
    """A journal with a snapshot, two records and, by a later process, a third."""
    journal = open_journal(folder)
    journal.append("gone")
    journal.write_snapshot({"state": np.arange(4.0)})
    journal.append(("add", np.full(3, 4.0)))
    journal.append(("set", np.zeros((0, 3))))
    open_journal(folder).append("last")
    return {path: path.read_bytes() for path in sorted(folder.iterdir())}


def test_no_flipped_bit_is_recovered(tmp_path):
    files, before = write_journal(tmp_path), pickle.dumps(recover_records(tmp_path))
    assert sorted(p.name for p in files) == ["log.2", "log.3", "snapshot.2"]
    generator = random.Random(0)
    for path, data in files.items():
        for offset in range(len(data)):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(DamagedFileError, match=f"^{path} is damaged") as found:
                recover_records(tmp_path)
            assert found.value.offset <= offset
            (tmp_path / f"log.{JournalFiles(tmp_path).latest}").unlink()
        path.write_bytes(data)
    assert pickle.dumps(recover_records(tmp_path)) == before


def test_missing_or_repeated_records_are_damage(tmp_path):
    journal, ends = open_journal(tmp_path), [0]
    for record in ("a", "b", "c"):
        journal.append(record)
        ends.append(journal.size)
    [log] = tmp_path.iterdir()
    data = log.read_bytes()
    first, second, third = (data[a:b] for a, b in itertools.pairwise(ends))
    for kept in (first + third, first + second + second, first + third + second, second + third):
        log.write_bytes(kept)
        with pytest.raises(DataLossError, match=str(log)):
            recover_records(tmp_path)
    # A log that ends where no process has stopped to read it.
    log.write_bytes(data)
    open_journal(tmp_path).append("d")
    log.write_bytes(first)
    with pytest.raises(
        DataLossError, match=rf"{log} is damaged at offset {len(first)}: .* at least"
    ):
        recover_records(tmp_path)
    # One under the name of another.
    log.rename(tmp_path / "log.0")
    with pytest.raises(DataLossError, match="contrary to its name"):
        recover_records(tmp_path)


def test_journals_of_older_versions_are_refused(tmp_path):
    body = pickle.dumps("a record without a checksum")
    (tmp_path / "log.0").write_bytes(struct.pack("!QQ", len(body), 0) + body)
    with pytest.raises(DataLossError, match=r"log\.0 is damaged at offset 0: .* older version"):
        recover_records(tmp_path)


class Interrupted:
    """Files with something else that happens before one of the changes."""

    def __init__(self, turn, happen):
        self.turn, self.happen, self.count = turn, happen, 0

    def __getattr__(self, name):
        def change(*args):
            if name in ("delete", "rename") or args[-1] in ("wb", "xb"):
                self.count += 1
                if self.count == self.turn:
                    self.happen()
            return getattr(LOCAL_STORAGE, name)(*args)

        return change


@pytest.mark.parametrize("turn", range(2, 10))
def test_resumed_process_changes_nothing(tmp_path, turn):
    """Another process opens the journal while the first one is anywhere in a snapshot."""
    later = []

    def take_over():
        # A snapshot by the first process may replace its records.
        later.append(open_journal(tmp_path))
        later[0].append("second")
        later[0].check_ownership()

    storage = Interrupted(turn, take_over)
    journal = open_journal(tmp_path, storage)
    journal.append("first")
    with contextlib.suppress(FencedError):
        journal.write_snapshot(["first"])
    storage.turn = None
    if not later:
        journal.check_ownership()
        take_over()
    with pytest.raises(FencedError):
        journal.check_ownership()
    # It writes more, which is not acknowledged.
    with contextlib.suppress(FencedError):
        journal.append("too late")
        journal.write_snapshot(["too late"])
    later[0].append("third")
    later[0].check_ownership()
    if turn % 2:
        later[0].write_snapshot(["first", "second", "third"])
    found, records = recover_records(tmp_path)
    assert (found or []) + records == ["first", "second", "third"]
    for fenced in (journal, later[0]):
        with pytest.raises(FencedError):
            fenced.check_ownership()


def test_killed_and_suspended_processes_lose_nothing(tmp_path):
    """Test random histories of processes: acknowledged records are found in order, once."""
    for seed in range(rounds(30, 2000)):
        generator = random.Random(seed)
        folder = tmp_path / str(seed)
        alive, known, unsure = [], [], {}
        for step in range(20):
            action = generator.random()
            if action < 0.2 or not alive:
                journal = Journal(folder)
                snapshot, *records = journal.recover()
                journal.found = (snapshot or []) + records
                assert [r for r in journal.found if r in known] == known, f"seed {seed}"
                assert len({*journal.found}) == len(journal.found), f"seed {seed}"
                known, unsure = list(journal.found), {}
                alive.append(journal)
                continue
            journal = generator.choice(alive[-2:])
            with contextlib.suppress(FencedError):
                if action < 0.35:
                    journal.write_snapshot(journal.found)
                else:
                    journal.append(step)
                    journal.found.append(step)
                    unsure[step] = journal
                journal.check_ownership()
                known = list(journal.found)


def test_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        folder = JournalFolder()
        Journal(folder.get_server_folder(0))
        os.write(write, str(folder.path).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    left = Path(os.read(read, 1000).decode())
    assert left.parent == tmp_path
    assert left.is_dir()
    (tmp_path / "meshflow-servers-of-others").mkdir()
    first = JournalFolder()
    second = JournalFolder()
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {first.path.name, second.path.name, "meshflow-servers-of-others"}
    first.close()
    second.close()
    assert [p.name for p in tmp_path.iterdir()] == ["meshflow-servers-of-others"]


def test_journal_of_an_earlier_job_is_not_replayed(tmp_path):
    for _ in range(2):
        folder = JournalFolder(tmp_path)
        server = ServerService(0, str(folder.get_server_folder(0))).methods(pair()[0])
        server["create"](1, np.zeros(4, np.float32), "v", None)
        reply = server["exchange"](Push(0, adds={1: np.ones(4, np.float32)}), PullRequest(), 0)
        assert not reply.repeated
        np.testing.assert_array_equal(server["read"]((1,))[1][1], np.ones(4))
        folder.close()
    assert len(list(tmp_path.glob("job-*/server-0/log.1"))) == 2


@pytest.mark.parametrize("least", [0, 1 << 30])
def test_restarted_server_continues(tmp_path, monkeypatch, least):
    monkeypatch.setattr(Journal, "min_snapshot_bytes", least)

    def service():
        return ServerService(0, str(tmp_path)).methods(pair()[0])

    server = service()
    server["create"](1, np.zeros(4, np.float32), "v", None)
    server["write"](1, np.ones(4, np.float32), True, 1)
    for closure in range(20):
        server["exchange"](
            Push(closure, adds={1: np.full(4, closure, np.float32)}), PullRequest(), closure
        )
    clock, values = server["read"]((1,))
    np.testing.assert_array_equal(values[1], np.full(4, 191.0))

    server = service()
    after, values = server["read"]((1,))
    assert after == clock
    np.testing.assert_array_equal(values[1], np.full(4, 191.0))
    # Earlier calls are known, and are not repeated.
    assert server["exchange"](Push(19, adds={1: np.ones(4, np.float32)}), PullRequest(), 0).repeated
    server["write"](1, np.ones(4, np.float32), True, 1)
    np.testing.assert_array_equal(server["read"]((1,))[1][1], np.full(4, 191.0))
    server["write"](1, np.ones(4, np.float32), True, 2)
    np.testing.assert_array_equal(service()["read"]((1,))[1][1], np.full(4, 192.0))


def test_repeated_coordinator_call_is_not_applied_after_later_calls(tmp_path):
    def service():
        return ServerService(0, str(tmp_path)).methods(pair()[0])

    server, zeros = service(), np.zeros(4, np.float32)
    server["create"](1, zeros, "v", None, 1)
    server["write"](1, np.ones(4, np.float32), True, 2)
    # The connection of the first call was lost, and the server executes the calls that had arrived.
    server["create"](1, zeros, "v", None, 1)
    server["adopt"](1, b"not an optimizer", 1)
    np.testing.assert_array_equal(server["read"]((1,))[1][1], np.ones(4))
    np.testing.assert_array_equal(service()["read"]((1,))[1][1], np.ones(4))
