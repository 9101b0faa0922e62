"""Test processes that parse foreign files: their restrictions, and the reports of their parent."""

import functools
import json
import os
import socket
import sys

import pytest

import meshflow as tf
from isolation_attacks import ATTACKS
from meshflow.core.runtime.isolation import call_isolated
from meshflow.environment.sandbox import NAMESPACES, SECCOMP, choose_mechanism

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
# Namespaces permit programs and signals of the same user, and rings for local files.
POSSIBLE_IN_NAMESPACES = {"fork", "kill", "limit", "ring"}


def call(name, arguments=None, mechanism=SECCOMP, size=1000, **options):
    return call_isolated(
        f"isolation_attacks:{name}", arguments or {}, "model.keras", size, [mechanism], **options
    )


@functools.cache
def find_obstacle(mechanism):
    """Return why a mechanism cannot isolate processes on this system, or None."""
    if choose_mechanism([mechanism]) is None:
        return f"this system has no {mechanism}"
    try:
        call("list_secrets", mechanism=mechanism)
    except tf.errors.UnimplementedError as error:
        return str(error)
    return None


def require(mechanism):
    if (obstacle := find_obstacle(mechanism)) is not None:
        pytest.skip(obstacle)


@pytest.fixture(params=[SECCOMP, NAMESPACES])
def mechanism(request):
    require(request.param)
    return request.param


def test_attacks_fail(mechanism, tmp_path):
    (tmp_path / "old").write_text("old")
    with socket.create_server(("127.0.0.1", 0)) as server:
        attacks = set(ATTACKS) - (POSSIBLE_IN_NAMESPACES if mechanism == NAMESPACES else set())
        arguments = {
            "folder": str(tmp_path),
            "port": server.getsockname()[1],
            "attacks": sorted(attacks),
        }
        results = json.loads(call("try_attacks", arguments, mechanism))
    assert results.keys() == attacks
    assert [name for name, error in results.items() if error is None] == []
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"
    assert (tmp_path / "old").stat().st_mode & 0o777 != 0o777


def test_the_process_has_no_secrets_and_no_files_of_its_parent(mechanism, monkeypatch, tmp_path):
    monkeypatch.setenv("MESHFLOW_SECRET", "s")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with open(tmp_path / "private", "w") as file:
        os.set_inheritable(file.fileno(), True)
        names, files = json.loads(call("list_secrets", mechanism=mechanism))
    assert not {"MESHFLOW_SECRET", "AWS_SECRET_ACCESS_KEY"} & set(names)
    assert not any("private" in name or "socket:" in name for name in files)


def test_modules_in_the_folder_of_a_file_do_not_run(mechanism, monkeypatch, tmp_path):
    for name in ("ctypes", "json", "resource"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert json.loads(call("list_secrets", mechanism=mechanism))
    assert not (tmp_path / "ran").exists()


def test_failures_have_classes_and_names(mechanism):
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"model\.keras.*within 1 s"):
        call("loop", mechanism=mechanism, seconds=1)
    with pytest.raises(tf.errors.DataLossError, match=r"model\.keras.*SIGABRT"):
        call("crash", mechanism=mechanism)
    with pytest.raises(tf.errors.DataLossError, match=r"model\.keras.*KeyError"):
        call("fail", mechanism=mechanism)


def test_results_are_limited(monkeypatch):
    require(SECCOMP)
    monkeypatch.setenv("MESHFLOW_MAX_UNPACKED_BYTES", "50e6")
    with pytest.raises(OSError, match="File too large"):
        call("write_without_end")


def test_a_system_without_isolation():
    with pytest.raises(
        tf.errors.UnimplementedError, match="cannot be read in isolation on this system"
    ):
        call_isolated("isolation_attacks:fail", {}, "model.keras", 0, [])
