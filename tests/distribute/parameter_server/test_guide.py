"""The program of TensorFlow's guide to parameter servers, from end to end: in one process, in several, and on Ray."""

import json
import os
import subprocess
import sys

import pytest

from distribute.launching import environment, free_ports
from distribute.parameter_server.scripts import guide

SCRIPT = guide.__file__


def test_in_one_process(tmp_path):
    servers, resolver = guide.in_process_cluster(workers=3, servers=2)
    strategy = guide.train(resolver, str(tmp_path), servers=2)
    strategy.cluster.stop()
    for server in servers:
        server._listener.stop()
    assert any(name.startswith("ckpt-1") for name in os.listdir(tmp_path / "ckpt"))
    guide.evaluate_beside(str(tmp_path))
    assert os.listdir(tmp_path / "evaluation")


def start_program(folder, cluster=None, kind=None, index=0):
    """Run the program in one process, or as a task of a cluster."""
    extra = {}
    if cluster is not None:
        task = {"type": kind, "index": index}
        extra["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    return subprocess.Popen(
        [sys.executable, SCRIPT, "cluster" if cluster else "alone", str(folder)],
        env=environment(1, **extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.soak
@pytest.mark.parametrize("servers", [1, 2])
def test_as_processes_that_tf_config_describes(tmp_path, servers):
    jobs = {"chief": 1, "worker": 2, "ps": servers}
    ports = iter(free_ports(sum(jobs.values())))
    cluster = {
        job: [f"localhost:{next(ports)}" for _ in range(count)] for job, count in jobs.items()
    }
    serving = [
        start_program(tmp_path, cluster, job, i)
        for job in ("worker", "ps")
        for i in range(jobs[job])
    ]
    evaluator, chief = (start_program(tmp_path, cluster, job) for job in ("evaluator", "chief"))
    try:
        output = chief.communicate(timeout=400)[0]
        assert chief.returncode == 0 and "done\n" in output, output
        evaluated = evaluator.communicate(timeout=120)[0]
        assert evaluator.returncode == 0 and "side-car steps" in evaluated, evaluated
        # Who joined waits for the next coordinator.
        assert all(p.poll() is None for p in serving)
    finally:
        for process in (*serving, evaluator, chief):
            process.kill()
            process.wait()


@pytest.mark.soak
def test_on_ray(tmp_path):
    pytest.importorskip("ray")
    output = start_program(tmp_path).communicate(timeout=400)[0]
    assert "done\n" in output, output
    # Ray's processes ended on request.
    assert "died or was killed" not in output
