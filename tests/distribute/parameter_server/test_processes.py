"""Test servers and workers in separate processes: state that survives kills."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import meshflow as tf
from helpers import rounds
from meshflow.distribute.parameter_server.variables.hosted_variable import place_on_servers


def start_cluster(workers=2, servers=2, silence=3.0):
    strategy = tf.distribute.ParameterServerStrategy(
        engine="processes", workers=workers, servers=servers
    )
    strategy.cluster._max_silence = silence
    return strategy


@pytest.fixture(scope="module")
def strategy():
    made = start_cluster()
    yield made
    processes = made.cluster._launcher.processes.values()
    made.cluster.stop()
    assert all(p.poll() is not None for p in processes)


@pytest.fixture
def coordinator(strategy):
    made = tf.distribute.coordinator.ClusterCoordinator(strategy)
    yield made
    # Wait until killed processes have been replaced for the next test.
    made.join()


def pid(strategy, kind, number):
    return strategy.cluster._launcher.processes[kind, number].pid


def counting(strategy):
    with strategy.scope():
        counter = tf.Variable(0)
        w = tf.Variable(np.zeros(1000, np.float32))
        optimizer = tf.keras.optimizers.SGD(1.0, momentum=0.5)

    @tf.function
    def add(x):
        counter.assign_add(1)
        optimizer.apply_gradients([(x, w)])
        return tf.reduce_sum(x)

    def step(x, pause=0.0):
        time.sleep(pause)
        return add(x)

    return counter, w, optimizer, step


def test_closures_run_in_other_processes(strategy, coordinator):
    pids = coordinator.fetch([coordinator.schedule(os.getpid) for _ in range(4)])
    assert os.getpid() not in pids
    index = tf.distribute.coordinator.experimental_get_current_worker_index
    seen = coordinator.fetch([coordinator.schedule(lambda: index()) for _ in range(8)])
    assert set(seen) <= {0, 1}


def test_training_equals_local_training(strategy, coordinator):
    counter, w, optimizer, step = counting(strategy)
    for i in range(10):
        coordinator.schedule(step, args=(tf.fill([1000], float(i)),))
        coordinator.join()
    v, own = tf.Variable(np.zeros(1000, np.float32)), tf.keras.optimizers.SGD(1.0, momentum=0.5)
    for i in range(10):
        own.apply_gradients([(tf.fill([1000], float(i)), v)])
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-6)
    assert (int(counter), int(optimizer.iterations)) == (10, 10)
    np.testing.assert_allclose(
        optimizer.get_slot(w, "momentum").numpy(), own.get_slot(v, "momentum").numpy(), rtol=1e-6
    )


def test_rows_of_tables_are_pulled_as_rows(strategy, coordinator):
    with strategy.scope():
        table = tf.Variable(np.zeros((20000, 16), np.float32))
        optimizer = tf.keras.optimizers.Adagrad(0.1)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids) + 1.0)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return tf.reduce_sum(table)

    ids = tf.constant(np.arange(32))
    for _ in range(4):
        coordinator.schedule(step, args=(ids,))
        coordinator.join()
    server = strategy.cluster.servers[table.servers[0]]
    before = server.traffic
    sums = [coordinator.schedule(step, args=(ids,)) for _ in range(20)]
    last = coordinator.fetch(sums)[-1]
    assert server.traffic[1] - before[1] < 100_000
    own = tf.Variable(np.zeros((20000, 16), np.float32))
    rule = tf.keras.optimizers.Adagrad(0.1)
    for _ in range(24):
        rule.apply_gradients([(tf.IndexedSlices(tf.ones([32, 16]), ids, [20000, 16]), own)])
    np.testing.assert_allclose(table.numpy(), own.numpy(), rtol=1e-5)
    assert last < 0


def test_reads_of_large_values_are_consistent_during_writes(strategy, coordinator):
    with strategy.scope():
        v = tf.Variable(np.zeros((2000, 160), np.float32))
        optimizer = tf.keras.optimizers.SGD(1.0, momentum=0.5)

    def step(rows=None):
        value = tf.convert_to_tensor(v)
        if rows is None:
            gradient = 0 * value - 1
        else:
            gradient = tf.IndexedSlices(tf.ones([2, 160]), rows, [2000, 160])
        strategy.run(lambda: optimizer.apply_gradients([(gradient, v)]))
        rest = value[2:]
        return tf.reduce_min(rest), tf.reduce_max(rest)

    whole, by_rows = tf.function(step), tf.function(step)
    rows = tf.constant([0, 1])
    own, rule = tf.Variable(v.numpy()), tf.keras.optimizers.SGD(1.0, momentum=0.5)
    for _ in range(3):
        seen = [coordinator.schedule(whole) for _ in range(6)]
        coordinator.join()
        seen += [coordinator.schedule(by_rows, args=(rows,)) for _ in range(3)]
        for least, most in coordinator.fetch(seen):
            assert least == most
        for _ in range(6):
            rule.apply_gradients([(-tf.ones([2000, 160]), own)])
        for _ in range(3):
            rule.apply_gradients([(tf.IndexedSlices(tf.ones([2, 160]), rows, [2000, 160]), own)])
    np.testing.assert_array_equal(v.numpy(), own.numpy())
    np.testing.assert_array_equal(
        optimizer.get_slot(v, "momentum").numpy(), rule.get_slot(own, "momentum").numpy()
    )


def test_datasets_are_made_in_the_workers(strategy, coordinator):
    def dataset():
        return tf.data.Dataset.range(5).map(lambda x: x * 2).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    @tf.function
    def step(iterator):
        return next(iterator)

    seen = coordinator.fetch([coordinator.schedule(step, args=(iterator,)) for _ in range(12)])
    assert set(map(int, seen)) <= {0, 2, 4, 6, 8}


def test_errors_have_the_traceback_of_the_worker(strategy, coordinator):
    def inner_function_of_closure():
        raise KeyError("not here")

    coordinator.schedule(lambda: inner_function_of_closure())
    with pytest.raises(KeyError, match="not here") as raised:
        coordinator.join()
    assert "inner_function_of_closure" in str(raised.value.__cause__)


def test_unpicklable_objects_are_named(strategy, coordinator):
    lock = threading.Lock()
    coordinator.schedule(lambda: lock.locked())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'lock'.*cannot be sent to a worker"):
        coordinator.join()
    stranger = tf.Variable(1.0, name="stranger")
    coordinator.schedule(lambda: stranger + 1.0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="stranger:0"):
        coordinator.join()


class Trainer:
    """An object with more than its closures use."""

    def __init__(self, strategy, coordinator):
        self.coordinator, self.strategy = coordinator, strategy
        self.lock, self.events = threading.Lock(), [threading.Event()]
        self.steps = tf.Variable(7, name="of_the_coordinator")
        self.checkpoint = tf.train.Checkpoint(steps=self.steps)
        with strategy.scope():
            self.total = tf.Variable(0)
        self.dataset = coordinator.create_per_worker_dataset(self.numbers)
        self.iterator = iter(self.dataset)
        self.last = coordinator.schedule(self.add, args=(self.iterator,))

    def numbers(self):
        return tf.data.Dataset.from_tensors(3).repeat()

    @tf.function
    def add(self, iterator):
        self.total.assign_add(next(iterator))
        return self.total.read_value()


def test_missing_references_fail_only_on_use(strategy, coordinator):
    trainer = Trainer(strategy, coordinator)
    assert trainer.last.fetch() == 3
    coordinator.schedule(trainer.add, args=(trainer.iterator,))
    coordinator.join()
    assert int(trainer.total) == 6 and int(trainer.steps) == 7
    missed = {
        "trainer.lock', which <lambda> refers to": lambda: trainer.lock.acquire(),
        r"trainer.events\[0\]', which": lambda: trainer.events[0].set(),
        "workers cannot schedule closures": lambda: trainer.coordinator.schedule(len),
        "fetch": lambda: trainer.last.fetch(),
        "pass iter": lambda: iter(trainer.dataset),
        r"schedule.fn, args=.iterator": lambda: next(trainer.iterator),
    }
    for message, closure in missed.items():
        coordinator.schedule(closure)
        with pytest.raises((tf.errors.InvalidArgumentError, NotImplementedError), match=message):
            coordinator.join()
    for use in (lambda: trainer.steps + 1, lambda: trainer.checkpoint.steps.assign(0)):
        coordinator.schedule(use)
        with pytest.raises(tf.errors.FailedPreconditionError, match="of_the_coordinator:0"):
            coordinator.join()


class Refusal(Exception):
    """Define an exception whose constructor does not accept the arguments of `Exception`."""

    def __init__(self, what, count):
        super().__init__(f"{what} is refused {count} times")
        self.count = count


def test_exceptions_preserve_their_class(strategy, coordinator):
    def refuse():
        raise Refusal("all", 3)

    coordinator.schedule(refuse)
    with pytest.raises(Refusal, match="all is refused 3 times") as raised:
        coordinator.join()
    assert raised.value.count == 3


def test_bad_results_arguments_and_datasets_are_named(strategy, coordinator):
    lock = threading.Lock()
    with strategy.scope():
        total = tf.Variable(0)

    def counts_and_returns_a_lock():
        total.assign_add(1)
        return {"a": [1, threading.Lock()]}

    def taking(dataset_fn):
        iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
        return lambda: coordinator.schedule(tf.function(next), args=(iterator,))

    def raises():
        raise LookupError("no such table")

    def preprocessed(x):
        raise ArithmeticError("of the preprocessing")

    bad = [
        (lambda: coordinator.schedule(counts_and_returns_a_lock), "the result of the closure", None),
        (lambda: coordinator.schedule(len, args=(3, [lock])), r"the arguments\['args'\]\[1\]\[0\]", None),
        (taking(lambda: 3), "must return a dataset, .* got 3", TypeError),
        (taking(raises), "no such table", LookupError),
        (taking(lambda: tf.data.Dataset.range(2).map(preprocessed)), "of the prep", ArithmeticError),
        (lambda: coordinator.schedule(tf.function(lambda x: x + 1)), "missing", TypeError),
    ]  # fmt: skip
    for schedule, message, kind in bad:
        schedule()
        with pytest.raises(kind or tf.errors.InvalidArgumentError, match=message):
            coordinator.join()
    # Calls without an answer were not executed.
    assert int(total) == 0


def test_killed_workers_are_replaced_without_double_updates(strategy, coordinator):
    counter, _w, optimizer, step = counting(strategy)
    x = tf.ones([1000])
    coordinator.schedule(step, args=(x,))
    coordinator.join()
    for _ in range(30):
        coordinator.schedule(step, args=(x, 0.05))
    random = np.random.default_rng(0)
    for _ in range(rounds(2, 20)):
        time.sleep(0.3)
        with contextlib.suppress(ProcessLookupError):  # killed before, and not missed yet
            os.kill(strategy.cluster.get_pid("worker", int(random.integers(2))), signal.SIGKILL)
    coordinator.join()
    assert (int(counter), int(optimizer.iterations)) == (31, 31)
    assert strategy.cluster.counters["preemptions"] >= 1


def test_killed_server_restores_all_updates(strategy, coordinator):
    counter, w, optimizer, step = counting(strategy)
    x = tf.ones([1000])
    total = 0
    for turn in range(rounds(2, 10)):
        for _ in range(20):
            coordinator.schedule(step, args=(x, 0.01))
        total += 20
        time.sleep(0.15 * (turn + 1))
        os.kill(pid(strategy, "ps", 0), signal.SIGKILL)
        coordinator.join()
        assert (int(counter), int(optimizer.iterations)) == (total, total)
    v, own = tf.Variable(np.zeros(1000, np.float32)), tf.keras.optimizers.SGD(1.0, momentum=0.5)
    for _ in range(total):
        own.apply_gradients([(x, v)])
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-5)


def test_interrupted_read_does_not_affect_the_next_read(strategy, monkeypatch):
    with strategy.scope(), place_on_servers([0]):
        ones, twos = (tf.Variable(np.full(3, n, np.float32)) for n in (1, 2))

    def interrupt():
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(strategy.cluster.servers[0].connection, "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ones.numpy()
    np.testing.assert_array_equal(twos.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(ones.numpy(), [1, 1, 1])


def test_errors_before_a_closure_is_sent_are_those_of_the_closure(
    strategy, coordinator, monkeypatch
):
    counter, _w, _optimizer, step = counting(strategy)

    def fail(process):
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(strategy.cluster, "_take_connection", fail)
    coordinator.schedule(step, args=(tf.ones([1000]),))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        coordinator.join()
    coordinator.schedule(step, args=(tf.ones([1000]),))
    coordinator.join()
    assert int(counter) == 1


def test_a_damaged_journal_ends_the_job():
    made = start_cluster(workers=1, servers=1)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(made)
    _counter, w, _optimizer, step = counting(made)
    for _ in range(5):
        coordinator.schedule(step, args=(tf.ones([1000]),))
    coordinator.join()
    log = made.cluster._launcher._folder.get_server_folder(0) / "log.1"
    data = bytearray(log.read_bytes())
    data[-2000] ^= 1
    log.write_bytes(data)
    os.kill(pid(made, "ps", 0), signal.SIGKILL)
    try:
        for _ in range(5):
            coordinator.schedule(step, args=(tf.ones([1000]),))
        with pytest.raises(tf.errors.DataLossError, match=f"{log} is damaged at offset"):
            coordinator.join()
        with pytest.raises(tf.errors.DataLossError, match=f"{log} is damaged at offset"):
            w.numpy()
    finally:
        made.cluster.stop()


def test_stalled_worker_is_replaced(strategy, coordinator):
    counter, _w, _optimizer, step = counting(strategy)
    coordinator.schedule(step, args=(tf.ones([1000]),))
    coordinator.join()
    stopped = pid(strategy, "worker", 1)
    os.kill(stopped, signal.SIGSTOP)
    for _ in range(10):
        coordinator.schedule(step, args=(tf.ones([1000]),))
    coordinator.join()
    assert int(counter) == 11
    assert strategy.cluster.get_pid("worker", 1) != stopped


def test_a_worker_that_is_killed_between_two_servers(strategy, coordinator, tmp_path):
    with strategy.scope():
        with place_on_servers([0]):
            a = tf.Variable(0)
        with place_on_servers([1]):
            b = tf.Variable(0)
    retries = coordinator.statistics()["retries"]
    once = str(tmp_path / "killed")

    def step():
        import gc

        from meshflow.distribute.parameter_server.worker.server_client import ServerClient

        def ask(server, push, wish, floor, first=ServerClient._exchange_one):
            found = first(server, push, wish, floor)
            if push is not None:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        if not os.path.exists(once):
            open(once, "w").close()
            ServerClient._exchange_one = staticmethod(ask)
            for exchanges in [o for o in gc.get_objects() if type(o) is ServerClient]:
                exchanges._map = map  # one server after the other
        a.assign(os.getpid())
        b.assign(os.getpid())
        return os.getpid()

    kept = coordinator.fetch(coordinator.schedule(step))
    assert coordinator.statistics()["retries"] == retries + 1
    # Both parts are of the worker that died after the first server had done its own.
    assert int(a) == int(b) != kept
    assert int(a) != 0


X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
LABELS = {"a": (X[:, 0] > 0).astype("int32"), "b": (np.arange(64) % 3).astype("int32")}
WEIGHTS = {"a": {0: 1.0, 1: 3.0}, "b": {0: 0.0, 1: 2.0, 2: 1.0}}


def make_two_outputs(rate):
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input((3,))
    outputs = [
        tf.keras.layers.Dense(len(WEIGHTS[name]), "softmax", name=name)(inputs) for name in WEIGHTS
    ]
    model = tf.keras.Model(inputs, outputs)
    model.compile(tf.keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    return model


@pytest.mark.parametrize(
    "class_weight",
    [WEIGHTS, list(WEIGHTS.values()), {"b": WEIGHTS["b"]}, {"a": None, "b": WEIGHTS["b"]}],
)
def test_class_weights_of_several_outputs(strategy, class_weight):
    entries = (
        dict(zip(LABELS, class_weight, strict=True))
        if isinstance(class_weight, list)
        else class_weight
    )
    expected = {}
    model = make_two_outputs(0.0)
    for (name, labels), probabilities in zip(LABELS.items(), model.predict(X), strict=True):
        losses = -np.log(probabilities[np.arange(64), labels])
        weights = entries.get(name) or dict.fromkeys(range(3), 1.0)
        expected[f"{name}_loss"] = np.mean(losses * np.vectorize(weights.get)(labels))
    expected["loss"] = sum(expected.values())
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(64).repeat()
    with strategy.scope():
        model = make_two_outputs(0.0)
    history = model.fit(data, steps_per_epoch=4, verbose=0, class_weight=class_weight).history
    assert history.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(history[name], [value], rtol=1e-5)
    with strategy.scope():
        model = make_two_outputs(0.1)
    weights = model.get_layer("a").get_weights()
    model.fit(data, steps_per_epoch=4, verbose=0, class_weight={"a": {0: 0.0, 1: 0.0}})
    for before, after in zip(weights, model.get_layer("a").get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert (model.get_layer("b").get_weights()[1] != 0).any()
