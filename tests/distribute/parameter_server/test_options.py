"""Test options of closures: staleness, joining and leaving workers, messages, reports."""

import threading
import time

import numpy as np
import pytest

import meshflow as tf
from distribute.launching import free_ports
from meshflow.distribute.parameter_server.coordination.closure_queue import StalenessGate
from meshflow.distribute.parameter_server.transport.gradient_compression import (
    Compressor,
    decompress_gradient,
)
from meshflow.distribute.parameter_server.transport.messages import (
    OptimizerStep,
    Push,
    VariableRows,
)
from meshflow.io.protos import Event
from meshflow.io.records import read_records
from meshflow.profiler import description


def strategy_of(workers=2, servers=1, **options):
    return tf.distribute.ParameterServerStrategy(
        engine="threads", workers=workers, servers=servers, **options
    )


def make_coordinator(strategy):
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def pushing(strategy):
    with strategy.scope():
        w, optimizer = tf.Variable(np.zeros(4, np.float32)), tf.keras.optimizers.SGD(1.0)

    def step(gradient, pause=0.0):
        time.sleep(pause)
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), w)])

    return w, step


# ---- staleness -----------------------------------------------------------------------------


def test_bounded_staleness_synchronizes_workers():
    gate, order = StalenessGate(0), []
    gate.enter(0)
    gate.enter(1)
    gate.leave(0, finished=True)

    def again():
        gate.enter(0)
        order.append("second of 0")

    thread = threading.Thread(target=again)
    thread.start()
    time.sleep(0.05)
    order.append("1 has finished")
    gate.leave(1, finished=True)
    thread.join(10)
    assert order == ["1 has finished", "second of 0"]


def test_idle_worker_does_not_block_others():
    gate = StalenessGate(0)
    for _ in range(5):
        gate.enter(0)
        gate.leave(0, finished=True)
    gate.enter(1)  # starts at the position of the others
    gate.leave(1, finished=True)
    gate.enter(0)


@pytest.mark.parametrize("most", [0, 1, None])
def test_staleness_is_bounded_and_reported(most):
    strategy = strategy_of(workers=3, max_staleness=most)
    w, step = pushing(strategy)
    coordinator = make_coordinator(strategy)
    for i in range(30):
        coordinator.schedule(step, args=([1.0] * 4, 0.002 * (i % 3)))
    coordinator.join()
    told = coordinator.statistics()
    assert told["closures"] == 30
    assert float(w[0]) == -30.0
    if most is not None:
        # Each of the two others may finish this number of closures more, and their current ones.
        assert told["max_staleness"] <= 2 * (2 * most + 1)
    assert told["staleness"] <= told["max_staleness"]


# ---- workers -------------------------------------------------------------------------------


def test_workers_join_and_leave():
    strategy = strategy_of(workers=1)
    w, step = pushing(strategy)
    coordinator = make_coordinator(strategy)
    index = tf.distribute.coordinator.experimental_get_current_worker_index

    def seen():
        step([1.0] * 4, 0.01)
        return index()

    for workers in (1, 3, 2):
        coordinator.resize(workers)
        values = [coordinator.schedule(seen) for _ in range(20)]
        assert set(coordinator.fetch(values)) == set(range(workers))
        assert coordinator.statistics()["workers"] == workers
    assert float(w[0]) == -60.0
    with pytest.raises(ValueError, match="at least 1"):
        coordinator.resize(0)


def test_a_straggler_is_run_by_another_worker_and_counts_once():
    strategy = strategy_of(workers=2, backup_closures=True)
    w, step = pushing(strategy)
    coordinator = make_coordinator(strategy)
    for _ in range(10):
        coordinator.schedule(step, args=([1.0] * 4, 0.01))
    coordinator.join()
    slow, calls, lock = threading.Event(), [], threading.Lock()

    def straggler():
        with lock:
            calls.append(len(calls))
            first = calls == [0]
        if first:
            slow.wait(30)
        step([1.0] * 4)

    coordinator.schedule(straggler)
    coordinator.join()  # while the first worker still waits
    assert calls == [0, 1]
    slow.set()
    coordinator.fetch([coordinator.schedule(step, args=([0.0] * 4, 0.05)) for _ in range(4)])
    assert float(w[0]) == -11.0


# ---- messages ------------------------------------------------------------------------------


def test_half_of_the_bytes_do():
    strategy = strategy_of(compression="bfloat16")
    w, step = pushing(strategy)
    coordinator = make_coordinator(strategy)
    coordinator.schedule(step, args=([1.0, 0.1, -3.0, 1e-3],))
    coordinator.join()
    np.testing.assert_allclose(w.numpy(), [-1.0, -0.1, 3.0, -1e-3], rtol=4e-3)
    assert w.numpy()[1] != np.float32(-0.1)


def test_omitted_gradients_are_sent_later():
    compress = Compressor(0.25)
    gradient, total = np.array([4.0, 3.0, -2.0, 1.0], np.float32), np.zeros(4, np.float32)
    for _ in range(40):
        push = Push(0, steps=[OptimizerStep(1, (7,), (gradient,))])
        compress([push, None])
        sent = decompress_gradient(push.steps[0].gradients[0], (4,), np.float32)
        assert np.count_nonzero(sent) == 1
        total += sent
    np.testing.assert_allclose(total / 40, gradient, atol=0.4)
    rows = VariableRows(np.ones((2, 3), np.float32), np.array([0, 1]))
    push = Push(0, steps=[OptimizerStep(1, (7,), (rows,))])
    compress([push])
    assert push.steps[0].gradients[0] is rows


@pytest.mark.parametrize("wrong", [0, 1.5, "float16", True])
def test_unknown_compressions_are_refused(wrong):
    with pytest.raises(ValueError, match="compression must be"):
        strategy_of(compression=wrong)


# ---- reports -------------------------------------------------------------------------------


def test_schedule_waits_for_room():
    strategy = strategy_of(workers=1, queue_size=2)
    coordinator = make_coordinator(strategy)
    hold = threading.Event()
    for _ in range(3):
        coordinator.schedule(hold.wait)
    more = threading.Thread(target=lambda: coordinator.schedule(lambda: None))
    more.start()
    more.join(0.2)
    assert more.is_alive()
    hold.set()
    more.join(10)
    assert not more.is_alive()
    coordinator.join()


def test_progress_line(capfd):
    strategy = strategy_of(report_every=0.05)
    coordinator = make_coordinator(strategy)
    coordinator.schedule(lambda: time.sleep(0.3))
    coordinator.join()
    strategy.cluster.stop()
    told = capfd.readouterr().err
    assert "steps/s, 2 workers, 0 queued, staleness 0.0 (at most 0), 0 retries" in told
    for _ in range(2):
        coordinator._report.finish()  # as at the end of the program, or of the cluster
    told += capfd.readouterr().err
    assert told.count("1 steps, 0 retries, 0 preemptions, 0 restarts of servers, 0.0 MB sent") == 1


def test_curves_and_profiles_agree(tmp_path):
    strategy = strategy_of(log_dir=tmp_path)
    _, step = pushing(strategy)
    coordinator = make_coordinator(strategy)
    for total in (3, 8):
        for _ in range(total - coordinator.statistics()["closures"]):
            coordinator.schedule(step, args=([1.0] * 4,))
        coordinator.join()
    [path] = tmp_path.iterdir()
    events = [Event.FromString(record) for record in read_records(path)]
    points = {
        (event.step, value.tag): value.simple_value
        for event in events
        for value in event.summary.value
    }
    assert points[3, "parameter_servers/closures"] == 3
    assert points[8, "parameter_servers/closures"] == 8
    assert points[8, "parameter_servers/workers"] == 2
    told = description.describe_process()["tables"]["Parameter servers"]
    assert {f"parameter_servers/{name}" for name in told} == {tag for _, tag in points}
    assert told["closures"] == 8


def test_steps_of_the_coordinator_are_warned_of_once(caplog):
    strategy = strategy_of(workers=2, servers=3)
    with strategy.scope():
        v = tf.Variable(2.0)
    total = strategy.reduce("SUM", strategy.run(lambda: v * 2), axis=None)
    assert float(total) == 4
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    assert strategy._cluster_coordinator is coordinator
    step = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: v + 1), axis=None))
    assert coordinator.schedule(step).fetch() == 3
    told = [r.message for r in caplog.records if "ClusterCoordinator.schedule" in r.message]
    assert len(told) == 1
    strategy = strategy_of()
    strategy.extended._allow_run_without_coordinator = True
    strategy.run(lambda: 0)
    assert len([r for r in caplog.records if "ClusterCoordinator.schedule" in r.message]) == 1
    assert coordinator.strategy.extended.parameter_devices[2] == v.device.replace(
        "task:0", "task:2"
    )


def test_colocation_requires_the_same_strategy():
    strategy = strategy_of()
    refused = pytest.raises(ValueError, match="must only be passed a variable")
    with refused, strategy.scope(), strategy.extended.colocate_vars_with(tf.constant(1.0)):
        pass


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"worker": 1}, "There must be at least one ps"),
        ({"ps": 1}, "There must be at least one worker"),
        ({"ps": 1, "worker": 1, "chief": 2}, "at most one 'chief' job, .* has 2"),
        ({"ps": 1, "worker": 1, "master": 1}, r"Disallowed task type .* got \['master'\]"),
    ],
)
def test_impossible_clusters_are_refused(jobs, message):
    spec = {job: [f"localhost:{i + 1}" for i in range(count)] for job, count in jobs.items()}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec))
    with pytest.raises(ValueError, match=message):
        tf.distribute.ParameterServerStrategy(resolver)


def test_processes_that_do_not_report_are_named():
    ports = free_ports(2)
    spec = {"worker": [f"localhost:{ports[0]}"], "ps": [f"localhost:{ports[1]}"]}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec))
    named = rf"after 0.5 s these have not reported .*: ps 0 \(localhost:{ports[1]}: .*refused"
    with pytest.raises(tf.errors.DeadlineExceededError, match=named):
        tf.distribute.ParameterServerStrategy(resolver, patience=0.5)


@pytest.mark.parametrize("options", [{"max_staleness": -1}, {"queue_size": 0}, {"engine": "boats"}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="ParameterServerStrategy: "):
        tf.distribute.ParameterServerStrategy(**{"engine": "threads", **options})
