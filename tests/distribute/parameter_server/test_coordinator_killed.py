"""Test a coordinator that is killed: its processes exit, and a new one continues from the last
checkpoint."""

import os
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "parameter_server_job.py"


def job(folder, closures):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), str(closures)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_new_coordinator_continues_training(tmp_path):
    first = job(tmp_path, 10_000)
    pids, reached = [], 0
    for line in first.stdout:
        kind, *numbers = line.split()
        if kind == "pids":
            pids = [int(n) for n in numbers]
        if kind == "at":
            assert len(set(numbers)) == 1
            reached = int(numbers[0])
        if reached >= 30:
            break
    first.kill()
    first.wait(20)
    deadline = time.monotonic() + 30
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(pids) == 2
    assert not any(map(running, pids))

    second = job(tmp_path, reached + 20)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 0
    lines = [line.split() for line in output.splitlines()]
    begun = next(int(numbers[1]) for numbers in lines if numbers[0] == "at")
    # The last checkpoint may have been finished before its line was read.
    assert begun in (reached + 10, reached + 20)
    assert lines[-1][0] == "done"
    assert lines[-1][1] == lines[-1][2]
    assert int(lines[-1][1]) >= reached + 20
