"""`benchmarks/gpu.py` runs all its parts at their smallest sizes, since runs on a GPU are too rare to find mistakes."""

import json
import pathlib
import subprocess
import sys

import pytest

from helpers import rounds

ROOT = pathlib.Path(__file__).parents[2]
PARTS = ("doctor", "ceilings", "tests", "gpt2", "cnn", "resnet50", "dlrm", "lstm")
# The networks between tables and figures share their code, and each needs seconds to compile.
MODELS = rounds(("dlrm",), ("gpt2", "resnet50", "dlrm", "lstm"))


def _run(folder, *options):
    command = [sys.executable, "benchmarks/gpu.py", "--smoke", "--out", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.long
def test_every_part_has_results(tmp_path):
    parts = [part for part in PARTS if part in ("doctor", "ceilings", "tests", "cnn", *MODELS)]
    run = _run(tmp_path, "--parts", ",".join(parts))
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["parts"]) == parts
    assert found["parts"]["tests"]["passed"] == 2
    assert found["parts"]["cnn"]["items"]["mixed_bfloat16"]["ms_per_step"] > 0
    for name in MODELS:
        assert found["parts"][name]["measured"]["meshflow"]["rate"] > 0
    report = (tmp_path / "gpu.md").read_text()
    assert "| dlrm | Meshflow |" in report and "Failures:" not in report


def test_a_failure_is_a_result(tmp_path, monkeypatch):
    """Test that a process that cannot start fails only its part, and the next part runs."""
    monkeypatch.setenv("MESHFLOW_KERNELS", "of another kind")
    run = _run(tmp_path, "--parts", "dlrm,doctor")
    assert run.returncode == 1
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert (
        "MESHFLOW_KERNELS" in json.dumps(found["dlrm"]["meshflow"])
        and "traceback" in found["dlrm"]["meshflow"]
    )
    assert found["doctor"]["versions"]["jax"]
    assert "* dlrm: " in (tmp_path / "gpu.md").read_text()


def test_unknown_parts(tmp_path):
    run = _run(tmp_path, "--parts", "gpt3")
    assert run.returncode == 2 and "unknown parts ['gpt3']" in run.stderr
