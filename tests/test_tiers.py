"""What runs when: the tests marked `soak`, and how often others try."""

import subprocess
import sys

import pytest

SAMPLE = """
import helpers, pytest

def test_short():
    assert helpers.rounds(2, 200) == {rounds}

@pytest.mark.soak
def test_long():
    pass
"""


@pytest.mark.parametrize(("soak", "passed", "rounds"), [("0", 1, 2), ("1", 2, 200)])
def test_soak_tests_run_when_asked_for(tmp_path, monkeypatch, request, soak, passed, rounds):
    monkeypatch.setenv("MESHFLOW_SOAK", soak)
    (tmp_path / "test_sample.py").write_text(SAMPLE.format(rounds=rounds))
    root = request.config.rootpath
    command = [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "conftest"]
    command += ["-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr
