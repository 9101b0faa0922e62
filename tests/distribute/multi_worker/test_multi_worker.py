"""`MultiWorkerMirroredStrategy` with real processes: 2 workers of 2 devices each."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import meshflow as tf
from distribute.launching import WORKERS, environment, finish, free_ports, start
from distribute.workers import training

pytestmark = pytest.mark.long
FITS = ["fit", "fit_transformer", "fit_many_steps", "fit_dataset"]
LOOPS = ["loop", "loop_from_function"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return the observations of two workers."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "0.txt").write_text("1\n2\n3\n4\n")
    (folder / "1.txt").write_text("10\n20\n")
    addresses = [f"127.0.0.1:{p}" for p in free_ports(2)]
    script = WORKERS / "training.py"
    processes = [start(script, folder, task=i, addresses=addresses) for i in (1, 0)]
    written = finish(processes)
    assert all(p.returncode == 0 for p in processes), "\n".join(written)
    return [dict(np.load(folder / f"{i}.npz")) for i in range(2)]


def part(found, name):
    return {k.removeprefix(f"{name}/"): v for k, v in found.items() if k.startswith(f"{name}/")}


def assert_same(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_workers_form_one_mesh(seen):
    for number, found in enumerate(part(w, "about") for w in seen):
        assert found["replicas"] == 4 and found["chief"] == (number == 0)
        assert list(found["devices"]) == [
            f"/job:worker/replica:0/task:{number}/device:CPU:{i}" for i in range(2)
        ]


@pytest.fixture(scope="module")
def one_device():
    """Return results of one device by name of the program."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    return {
        "fit": training.keras_results(contextlib.nullcontext),
        "fit_transformer": training.transformer_results(contextlib.nullcontext),
        "fit_many_steps": training.small_results(contextlib.nullcontext, steps=2),
        "fit_dataset": training.small_results(contextlib.nullcontext, as_dataset=True),
        "loop": training.custom_loop(strategy, training.make_dataset(strategy)),
        "loop_from_function": training.custom_loop(strategy, training.from_function(strategy)),
    }


@pytest.mark.parametrize("what", FITS + LOOPS)
def test_results_equal_one_device(seen, one_device, what):
    for found in seen:
        assert_same(part(found, what), one_device[what])


def test_workers_have_the_same_weights_bit_for_bit(seen):
    for name, value in seen[0].items():
        if name.endswith(("kernel", "predict", "loss", "losses")):
            assert value.tobytes() == seen[1][name].tobytes(), name


def test_collectives_and_values(seen):
    for number, found in enumerate(part(w, "values") for w in seen):
        assert found["own"].tolist() == [2 * number, 2 * number + 1]
        assert found["mean"].tolist() == [1.5, 1.5]
        assert found["gathered"].tolist() == found["made"].tolist() == [0, 1, 2, 3]
        assert found["sum"] == found["made_sum"] == 6 and found["total"] == 8
        assert str(found["printed"]).startswith("MirroredVariable:{")


def test_random_initial_values_are_those_of_worker_0(seen):
    first, second = (w["values/random"] for w in seen)
    np.testing.assert_array_equal(first, second)


def test_auto_shard_off_reads_all_data_on_each_worker(seen):
    # Worker 0 has 0..7, worker 1 has 100..111 in batches of 8 and 4; each batch serves two steps.
    expected = [6 + 406, 22 + 422, 108 + 109, 110 + 111]
    for found in seen:
        assert found["off/sums"].tolist() == expected
        assert found["off/mae"] == found["off/mae_of_distributed"] == 1.0


def test_files_are_divided_between_workers(seen):
    # Half of worker 0's batch with half of worker 1's, twice.
    for found in seen:
        assert found["files/sums"].tolist() == [1 + 2 + 10, 3 + 4 + 20]


def test_strategy_without_tf_config_is_local():
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=5)
    )
    assert strategy.num_replicas_in_sync == len(tf.config.list_logical_devices("CPU"))
    assert strategy.extended.should_checkpoint
    batches = list(strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(8)))
    found = strategy.run(lambda v: tf.reduce_sum(v), args=(batches[0],))
    assert int(strategy.reduce("sum", found, axis=None)) == 28
    older = tf.distribute.experimental.MultiWorkerMirroredStrategy(
        tf.distribute.experimental.CollectiveCommunication.RING
    )
    assert older.num_replicas_in_sync == strategy.num_replicas_in_sync
    with pytest.raises(ValueError, match="communication_options must be"):
        tf.distribute.MultiWorkerMirroredStrategy(communication_options="NCCL")


def test_evaluators_are_by_themselves():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}, task_type="evaluator", task_id=0
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    assert strategy.num_replicas_in_sync == len(tf.config.list_logical_devices("CPU"))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        {"worker": ["a:1", "b:1"]}, task_type="worker", task_id=2
    )
    with pytest.raises(ValueError, match="task worker:2, which is not one of the cluster's"):
        tf.distribute.MultiWorkerMirroredStrategy(resolver)


def test_worker_with_a_killed_peer(tmp_path):
    addresses = [f"127.0.0.1:{p}" for p in free_ports(2)]
    processes = [
        start(
            WORKERS / "surviving.py", tmp_path, "kill@4@1", task=i, addresses=addresses, devices=1
        )
        for i in (0, 1)
    ]
    survivor, _ = finish(processes)
    assert processes[0].returncode == 1
    assert "UnavailableError: Worker 0 of 2 has lost another worker during a collective" in survivor


def test_cluster_after_the_first_op_is_too_late():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        {"worker": ["a:1", "b:1"]}, task_type="worker", task_id=0
    )
    tf.ones([1])
    with pytest.raises(RuntimeError, match="must be configured at program startup"):
        tf.distribute.MultiWorkerMirroredStrategy(resolver)


# Joins as several workers, in processes that are forked when everything is imported.
JOIN = """
import json, os, sys, traceback
import meshflow as tf
tf.distribute.MultiWorkerMirroredStrategy
processes = []
for number, environment in enumerate(json.loads(sys.argv[1])):
    process = os.fork()
    if not process:
        os.dup2(os.open(f"{number}.txt", os.O_CREAT | os.O_WRONLY), 2)
        os.environ.update(environment)
        try:
            tf.distribute.MultiWorkerMirroredStrategy()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    processes.append(process)
print([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes])
"""


def test_errors_of_joining(tmp_path):
    a, b, c, d = (f"127.0.0.1:{p}" for p in free_ports(4))

    def worker(index, addresses, **extra):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        return {"TF_CONFIG": json.dumps(task), **{k: str(v) for k, v in extra.items()}}

    # Worker 0 names a worker that never connects, also to the connected workers.
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        waited = {"MESHFLOW_JOIN_TIMEOUT": 3}
        jobs = [
            *(worker(i, [a, "127.0.0.1:1", "10.0.0.9:7"], **waited) for i in (0, 1)),
            worker(0, [b, c], **waited),
            worker(1, [b, c, "127.0.0.1:1"]),
            worker(0, [busy, "127.0.0.1:1"]),
            worker(1, [d, "127.0.0.1:1"], MESHFLOW_JOIN_TIMEOUT=2),
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", JOIN, json.dumps(jobs)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=240)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert said == f"{[1] * 6}\n"
    found = [(tmp_path / f"{n}.txt").read_text() for n in range(6)]
    for text in found[:2]:
        assert "Waited 3 s for worker:2 (10.0.0.9:7) to join" in text
    for text in found[2:4]:
        assert "was told of a cluster of 3 workers, worker:0 of 2" in text
    assert f"Port {busy.split(':')[1]}, where worker:0 must listen" in found[4]
    assert f"worker:1 waited 2 s for worker:0 at {d}: nothing answers" in found[5]
