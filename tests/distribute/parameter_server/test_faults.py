"""Faults for a minute, with real processes: training completes, each closure counts once, no process stays."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute.parameter_server.variables.hosted_variable import place_on_servers

pytestmark = pytest.mark.soak
KILLS = int(os.environ.get("MESHFLOW_FAULTS", 200))


def counting(strategy):
    """A counter on each of two servers, and a step that adds to both."""
    with strategy.scope():
        with place_on_servers([0]):
            counter, w = tf.Variable(0), tf.Variable(np.zeros(100_000, np.float32))
        with place_on_servers([1]):
            other = tf.Variable(0)
        optimizer = tf.keras.optimizers.SGD(1.0)

    @tf.function
    def add(x):
        counter.assign_add(1)
        other.assign_add(1)
        optimizer.apply_gradients([(x, w)])

    def step(x):
        time.sleep(0.02)
        add(x)

    def check(total):
        assert (int(counter), int(other), int(optimizer.iterations)) == (total, total, total)
        np.testing.assert_array_equal(w.numpy(), np.full(100_000, -total, np.float32))

    return step, check


def segments(pid):
    """How many segments of shared memory a process has."""
    with open(f"/proc/{pid}/maps") as maps:
        return sum("memfd:meshflow" in line for line in maps)


def have_exited(pids):
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{p}") for p in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(os.path.exists(f"/proc/{p}") for p in pids)


def train_for(seconds, coordinator, step, disturb, every):
    """Return the number of scheduled closures while an event happens at a fixed interval in
    seconds."""
    x, total, until = tf.ones([100_000]), 0, time.monotonic() + seconds
    due = time.monotonic() + every
    while time.monotonic() < until:
        if len(coordinator._queue) < 50:
            coordinator.schedule(step, args=(x,))
            total += 1
        else:
            time.sleep(0.01)
        if time.monotonic() > due:
            disturb()
            due += every
    coordinator.join()
    return total


@pytest.fixture
def strategy():
    made = tf.distribute.ParameterServerStrategy(engine="processes", workers=3, servers=2)
    pids = [made.cluster.get_pid("ps", n) for n in range(2)]
    yield made
    pids += [made.cluster.get_pid("worker", n) for n in range(3)]
    made.cluster.stop()
    assert have_exited(pids)


def alive(strategy):
    lives = strategy.cluster._processes
    return [
        life.pid for (kind, _), life in list(lives.items()) if kind == "worker" and not life.is_lost
    ]


def test_a_random_worker_is_killed_every_two_seconds(strategy):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step, check = counting(strategy)
    random = np.random.default_rng(0)

    def disturb():
        pids = alive(strategy)
        if pids:
            os.kill(int(random.choice(pids)), signal.SIGKILL)

    names = set(os.listdir("/dev/shm"))
    total = train_for(60, coordinator, step, disturb, 2.0)
    check(total)
    told = coordinator.statistics()
    print(f"{total} closures, {told}")
    assert told["preemptions"] >= 3  # starting a new one takes longer than 2 s
    # Memory shared with processes that are gone is gone too.
    assert set(os.listdir("/dev/shm")) <= names
    assert segments(strategy.cluster.get_pid("ps", 0)) < 60


def test_all_workers_are_killed_at_once(strategy):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step, check = counting(strategy)

    def disturb():
        for pid in alive(strategy):
            os.kill(pid, signal.SIGKILL)

    total = train_for(40, coordinator, step, disturb, 15.0)
    check(total)
    print(f"{total} closures, {coordinator.statistics()}")
    assert coordinator.statistics()["preemptions"] >= 3


@pytest.mark.timeout(3600)
def test_workers_and_servers_are_killed_at_random_moments(strategy):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step, check = counting(strategy)
    random, x, total, killed = (
        np.random.default_rng(1),
        tf.ones([100_000]),
        0,
        {"worker": 0, "ps": 0},
    )
    due = time.monotonic()
    while min(killed.values()) < KILLS:
        if len(coordinator._queue) < 20:
            coordinator.schedule(step, args=(x,))
            total += 1
        else:
            time.sleep(0.01)
        if time.monotonic() < due:
            continue
        due = time.monotonic() + random.exponential(1.0)
        processes = strategy.cluster._processes.items()
        ready = [(kind, p.pid) for (kind, _), p in processes if p.address and not p.is_lost]
        if ready:
            # There are more workers than servers.
            kinds = sorted({kind for kind, _ in ready})
            kind = kinds[random.integers(len(kinds))]
            pid = int(random.choice([pid for k, pid in ready if k == kind]))
            with contextlib.suppress(ProcessLookupError):  # killed before, and not missed yet
                os.kill(pid, signal.SIGKILL)
                killed[kind] += 1
        if random.random() < 0.05:
            coordinator.join()
            check(total)
    coordinator.join()
    check(total)
    print(f"{total} closures, {killed}, {coordinator.statistics()}")


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_cluster_of_ray_that_dies_is_an_error(name):
    pytest.importorskip("ray")
    script = Path(__file__).parent / "scripts" / "job_on_dying_ray.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(script), name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("unavailable: The Ray cluster at") for line in lines), done
    assert lines[-1] == "stopped"


def parent(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def test_a_node_of_ray_is_removed():
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes = [cluster.add_node(num_cpus=1, resources={"place": 1}) for _ in range(3)]
    ray.init(address=cluster.address)
    strategy = tf.distribute.ParameterServerStrategy(
        workers=2, servers=2, resources_per_worker={"place": 1}, patience=300.0
    )
    removed = []
    try:
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        step, check = counting(strategy)

        def disturb():
            if not removed:
                removed.append(strategy.cluster.get_pid("worker", 0))
                raylets = {n.all_processes["raylet"][0].process.pid: n for n in nodes}
                cluster.remove_node(raylets[parent(removed[0])], allow_graceful=False)

        total = train_for(40, coordinator, step, disturb, 15.0)
        check(total)
        told = coordinator.statistics()
        print(f"{total} closures, {told}")
        assert told["preemptions"] >= 1
        pids = [strategy.cluster.get_pid(k, n) for k in ("worker", "ps") for n in range(2)]
        assert removed[0] not in pids
    finally:
        strategy.cluster.stop()
        ray.shutdown()
        cluster.shutdown()
    assert have_exited([*removed, *pids])
