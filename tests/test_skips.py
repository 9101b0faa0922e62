"""Tests that CI skips are listed, and fail the run unless they are allowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import capabilities
from meshflow.kernels import installation

PROGRAM = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_passes(n):
    pass

def test_is_skipped():
    pytest.skip("no moon")
"""


def test_patterns_cover_tests_and_reasons(monkeypatch):
    skips = [
        ("tests/kernels/test_tiles.py::test_a[1]", "AMX tiles"),
        ("tests/kernels/test_tiles.py::test_a[1]", "CPU kernels, AMX tiles"),
        ("tests/profiler/test_page.py::test_b", "Chromium"),
    ]
    assert capabilities.find_forbidden_skips(skips) == skips[1:]
    monkeypatch.setenv("MESHFLOW_ALLOWED_SKIPS", "*: Chromium\n# *: CPU*")
    assert capabilities.find_forbidden_skips(skips) == skips[1:2]


@pytest.mark.skipif(not installation.has_onednn(), reason="only printed on this platform")
@pytest.mark.parametrize(("allowed", "code"), [("", 1), ("*test_is_skipped: no moon", 0)])
def test_ci_fails_for_forbidden_skips(allowed, code, tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "capabilities", "-n", "1", "-q"]
    variables = {"MESHFLOW_CI": "1", "MESHFLOW_ALLOWED_SKIPS": allowed}
    path = os.pathsep.join([str(Path(capabilities.__file__).parent), *sys.path])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **variables, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "skipped: test_program.py::test_is_skipped: no moon" in done.stdout
    assert ("ERROR: test_program.py::test_is_skipped may not" in done.stdout) == bool(code)
