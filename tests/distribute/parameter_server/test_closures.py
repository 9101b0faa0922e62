"""Test closures on workers of parameter servers, in one process: reads, writes, results and errors."""

import threading

import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute.parameter_server.cluster.cluster import WorkerLostError


def strategy_of(workers=2, servers=2):
    return tf.distribute.ParameterServerStrategy(engine="threads", workers=workers, servers=servers)


def make_coordinator(strategy):
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def test_results_come_from_workers():
    coordinator = make_coordinator(strategy_of())
    results = [
        coordinator.schedule(tf.function(lambda x: x * x), args=(tf.constant(i),)) for i in range(5)
    ]
    assert [int(v) for v in coordinator.fetch(results)] == [0, 1, 4, 9, 16]
    assert isinstance(results[0].fetch(), np.int32)
    assert isinstance(results[0].get(), tf.Tensor)
    assert coordinator.done()


def test_strategy_has_one_coordinator():
    strategy = strategy_of()
    assert make_coordinator(strategy) is make_coordinator(strategy)
    with pytest.raises(ValueError, match=r"Only `tf.distribute.ParameterServerStrategy`"):
        make_coordinator(tf.distribute.OneDeviceStrategy("CPU:0"))


@pytest.mark.parametrize("compiled", [True, False])
def test_additions_of_all_closures_add_up(compiled):
    strategy = strategy_of(workers=3)
    with strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64)
        total = tf.Variable([0.0, 0.0])
    coordinator = make_coordinator(strategy)

    def step(x):
        counter.assign_add(1)
        total.assign_sub(x)
        total.assign_add([1.0, 0.0])

    step = tf.function(step) if compiled else step
    for i in range(30):
        coordinator.schedule(step, args=(tf.constant([0.0, float(i)]),))
    coordinator.join()
    assert int(counter) == 30
    np.testing.assert_array_equal(total.numpy(), [30.0, -435.0])


def test_closure_reads_its_own_and_earlier_writes():
    strategy = strategy_of(workers=2)
    with strategy.scope():
        v = tf.Variable(1.0)
    coordinator = make_coordinator(strategy)

    @tf.function
    def step():
        before = v.read_value()
        v.assign_add(10.0)
        return before, v.read_value()

    for i in range(6):
        v.assign(float(i))
        assert [float(x) for x in coordinator.schedule(step).fetch()] == [i, i + 10.0]


def test_assignments_set_and_later_additions_count():
    strategy = strategy_of(workers=1)
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])
    coordinator = make_coordinator(strategy)

    @tf.function
    def step():
        v.assign_add([100.0, 100.0])
        v.assign([5.0, 6.0])
        v.assign_add([1.0, 1.0])

    coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_array_equal(v.numpy(), [6.0, 7.0])


def test_writes_in_branches_loops_and_inner_functions():
    strategy = strategy_of(workers=1)
    with strategy.scope():
        v, w = tf.Variable(0.0), tf.Variable(7.0)
    coordinator = make_coordinator(strategy)

    @tf.function
    def inner():
        v.assign_add(1.0)

    @tf.function
    def step(n, sets):
        for _ in tf.range(n):
            v.assign_add(2.0)
        inner()
        inner()
        if sets:
            w.assign(v)

    coordinator.schedule(step, args=(tf.constant(3), tf.constant(False)))
    coordinator.join()
    assert (float(v), float(w)) == (8.0, 7.0)
    coordinator.schedule(step, args=(tf.constant(0), tf.constant(True)))
    coordinator.join()
    assert (float(v), float(w)) == (10.0, 10.0)


def test_rows_are_scattered():
    strategy = strategy_of(workers=1)
    with strategy.scope():
        table = tf.Variable(np.zeros((4, 2), np.float32))
    coordinator = make_coordinator(strategy)

    @tf.function
    def step():
        table.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1])))
        table.scatter_sub(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3])))

    coordinator.schedule(step)
    coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_array_equal(table.numpy()[:, 0], [0, 4, 0, -2])


def test_per_worker_values():
    coordinator = make_coordinator(strategy_of(workers=2))
    values = tf.distribute.coordinator.PerWorkerValues([10, 20])
    index = tf.distribute.coordinator.experimental_get_current_worker_index

    def step(x):
        return x == 10 * (index() + 1)

    assert all(coordinator.fetch([coordinator.schedule(step, args=(values,)) for _ in range(6)]))
    with pytest.raises(RuntimeError, match="worker index"):
        index()


def test_datasets_are_made_by_workers():
    strategy = strategy_of(workers=2)
    coordinator = make_coordinator(strategy)
    made = []

    @tf.function
    def dataset_fn():
        def of(context):
            made.append((context.input_pipeline_id, threading.get_ident()))
            return tf.data.Dataset.range(100).shard(
                context.num_input_pipelines, context.input_pipeline_id
            )

        return strategy.distribute_datasets_from_function(of)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    @tf.function
    def step(iterator):
        return next(iterator)

    seen = coordinator.fetch([coordinator.schedule(step, args=(iterator,)) for _ in range(20)])
    assert len(set(map(int, seen))) == 20
    assert len({t for _, t in made}) == len(made) <= 2
    with pytest.raises(NotImplementedError, match="schedule"):
        next(iterator)


# ---- errors --------------------------------------------------------------------------------


def fails(message="oh no"):
    raise ZeroDivisionError(message)


def test_error_reaches_join_and_fetch_and_cancels_pending_closures():
    coordinator = make_coordinator(strategy_of(workers=1))
    hold = threading.Event()
    coordinator.schedule(hold.wait)
    failed = coordinator.schedule(fails)
    waiting = [coordinator.schedule(lambda: 1) for _ in range(5)]
    hold.set()
    with pytest.raises(ZeroDivisionError, match="oh no") as raised:
        coordinator.join()
    assert "fails" in [entry.name for entry in raised.traceback]
    with pytest.raises(ZeroDivisionError):
        failed.fetch()
    for value in waiting:
        with pytest.raises(tf.errors.CancelledError, match="another one has failed"):
            value.fetch()
    # It is raised once; afterwards closures run again.
    coordinator.join()
    assert coordinator.fetch(coordinator.schedule(lambda: 3)) == 3


@pytest.mark.parametrize("ask", ["schedule", "done"])
def test_error_is_raised_by_the_next_call(ask):
    coordinator = make_coordinator(strategy_of(workers=1))
    failed = coordinator.schedule(fails)
    with pytest.raises(ZeroDivisionError):
        failed.fetch()
    with pytest.raises(ZeroDivisionError):
        coordinator.schedule(fails) if ask == "schedule" else coordinator.done()


def test_failed_closure_writes_nothing():
    strategy = strategy_of(workers=1)
    with strategy.scope():
        v = tf.Variable(1.0)

    def step():
        v.assign_add(1.0)
        fails()

    coordinator = make_coordinator(strategy)
    coordinator.schedule(step)
    with pytest.raises(ZeroDivisionError):
        coordinator.join()
    assert float(v) == 1.0


def test_pending_results_are_reported():
    coordinator = make_coordinator(strategy_of(workers=1))
    hold = threading.Event()
    coordinator.schedule(hold.wait)
    value = coordinator.schedule(lambda: 1)
    with pytest.raises(ValueError, match="call fetch"):
        tf.add(value, 1)
    for use in (
        lambda v: v + 1,
        lambda v: 1 - v,
        lambda v: v[0],
        list,
        len,
        float,
        lambda v: v < 2,
    ):
        with pytest.raises(ValueError, match="call fetch"):
            use(value)
    with pytest.raises(ValueError, match="RemoteValue` used as an input"):
        coordinator.schedule(lambda x: x, args=(value,))
    with pytest.raises(ValueError, match="RemoteValue` used as an input"):
        coordinator.schedule(lambda x: x, kwargs={"x": {"deep": [value]}})
    with pytest.raises(TypeError, match="only accepts"):
        coordinator.schedule(3)
    with pytest.raises(TypeError, match="`args` must be a tuple"):
        coordinator.schedule(lambda x: x, args=tf.constant([1, 2]))
    with pytest.raises(ValueError, match=r"Unexpected dataset type.*got 5"):
        coordinator.create_per_worker_dataset(5)
    assert "not ready" in repr(value)
    hold.set()
    assert coordinator.fetch(value) == 1
    coordinator.join()


def test_composite_arguments_and_results():
    coordinator = make_coordinator(strategy_of())
    rows = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 4]), tf.constant([5, 3]))

    @tf.function
    def doubled(rows):
        return tf.IndexedSlices(rows.values * 2.0, rows.indices, rows.dense_shape), b"text"

    result = coordinator.schedule(doubled, args=(rows,))
    found, text = result.fetch()
    assert isinstance(found, tf.IndexedSlices) and text == b"text"
    np.testing.assert_array_equal(tf.convert_to_tensor(found)[4], [2.0, 2.0, 2.0])
    assert result.get()[1].dtype == tf.string
    sparse = tf.sparse.from_dense([[0, 1], [2, 0]])
    back = coordinator.schedule(lambda s: (s, tf.sparse.to_dense(s)), args=(sparse,)).fetch()
    np.testing.assert_array_equal(tf.sparse.to_dense(back[0]), back[1])


def test_error_names_variables_local_to_the_coordinator():
    coordinator = make_coordinator(strategy_of())
    v = tf.Variable(1.0, name="stranger")
    with pytest.raises(tf.errors.FailedPreconditionError, match="stranger:0, which was not made"):
        coordinator.schedule(tf.function(lambda: v + 1.0)).fetch()
    with pytest.raises(tf.errors.FailedPreconditionError):
        coordinator.join()


# ---- once ----------------------------------------------------------------------------------


class Dying:
    """Simulate a cluster some of whose workers die, before or after a closure runs.

    Args:
        cluster: the cluster.
        deaths: the event of each call in turn; later calls have none.
    """

    def __init__(self, cluster, deaths):
        self.run_whole, self.deaths, self.died = cluster.run, list(deaths), 0
        self.lock = threading.Lock()
        cluster.run = self.run

    def run(self, number, call):
        with self.lock:
            death = self.deaths.pop(0) if self.deaths else None
        if death == "before":
            raise WorkerLostError
        outcome = self.run_whole(number, call)
        if death == "after":
            raise WorkerLostError
        return outcome


def test_a_closure_is_done_once_whenever_its_worker_dies(seed=0):
    strategy = strategy_of(workers=3, servers=2)
    with strategy.scope():
        counter, other = tf.Variable(0), tf.Variable(0.0)
        w = tf.Variable([0.0])
        optimizer = tf.keras.optimizers.SGD(1.0)
    coordinator = make_coordinator(strategy)
    random = np.random.default_rng(seed)
    Dying(strategy.cluster, random.choice(["before", "after", ""], 60, p=[0.25, 0.35, 0.4]))

    @tf.function
    def step():
        counter.assign_add(1)
        other.assign_add(1.0)
        optimizer.apply_gradients([(tf.constant([1.0]), w)])

    for _ in range(40):
        coordinator.schedule(step)
    coordinator.join()
    assert (int(counter), float(other), float(w[0]), int(optimizer.iterations)) == (
        40,
        40.0,
        -40.0,
        40,
    )


def test_servers_forget_closures_that_are_over():
    strategy = strategy_of(workers=2, servers=1)
    with strategy.scope():
        counter = tf.Variable(0)
    coordinator = make_coordinator(strategy)

    @tf.function
    def step():
        counter.assign_add(1)

    for _ in range(200):
        coordinator.schedule(step)
    coordinator.join()
    assert int(counter) == 200
    coordinator.fetch(coordinator.schedule(step))
    assert len(strategy.cluster.servers[0]._attempts._done) < 10


class Unhashable:
    __hash__ = None

    def __call__(self):
        return 3


def test_closures_that_touch_no_variables_are_no_matter_of_servers(monkeypatch):
    strategy = strategy_of(workers=1, servers=1)
    with strategy.scope():
        total = tf.Variable(1.0)
    coordinator = make_coordinator(strategy)
    server, asked = strategy.cluster.servers[0], []
    exchange = server.exchange
    monkeypatch.setattr(server, "exchange", lambda *a: asked.append(a[0]) or exchange(*a))
    empty, read = tf.function(lambda: tf.constant(2)), tf.function(lambda: total + 1.0)

    def run(function):
        asked.clear()
        return float(coordinator.fetch(coordinator.schedule(function))), len(asked)

    assert run(empty) == (2, 1)  # the first pull
    assert run(empty) == (2, 0)
    server.write(total.key, np.float32(5))
    # Somebody else has changed it since the last pull: who reads sees it, and pulls for the next one.
    assert run(read)[0] == 6
    server.write(total.key, np.float32(8))
    assert [run(empty)[0], run(empty), run(read)[0]] == [2, (2, 0), 9]
    assert [run(Unhashable())[0], run(Unhashable())[0]] == [3, 3]


# ---- variables -----------------------------------------------------------------------------


def test_first_closure_builds_the_model():
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.hidden(x))

    strategy = strategy_of(workers=2)
    with strategy.scope():
        model, optimizer = Model(), tf.keras.optimizers.SGD(0.1)
    coordinator = make_coordinator(strategy)

    @tf.function
    def step(x):
        def train(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - 1.0) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return strategy.run(train, args=(x,))

    losses = coordinator.fetch(
        [coordinator.schedule(step, args=(tf.ones([2, 3]),)) for _ in range(12)]
    )
    assert min(losses) < 0.5 * max(losses) and len(model.weights) == 4
    assert all(v.device.startswith("/job:ps/") for v in model.weights)
    assert int(optimizer.iterations) == 12


def test_device_of_a_hosted_variable():
    strategy = strategy_of(servers=3)
    with strategy.scope():
        with tf.device("/job:ps/task:2/device:CPU:0"):
            a, b = tf.Variable(1.0), tf.Variable(2.0)
        with tf.device("/job:ps/task:1"):
            c = tf.Variable(3.0)
        with (
            tf.device("/job:ps/task:3"),
            pytest.raises(ValueError, match="server 3, and there are 3"),
        ):
            tf.Variable(4.0)
        d = tf.Variable(5.0)
    assert [v.servers for v in (a, b, c, d)] == [(2,), (2,), (1,), (0,)]
