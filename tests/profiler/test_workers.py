"""Profiles of real processes that train together, each with a profiler's server."""

import contextlib
import json
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
from meshflow.profiler.verdicts import verdicts

client = tf.profiler.experimental.client
WORKER = Path(__file__).parent / "training_worker.py"


@contextlib.contextmanager
def training(kind, delay, slow=1, count=2):
    """Workers that train as long as the block, one of them slow; their servers' addresses."""
    ports = free_ports(2 * count)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports[:count]]}
    processes = []
    try:
        for number in range(count):
            task = {"cluster": cluster, "task": {"type": "worker", "index": number}}
            own = kind if number == slow else "none"
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKER), str(ports[count + number]), own, str(delay)],
                    env=environment(1, TF_CONFIG=json.dumps(task)),
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


def check(report, kind, slow, part, count=2):
    """The profile says which worker is slow, and by what."""
    assert [w.name for w in report.workers] == [f"worker {n}" for n in range(count)]
    for worker in report.workers:
        parts = worker.breakdown.parts
        np.testing.assert_allclose(sum(parts.values()), worker.breakdown.walls, rtol=0.02)
        assert "all-reduce" in {t.kind for t in worker.traffic}
        assert "sequential/wide" in {o.layer for o in worker.operations}
    assert (report.rows >= 0).all(1).sum() > 2
    found = report.straggler()
    assert (kind, found.worker, found.part) == (kind, slow, part)


def test_two_workers_are_profiled_by_one_call():
    with training("input", 40) as addresses:
        place = stores.memory()
        client.trace(f"grpc://{addresses[0]},{addresses[1]}", place, 1000)
        report = folders.load(place)
        check(report, "input", 1, "input")
        assert {w.traffic[0].axes for w in report.workers} == {("replica",)}
        assert "waited for" in {v.title.partition(" is ")[2] for v in verdicts(report)}
        (folder,) = folders.profiles(place)
        assert tf.io.gfile.exists(f"{folder}/meshflow.html")

        # One that is not there leaves the others'.
        gone = f"127.0.0.1:{free_ports(1)[0]}"
        place = stores.memory()
        with pytest.raises(tf.errors.UnavailableError, match=f"did not reach {gone}.* is in "):
            client.trace(f"{addresses[0]},{gone}", place, 300)
        report = folders.load(place)
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


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("python", "callback"),
        ("input", "input"),
        ("compute", "compute"),
        ("recompiling", "compile"),
    ],
)
@pytest.mark.parametrize("slow", [0, 1])
def test_the_slow_worker_and_the_cause(kind, part, slow):
    with training(kind, 10, slow) as addresses:
        for _ in range(5):
            place = stores.memory()
            client.trace(",".join(addresses), place, 5000 if kind == "recompiling" else 1500)
            check(folders.load(place), kind, slow, part)


@pytest.mark.soak
def test_four_workers():
    with training("input", 40, slow=2, count=4) as addresses:
        place = stores.memory()
        client.trace(",".join(addresses), place, 3000)
        check(folders.load(place), "input", 2, "input", count=4)


SERVERS = """
import meshflow as tf
strategy = tf.distribute.ParameterServerStrategy(engine="processes", workers=2, servers=1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, name="wide"), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
data = tf.data.Dataset.from_tensors((tf.ones([32, 8]), tf.ones([32, 1]))).repeat()

class Ready(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("ready", flush=True)

model.fit(data, steps_per_epoch=20, epochs=10**6, verbose=0, callbacks=[Ready()])
"""


@pytest.mark.soak
def test_servers_and_workers_of_a_parameter_server_s_cluster(tmp_path):
    first = 20_000 + free_ports(1)[0] % 10_000
    process = subprocess.Popen(
        [sys.executable, "-c", SERVERS],
        env=environment(1, MESHFLOW_PROFILER_PORTS=first),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        ready = (line for line in process.stdout if line == "ready\n")
        assert next(ready) and next(ready)
        addresses = ",".join(f"127.0.0.1:{first + n}" for n in range(3))
        client.trace(addresses, tmp_path, 1500)
    finally:
        process.terminate()
        process.communicate()
    report = folders.load(tmp_path)
    assert [w.name for w in report.workers] == ["ps 0", "worker 0", "worker 1"]
    names = [{name for name, _ in w.breakdown.steps} for w in report.workers]
    assert names == [{"exchange"}, {"closure"}, {"closure"}]
    for worker in report.workers[1:]:
        assert worker.breakdown.parts["comm:parameter servers"].sum() > 0
    for worker in report.workers:
        parts = worker.breakdown.parts
        np.testing.assert_allclose(sum(parts.values()), worker.breakdown.walls, rtol=0.02)
