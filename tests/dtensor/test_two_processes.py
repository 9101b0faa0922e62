"""A mesh over two processes: checkpoints, input, barriers."""

import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("in_two_processes.py")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def in_two_processes(program, folder):
    """Return the output of two processes that run a program with their number, the addresses of
    both, and a folder."""
    addresses = ",".join(f"127.0.0.1:{p}" for p in free_ports(2))
    workers = [
        subprocess.Popen(
            [sys.executable, str(program), str(i), addresses, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        results = [w.communicate(timeout=180) for w in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, results, strict=True):
        assert worker.returncode == 0, errors
    return [printed for printed, _ in results]


def test_two_processes_share_a_checkpoint(tmp_path):
    printed = in_two_processes(PROGRAM, tmp_path)
    assert "barrier alone: not all of 2 processes came within 0.5 s" in printed[0]
    data = [f"ckpt-1.data-0000{i}-of-00002" for i in range(2)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", *data, "ckpt-1.index"]
