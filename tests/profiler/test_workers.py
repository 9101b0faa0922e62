"""Profiles of real processes that train together, each with a profiler's server."""

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
import stores
from distribute.launching import environment, free_ports
from meshflow.profiler import folders
from meshflow.profiler.findings import list_findings

client = tf.profiler.experimental.client
WORKER = Path(__file__).parent / "training_worker.py"


SERVERS = Path(__file__).parent / "training_servers.py"


@pytest.fixture(scope="module")
def late_sends(tmp_path_factory):
    """Build a library that delays the messages of a worker's collectives."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, on Linux")
    source = Path(__file__).parent / "late_sends.c"
    library = tmp_path_factory.mktemp("library") / "late_sends.so"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    return str(library)


@contextlib.contextmanager
def training(kind, delay, slow=1, count=2, **environments):
    """Workers that train as long as the block, one of them slow; their servers' addresses."""
    ports = free_ports(2 * count)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports[:count]]}
    processes = []
    try:
        for number in range(count):
            task = {"cluster": cluster, "task": {"type": "worker", "index": number}}
            own = kind if number == slow else "none"
            extra = environments if number == slow else {}
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKER), str(ports[count + number]), own, str(delay)],
                    env=environment(1, TF_CONFIG=json.dumps(task), **extra),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        for process in processes:
            # gloo writes of its connections, too.
            assert any(line == "ready\n" for line in process.stdout)
        yield [f"127.0.0.1:{port}" for port in ports[count:]]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def sound(report):
    """The parts of every step sum to it."""
    for worker in report.workers:
        parts = worker.breakdown.parts
        assert len(worker.breakdown.steps) > 2
        np.testing.assert_allclose(sum(parts.values()), worker.breakdown.walls, rtol=0.02)


def check(report, kind, slow, part, count=2):
    """Test that the profile names the slow worker and the reason."""
    assert [w.name for w in report.workers] == [f"worker {n}" for n in range(count)]
    sound(report)
    for worker in report.workers:
        assert "all-reduce" in {t.kind for t in worker.traffic}
        assert "sequential/wide" in {o.layer for o in worker.operations}
    assert (report.rows >= 0).all(1).sum() > 2
    found = report.find_straggler()
    assert (kind, found.worker, found.part) == (kind, slow, part)


def test_two_workers_are_profiled_by_one_call():
    with training("input", 40) as addresses:
        place = stores.memory()
        client.trace(f"grpc://{addresses[0]},{addresses[1]}", place, 1000)
        report = folders.load_report(place)
        check(report, "input", 1, "input")
        assert {w.traffic[0].axes for w in report.workers} == {("replica",)}
        assert any(v.title.endswith(" delays the others") for v in list_findings(report))
        (folder,) = folders.find_profiles(place)
        assert tf.io.gfile.exists(f"{folder}/meshflow.html")

        # One that is not there leaves the others'.
        gone = f"127.0.0.1:{free_ports(1)[0]}"
        place = stores.memory()
        with pytest.raises(tf.errors.UnavailableError, match=f"did not reach {gone}.* is in "):
            client.trace(f"{addresses[0]},{gone}", place, 300)
        report = folders.load_report(place)
        assert [w.name for w in report.workers] == ["worker 0"]
        assert list(report.missing) == [gone]

        # One at a time.
        refused = []

        def ask():
            try:
                client.trace(addresses[0], stores.memory(), 1000)
            except tf.errors.AlreadyExistsError as error:
                refused.append(str(error))

        both = [threading.Thread(target=ask) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert len(refused) == 1 and "Another profile is being taken" in refused[0]

        said = client.monitor(",".join(addresses), 50, 2)
        assert "worker 0" in said and "worker 1" in said and "Program jit_train_step" in said
        with pytest.raises(tf.errors.UnavailableError, match=gone):
            client.monitor(gone, 50)


CAUSES = {
    "python": "callback",
    "input": "input",
    "compute": "compute",
    "recompiling": "compile",
    "communication": "",
}


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slow", [0, 1])
def test_injected_delays_are_found(late_sends, slow):
    """10 ms in one worker: five causes, four traces each, 20 of 20 right."""
    right = []
    for kind, part in CAUSES.items():
        sends = {"LD_PRELOAD": late_sends, "LATE_SENDS": 10_000} if not part else {}
        with training(kind, 10, slow, **sends) as addresses:
            for _ in range(4):
                place = stores.memory()
                client.trace(",".join(addresses), place, 4000 if kind == "recompiling" else 1500)
                report = folders.load_report(place)
                sound(report)
                found, kinds = report.find_straggler(), [v.kind for v in list_findings(report)]
                if part:
                    named = found and (found.worker, found.part) == (slow, part)
                    right.append((kind, bool(named) and "straggler" in kinds, found))
                else:
                    # Both ends of a slow connection wait for it, so no worker can be named.
                    right.append((kind, kinds[0] == kind, kinds))
    assert len(right) == 20 and not [one for one in right if not one[1]]


@pytest.mark.soak
def test_four_workers():
    with training("input", 40, slow=2, count=4) as addresses:
        place = stores.memory()
        client.trace(",".join(addresses), place, 3000)
        check(folders.load_report(place), "input", 2, "input", count=4)


@contextlib.contextmanager
def serving(kind, slow, workers):
    """A training with a parameter server as long as the block; the addresses of servers and workers."""
    first = 20_000 + free_ports(1)[0] % 10_000
    # Workers prefetch; hidden time is no delay.
    delay = "30" if kind == "input" else "10"
    process = subprocess.Popen(
        [sys.executable, str(SERVERS), kind, delay, str(slow), str(workers)],
        env=environment(1, MESHFLOW_PROFILER_PORTS=first),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        ready = (line for line in process.stdout if line == "ready\n")
        assert next(ready) and next(ready)
        yield ",".join(f"127.0.0.1:{first + n}" for n in range(1 + workers))
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [2, 4])
def test_injected_delays_of_parameter_server_workers_are_found(workers):
    """Test the same for workers that do not wait for each other, and for a job without slow
    workers."""
    right = []
    causes = {**CAUSES, "python": "python", "communication": "comm:parameter servers"}
    for number, (kind, part) in enumerate(causes.items()):
        slow = number % workers
        with serving(kind, slow, workers) as addresses:
            for _ in range(4):
                place = stores.memory()
                client.trace(addresses, place, 4000 if kind == "recompiling" else 2000)
                report = folders.load_report(place)
                names = [w.name for w in report.workers]
                assert names == ["ps 0", *(f"worker {n}" for n in range(workers))]
                assert {n for n, _ in report.workers[0].breakdown.steps} == {"exchange"}
                for worker in report.workers[1:]:
                    assert {n for n, _ in worker.breakdown.steps} == {"closure"}
                    assert worker.breakdown.parts["comm:parameter servers"].sum() > 0
                sound(report)
                found = report.find_straggler()
                named = found and (found.worker, found.part) == (1 + slow, part)
                right.append((kind, bool(named), found))
    assert len(right) == 20 and not [one for one in right if not one[1]]
