"""Test a job of `meshflow launch` on one machine next to a stranger: open ports, and accepted
connections."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distribute.cluster import strangers
from distribute.launching import WORKERS, environment
from meshflow.cli.commands import app

WAITING = WORKERS / "waiting.py"
pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")


def test_local_job_survives_foreign_connections(tmp_path):
    command = [sys.executable, "-c", "from meshflow.cli import main; main()", "launch"]
    options = ["--workers", "2", "--devices-per-worker", "1", str(WAITING), str(tmp_path)]
    job = subprocess.Popen(
        [*command, *options],
        env=environment(1, GLOO_SOCKET_IFNAME="eth0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The launcher listens before the workers have imported anything.
    found, text = strangers.attack_job(
        job, tmp_path, "127.0.0.1", lambda: strangers.listeners(strangers.descendants(job.pid))
    )
    assert len(found) >= 3  # the meeting point, JAX's service, and gloo
    assert {address for address, _ in found} <= strangers.LOOPBACK
    assert "was refused at the meeting point: it does not" in text


TERMINAL = """
import os, pty, signal, sys
# As sshd does with -tt: the command has a terminal of its own.
def carry(fd):
    return os.read(fd, 1024)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(["sh", "-c", " ".join(sys.argv[5:])], carry)))
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_secret_is_hidden_on_remote_command_lines(tmp_path, terminal):
    """Test with a mock of ssh, which runs the command locally and records everything that is
    publicly visible."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    (tmp_path / "terminal.py").write_text(TERMINAL)
    run = (
        f'exec {sys.executable} {tmp_path}/terminal.py "$@"'
        if terminal
        else 'shift 4\nexec sh -c "$*"'
    )
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/log\n{run}\n')
    ssh.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text("import os; print('known', os.environ['MESHFLOW_SECRET'][::-1])")
    options = ["--workers", "2", "--hosts", "a.example,b.example", "--address", "127.0.0.1"]
    done = CliRunner().invoke(
        app,
        ["launch", *options, str(script)],
        env=environment(1, PATH=f"{ssh.parent}:{os.environ['PATH']}", MESHFLOW_SECRET="x" * 64),
    )
    assert done.exit_code == 0, done.output
    lines = [line.split("known ")[1] for line in done.output.splitlines() if "known" in line]
    assert len(lines) == 2 and len(set(lines)) == 1 and len(lines[0]) == 64, done.output
    secret = lines[0][::-1]
    assert secret != "x" * 64 and secret not in done.output
    log = (tmp_path / "log").read_text()
    assert "a.example" in log and secret not in log and "x" * 64 not in log
    assert "requests the secret" not in done.output
