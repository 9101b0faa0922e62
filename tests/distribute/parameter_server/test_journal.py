"""What a server writes down, and what it makes of it when it begins again."""

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from distribute.parameter_server.connections import pair
from meshflow.distribute.parameter_server.server.journal import Journal, JournalFolder
from meshflow.distribute.parameter_server.server.remote_server import ServerService
from meshflow.distribute.parameter_server.transport.messages import PullRequest, Push


def recovered(folder):
    first, *records = Journal(folder).recover()
    return first, records


def test_records_come_back_in_order(tmp_path):
    journal = Journal(tmp_path)
    assert list(journal.recover()) == [None]
    for i in range(3):
        journal.append(("n", i, np.full(1000, i)))
    first, records = recovered(tmp_path)
    assert first is None
    assert [(n, i, a.tolist()) for n, i, a in records] == [("n", i, [i] * 1000) for i in range(3)]


def test_a_record_that_was_not_finished_is_left_out(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.append("whole")
    before = journal.size
    journal.append(np.arange(100))
    [log] = tmp_path.glob("log.*")
    data = log.read_bytes()
    for end in range(before, len(data)):
        log.write_bytes(data[:end])
        assert recovered(tmp_path)[1] == ["whole"]
    again = Journal(tmp_path)
    list(again.recover())
    again.append("after")
    assert recovered(tmp_path)[1] == ["whole", "after"]


def test_a_snapshot_takes_the_place_of_records(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.append("before")
    journal.write_snapshot({"state": np.ones(3)})
    assert journal.size == 0
    journal.append("after")
    first, records = recovered(tmp_path)
    assert first["state"].tolist() == [1, 1, 1]
    assert records == ["after"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.1", "snapshot.1"]


def test_a_disk_that_is_full_loses_nothing(tmp_path):
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
    assert recovered(tmp_path) == (None, ["before", "between", "after"])
    journal.write_snapshot({"state": 1})
    assert recovered(tmp_path) == ({"state": 1}, [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.1", "snapshot.1"]


def test_what_was_left_at_a_snapshot_is_removed(tmp_path):
    journal = Journal(tmp_path)
    list(journal.recover())
    journal.write_snapshot("whole")
    # Killed before it had removed what was before, and in the next one.
    for name in ("snapshot.0", "log.0", "partial.2", "log.2"):
        (tmp_path / name).write_bytes(b"")
    assert recovered(tmp_path) == ("whole", [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.1", "snapshot.1"]


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


@pytest.mark.parametrize("least", [0, 1 << 30])
def test_a_server_begins_again_where_it_was(tmp_path, monkeypatch, least):
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
    # What was done before is known, and is not done again.
    assert server["exchange"](Push(19, adds={1: np.ones(4, np.float32)}), PullRequest(), 0).repeated
    server["write"](1, np.ones(4, np.float32), True, 1)
    np.testing.assert_array_equal(server["read"]((1,))[1][1], np.full(4, 191.0))
    server["write"](1, np.ones(4, np.float32), True, 2)
    np.testing.assert_array_equal(service()["read"]((1,))[1][1], np.full(4, 192.0))
