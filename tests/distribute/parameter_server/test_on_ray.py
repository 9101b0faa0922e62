"""Servers and workers as actors of a Ray cluster."""

import os
import signal
import time

import numpy as np
import pytest

import meshflow as tf

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def strategy():
    made = tf.distribute.experimental.ParameterServerStrategy(workers=2, servers=1)
    yield made
    pids = [made.cluster.get_pid(*w) for w in (("worker", 0), ("worker", 1), ("ps", 0))]
    made.cluster.stop()
    assert not ray.is_initialized()
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{p}") for p in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{p}") for p in pids)


def counting(strategy):
    with strategy.scope():
        counter = tf.Variable(0)
        w = tf.Variable(np.zeros(10, np.float32))
        optimizer = tf.keras.optimizers.Adam(0.1)

    @tf.function
    def add(x):
        counter.assign_add(1)
        optimizer.apply_gradients([(x, w)])

    def step(x, pause=0.0):
        time.sleep(pause)
        return add(x)

    return counter, optimizer, step


def test_closures_run_in_actors(strategy):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    pids = coordinator.fetch([coordinator.schedule(os.getpid) for _ in range(6)])
    assert set(pids) <= {strategy.cluster.get_pid("worker", n) for n in range(2)}
    counter, optimizer, step = counting(strategy)
    for _ in range(20):
        coordinator.schedule(step, args=(tf.ones([10]),))
    coordinator.join()
    assert (int(counter), int(optimizer.iterations)) == (20, 20)
    assert strategy.cluster.address.startswith("127.0.0.1:")


@pytest.mark.parametrize("killed", [("worker", 0), ("ps", 0)])
def test_killed_actors_are_replaced_without_double_updates(strategy, killed):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    counter, optimizer, step = counting(strategy)
    for _ in range(20):
        coordinator.schedule(step, args=(tf.ones([10]), 0.05))
    time.sleep(0.3)
    before = strategy.cluster.get_pid(*killed)
    os.kill(before, signal.SIGKILL)
    coordinator.join()
    assert (int(counter), int(optimizer.iterations)) == (20, 20)
    assert strategy.cluster.get_pid(*killed) != before
