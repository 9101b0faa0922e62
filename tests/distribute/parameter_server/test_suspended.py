"""Test processes that are suspended: others replace them, and they change nothing when they
continue.

Here the launcher cannot kill them, as on an unreachable machine.
"""

import functools
import os
import signal
import time

import numpy as np
import pytest

import meshflow as tf
from helpers import rounds
from meshflow.distribute.parameter_server import strategy as strategies
from meshflow.distribute.parameter_server.cluster.local_processes import LocalProcesses
from meshflow.distribute.parameter_server.cluster.remote_cluster import RemoteCluster
from meshflow.distribute.parameter_server.variables.hosted_variable import place_on_servers


class Unreachable(LocalProcesses):
    """Manage processes of which the suspended ones survive."""

    def __init__(self, *args):
        super().__init__(*args)
        self.suspended, self.suspends = [], []

    def launch(self, kind, index, *args):
        super().launch(kind, index, *args)
        if self.suspends == [kind]:
            self.suspend(self.suspends.pop(), index)

    def suspend(self, kind, index):
        process = self.processes[kind, index]
        os.kill(process.pid, signal.SIGSTOP)
        self.suspended.append(process)

    def kill(self, kind, index):
        if self.processes[kind, index] not in self.suspended:
            super().kill(kind, index)

    def stop(self):
        for process in self.suspended:
            process.kill()
        super().stop()


@pytest.fixture(scope="module")
def strategy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "RemoteCluster", functools.partial(RemoteCluster, silence=2.0))
        patch.setattr(strategies, "LocalProcesses", Unreachable)
        made = tf.distribute.ParameterServerStrategy(engine="processes", workers=2, servers=2)
        made.cluster._patience = 12.0
        yield made
        made.cluster.stop()


def counting(strategy):
    with strategy.scope():
        counters = []
        for server in range(2):
            with place_on_servers([server]):
                counters.append(tf.Variable(0))
        w = tf.Variable(np.zeros(1000, np.float32))
        optimizer = tf.keras.optimizers.SGD(1.0)

    @tf.function
    def add(x):
        for counter in counters:
            counter.assign_add(1)
        optimizer.apply_gradients([(x, w)])

    def step(x, pause):
        time.sleep(pause)
        return add(x)

    def counts():
        return {int(v) for v in (*counters, optimizer.iterations, -w[0])}

    return step, counts


@pytest.mark.parametrize("kind", ["worker", "ps"])
@pytest.mark.parametrize(
    "starts",
    [
        pytest.param(True, id="before its first report"),
        pytest.param(False, id="at work", marks=pytest.mark.soak),
    ],
)
def test_suspended_processes_do_not_block_the_job(strategy, kind, starts):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step, counts = counting(strategy)
    launcher, random = strategy.cluster._launcher, np.random.default_rng(0)
    # A worker that connects to a suspended server notices it after 20 s.
    total = 8
    for _ in range(total):
        coordinator.schedule(step, args=(tf.ones([1000]), 0.1))
    coordinator.join()
    for _ in range(rounds(1, 10)):
        for _ in range(30):
            coordinator.schedule(step, args=(tf.ones([1000]), 0.02))
        total += 30
        time.sleep(random.uniform(0.0, 0.3))
        index = int(random.integers(2))
        before = strategy.cluster.get_pid(kind, index)
        if starts:
            launcher.suspends.append(kind)
            os.kill(before, signal.SIGKILL)
        else:
            launcher.suspend(kind, index)
        coordinator.join()
        assert counts() == {total}
        while strategy.cluster.get_pid(kind, index) == before:
            time.sleep(0.05)  # Others have run all closures before the loss was noticed.
        assert strategy.cluster.get_pid(kind, index) not in [p.pid for p in launcher.suspended]
        assert len(launcher.suspended) == 1
        # It continues, with a closure or a call that others have finished, and ends.
        os.kill(launcher.suspended[0].pid, signal.SIGCONT)
        assert launcher.suspended[0].wait(20) == 0
        launcher.suspended.clear()
        assert counts() == {total}
