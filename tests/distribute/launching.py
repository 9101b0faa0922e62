"""Start the workers of a job as real processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

WORKERS = Path(__file__).parent / "workers"
SOURCE = Path(__file__).parents[2] / "src"


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def environment(devices=2, **extra):
    """Environment of a process with virtual CPU devices."""
    return {
        **{k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": "16",
        "PYTHONPATH": str(SOURCE),
        **{k: str(v) for k, v in extra.items()},
    }


def start(script, *args, task=None, addresses=(), devices=2, **extra):
    """Start a script as one worker of a cluster."""
    if task is not None:
        cluster = {"worker": list(addresses)}
        config = {"cluster": cluster, "task": {"type": "worker", "index": task}}
        extra["TF_CONFIG"] = json.dumps(config)
    return subprocess.Popen(
        [sys.executable, "-u", str(script), *map(str, args)],
        env=environment(devices, **extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes, timeout=240):
    """Wait for processes; return the output of each. No process remains."""
    try:
        return [p.communicate(timeout=timeout)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()
