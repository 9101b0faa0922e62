"""Test `meshflow launch` with real workers: outputs, faults, restarts, and that no process remains.

`make test-all` kills workers at 200 random moments, or at MESHFLOW_FAULTS moments.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import helpers
from meshflow.cli.commands import app
from meshflow.cli.launch import Job

TESTS = Path(__file__).parents[1]
SURVIVING = TESTS / "distribute" / "workers" / "surviving.py"
KILLS = int(os.environ.get("MESHFLOW_FAULTS", 200))
COMMAND = [sys.executable, "-c", "from meshflow.cli import main; main()", "launch"]
# Differences from the environment of the tests; None removes a variable.
ENVIRONMENT = {
    **{"TF_CONFIG": None, "JAX_NUM_CPU_DEVICES": None},
    **{"PYTHONPATH": str(TESTS.parent / "src"), "COLUMNS": "200"},
}


def start(*arguments, **environment):
    """Start the launcher as a separate process, which may be interrupted and killed."""
    known = {**os.environ, **ENVIRONMENT, **environment}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env={name: value for name, value in known.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def launch(*arguments, **environment):
    """Code and output of the launcher, in this process."""
    command = ["launch", *map(str, arguments)]
    done = CliRunner().invoke(app, command, env={**ENVIRONMENT, **environment})
    return done.exit_code, done.output


def alive(pids):
    """Return the processes that still run, without zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def have_exited(pids, within=5.0):
    deadline = time.monotonic() + within
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pids)


def pids(folder):
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


# ---- environment and output of workers ---------------------------------------------------------

SHOW = """
import json, os, sys, helper
config = json.loads(os.environ["TF_CONFIG"])
print("one of", len(config["cluster"]["worker"]), sys.argv[1:], __name__, helper.VALUE)
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
print("to stderr", config["task"], file=sys.stderr)
sys.exit(int(sys.argv[1]) if config["task"]["index"] == 1 else 0)
"""


@pytest.fixture
def show(tmp_path):
    (tmp_path / "helper.py").write_text("VALUE = 'imported'")
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    return script


def test_workers_get_tasks_and_prefixed_output(show):
    code, text = launch("--workers", 2, show, "0", "--option", "x y", CUDA_VISIBLE_DEVICES="4,5,7")
    assert code == 0, text
    for number in range(2):
        assert f"[worker {number}] GPUs {'45'[number]}\n" in text
        expected = "one of 2 ['0', '--option', 'x y'] __main__ imported"
        assert f"[worker {number}] {expected}\n" in text
        task = {"type": "worker", "index": number}
        assert f"[worker {number}] to stderr {task}\n" in text


def test_workers_import_meshflow_as_tensorflow(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import tensorflow; print(tensorflow.keras.layers.Dense.__module__)\n")
    code, output = launch(script)
    assert code == 0 and "meshflow.keras" in output


def test_failure_ends_the_job_after_its_restarts(show):
    code, text = launch("--workers", 2, "--max-restarts", 1, show, "7")
    assert code == 7
    assert "Worker 1 ended with code 7. Restart 1 of 1." in text
    assert "[launch] Worker 1 ended with code 7. The job failed after 1 restarts." in text


def test_worker_stopped_before_connecting_fails(tmp_path):
    script = tmp_path / "stop.py"
    script.write_text(
        "import os, signal\n"
        "if os.environ['MESHFLOW_RESTARTS'] == '0':\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "print('done')\n"
    )
    code, text = launch("--workers", 1, "--max-restarts", 1, "--watchdog", 1, script)
    assert code == 0, text
    assert "Worker 0 is stopped by a signal for 1 s. Restart 1 of 1." in text
    assert "[worker 0] done" in text


def test_wrong_arguments(show, monkeypatch):
    for arguments, expected in (
        ({"workers": 0}, "at least 1"),
        ({"watchdog": 0}, "positive number of seconds"),
    ):
        with pytest.raises(ValueError, match=expected):
            Job(str(show), **arguments)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(ValueError, match="Expected 2 workers of 2 GPUs each"):
        Job(str(show), workers=2, gpus=2)
    code, text = launch("no_such_script.py")
    assert code == 2 and "There is no script no_such_script.py" in " ".join(text.split()), text


def test_other_machines_by_ssh(show, tmp_path):
    """Test with a mock of ssh, which records the machine and runs the command locally."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\necho "$4" >> "$LOG"\nshift 4\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    path = f"{ssh.parent}:{os.environ['PATH']}"
    arguments = (
        "--workers",
        4,
        "--hosts",
        "a.example,b.example",
        "--address",
        "127.0.0.1",
        "--port",
        900,
    )
    code, text = launch(*arguments, show, "0", PATH=path, LOG=str(tmp_path / "log"))
    assert code == 0, text
    assert sorted((tmp_path / "log").read_text().split()) == ["a.example"] * 2 + ["b.example"] * 2
    for number in range(4):
        assert f"[worker {number}] one of 4 ['0'] __main__ imported" in text


# ---- no process remains ------------------------------------------------------------------------

SLEEP = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n{child.pid}\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_workers_end_with_the_launcher(tmp_path, how):
    script = tmp_path / "sleep.py"
    script.write_text(SLEEP)
    process = start("--workers", 2, script, tmp_path / "pids")
    deadline = time.monotonic() + 60
    while not ((tmp_path / "pids").exists() and len(pids(tmp_path)) == 4):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    started = pids(tmp_path)
    process.send_signal(how)
    if how is signal.SIGKILL:
        # The launcher is dead and cannot end the processes of workers; the workers exit by
        # themselves.
        process.wait()
        assert have_exited(started[0::2])
        for child in started[1::2]:
            os.kill(child, signal.SIGKILL)
    else:
        text, _ = process.communicate(timeout=20)
        assert process.returncode == 130 and "stopped all workers" in text
        assert have_exited(started)
    process.stdout.close()


# ---- faults ------------------------------------------------------------------------------------


def train(folder, *faults, watchdog=60):
    """Weights and output of a training with faults."""
    folder.mkdir()
    options = ["--workers", 2, "--devices-per-worker", 1, "--watchdog", watchdog]
    options += ["--max-restarts", len(faults)]
    code, text = launch(*options, SURVIVING, folder, *faults, EPOCHS=EPOCHS)
    assert code == 0, text
    assert have_exited(pids(folder))
    with np.load(folder / "weights.npz") as found:
        return [found[k] for k in found.files], text


# Each step is backed up, so longer training sees more kills.
EPOCHS = str(helpers.rounds(4, 12))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "undisturbed")


def assert_same_bits(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def workers_of(launcher):
    """Workers that a launcher has started and that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == launcher and SURVIVING.name.encode() in command:
            found.append(int(folder.name))
    return sorted(found)


def kill_a_worker(found, launcher, wait):
    """Kill one of the first two workers from outside, some time after both were started."""
    while len(workers := workers_of(launcher)) < 2:
        time.sleep(0.01)
    time.sleep(wait)
    os.kill(workers[1], signal.SIGKILL)
    found += workers


@pytest.mark.long
def test_faults_leave_no_trace_in_the_weights(undisturbed, tmp_path):
    """A worker is killed while it starts, one while it trains, one is stopped, one is stuck: one job."""
    faults = ["killed@0@1", "kill@4@1", "stop@3@1", "sleep@3@0"]
    killed = []
    killer = threading.Thread(target=kill_a_worker, args=(killed, os.getpid(), 0.4), daemon=True)
    killer.start()
    weights, text = train(tmp_path / "runs", *faults, watchdog=5)
    killer.join()
    assert text.count("was killed by SIGKILL. Restart ") == 2
    assert "Worker 1 was killed by SIGKILL. Restart 2 of 4." in text
    assert "Restart 4 of 4" in text
    assert "Worker 1 has given no sign of life for 5 s" in text
    assert "No worker has done a step for 5 s" in text
    assert_same_bits(weights, undisturbed[0])
    assert have_exited(killed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_kills_at_random_moments(undisturbed, tmp_path):
    """Kill from outside, of any worker, while it starts, joins, trains or saves."""
    left = KILLS
    choice = random.Random(0)
    expected, _ = undisturbed
    while left:
        folder = tmp_path / str(left)
        folder.mkdir()
        options = ["--workers", 2, "--devices-per-worker", 1, "--max-restarts", left]
        process = start(*options, SURVIVING, folder, EPOCHS=EPOCHS)
        seen = set()
        while left and process.poll() is None:
            workers = [pid for pid in workers_of(process.pid) if pid not in seen]
            if len(workers) < 2:
                time.sleep(0.01)
                continue
            seen.update(workers)
            # Every third time both have joined, and train.
            while left % 3 == 0 and process.poll() is None and not {*workers} <= {*pids(folder)}:
                time.sleep(0.01)
            time.sleep(choice.uniform(0, 1 if left % 3 == 0 else 3))
            victim = choice.choice(workers)
            if process.poll() is None and alive([victim]):
                os.kill(victim, signal.SIGKILL)
                left -= 1
        text, _ = process.communicate(timeout=300)
        assert process.returncode == 0, text
        with np.load(folder / "weights.npz") as found:
            assert_same_bits([found[k] for k in found.files], expected)
        assert have_exited(seen)
