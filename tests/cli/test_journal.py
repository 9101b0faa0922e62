"""Test `meshflow journal`: the contents of parameter servers' journals, and the recovery of damaged
ones."""

import numpy as np
import pytest
from typer.testing import CliRunner

from meshflow.cli.commands import app
from meshflow.distribute.parameter_server.server.journal import Journal


def run_command(*words, code=0):
    result = CliRunner().invoke(app, ["journal", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output.splitlines()


def open_journal(folder):
    journal = Journal(folder)
    return journal, list(journal.recover())


@pytest.fixture
def folder(tmp_path):
    """Return the journals of two servers, the first of which restarted once."""
    for server in range(2):
        journal, _ = open_journal(tmp_path / "job" / f"server-{server}")
        journal.write_snapshot(np.arange(100_000))
        journal.append("first")
        journal.append(np.ones(1000))
    again, _ = open_journal(tmp_path / "job" / "server-0")
    again.append("third")
    return tmp_path / "job"


def test_valid_journals_are_shown_and_copied(folder, tmp_path):
    lines = run_command("show", folder)
    assert [line.split(": ")[0].removeprefix(f"{folder}/") for line in lines] == [
        "server-0/snapshot.2", "server-0/log.2", "server-0/log.3", "server-1/snapshot.2", "server-1/log.2",
    ]  # fmt: skip
    assert [line.split(": ")[1].split(",")[0] for line in lines[1:3]] == ["2 records", "1 records"]
    run_command("recover", folder, tmp_path / "new")
    for path in folder.rglob("*.*"):
        assert (tmp_path / "new" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_records_before_the_damage_are_recovered(folder, tmp_path):
    log = folder / "server-0" / "log.2"
    data = bytearray(log.read_bytes())
    data[-5000] ^= 1
    log.write_bytes(data)
    shown = run_command("show", folder, code=1)
    damage = f"{log} is damaged at offset "
    assert any(line.startswith(damage) for line in shown), shown
    lines = run_command("recover", folder / "server-0", tmp_path / "new")
    assert (
        lines[0].startswith(damage)
        and lines[1] == f"{tmp_path}/new: recovered a snapshot and 1 records"
    )
    _, (snapshot, *records) = open_journal(tmp_path / "new")
    np.testing.assert_array_equal(snapshot, np.arange(100_000))
    assert records == ["first"]
    assert bytes(data) == log.read_bytes()


def test_unrecoverable_records_are_reported(folder, tmp_path):
    snapshot = folder / "server-1" / "snapshot.2"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    assert "the snapshot is incomplete" in run_command("show", folder, code=1)[-1]
    lines = run_command("recover", folder / "server-1", tmp_path / "new", code=1)
    assert "because the logs need this snapshot" in lines[-1]
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    for words in (
        (tmp_path / "empty", tmp_path / "new"),
        (tmp_path / "none", tmp_path / "new"),
        (folder, folder),
    ):
        run_command("recover", *words, code=2)
