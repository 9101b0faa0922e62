"""Test closures that continue with trained values: several steps at a time, and values after a
step."""

import numpy as np
import pytest

import meshflow as tf

OPTIMIZERS = {
    "SGD": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "averages": lambda: tf.keras.optimizers.AdamW(
        0.05, weight_decay=0.1, clipnorm=1.0, use_ema=True, ema_overwrite_frequency=2
    ),
    "gathered": lambda: tf.keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "legacy": lambda: tf.keras.optimizers.legacy.RMSprop(0.1, momentum=0.5),
}


def strategy_of(workers=1, servers=2, engine="threads"):
    return tf.distribute.ParameterServerStrategy(engine=engine, workers=workers, servers=servers)


def run_closure(strategy, step, times=1):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for _ in range(times):
        result = coordinator.schedule(step)
        coordinator.join()
    return result.fetch()


def make_step(optimizer):
    """Variables, a dense and one of rows, and a step that trains them."""
    w, table = tf.Variable([1.0, 2.0]), tf.Variable(np.ones((4, 3), np.float32))

    def step(i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w) + tf.reduce_sum(tf.gather(table, tf.stack([i, 2])) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, table]), [w, table], strict=True))
        return loss

    return w, table, step


def in_python(step):
    def several():
        for i in range(3):
            loss = step(i)
        return loss

    return several


def in_a_loop(step):
    def several():
        loss = tf.constant(0.0)
        for i in tf.range(3):
            loss = step(i)
        return loss

    return several


def by_a_function(step):
    return in_python(tf.function(lambda i: step(tf.constant(i))))


def check(strategy, make, several):
    with strategy.scope():
        optimizer = make()
        w, table, step = make_step(optimizer)
    loss = run_closure(strategy, tf.function(several(step)), 2)
    own = make()
    v, rows, step = make_step(own)
    expected = [step(tf.constant(i % 3)) for i in range(6)][-1]
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-4)
    np.testing.assert_allclose(table.numpy(), rows.numpy(), rtol=1e-4)
    assert int(optimizer.iterations) == int(own.iterations)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_several_steps_in_one_closure_equal_local_training(name):
    check(strategy_of(), OPTIMIZERS[name], in_python)


@pytest.mark.parametrize("several", [in_a_loop, by_a_function])
def test_steps_in_loops_and_of_inner_functions(several):
    check(strategy_of(), OPTIMIZERS["Adam"], several)


@pytest.mark.soak
def test_steps_in_other_processes():
    strategy = strategy_of(engine="processes")
    for several in (in_python, in_a_loop):
        check(strategy, OPTIMIZERS["Adam"], several)
    strategy.cluster.stop()


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_steps_of_several_workers_are_each_taken_by_the_rule(rule):
    strategy = strategy_of(workers=3)
    make = {"SGD": OPTIMIZERS["SGD"], "Adam": lambda: tf.keras.optimizers.Adam(0.1)}[rule]
    with strategy.scope():
        w, optimizer = tf.Variable([0.0, 1.0]), make()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    gradient = tf.constant([1.0, -2.0])

    @tf.function
    def step():
        for _ in range(4):
            optimizer.apply_gradients([(gradient, w)])
        return w.read_value()

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    own, v = make(), tf.Variable([0.0, 1.0])
    for _ in range(40):
        own.apply_gradients([(gradient, v)])
    # Slots too: the gradients are the same in any order.
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-5)
    assert int(optimizer.iterations) == 40


def test_steps_in_loops_of_several_workers_add_up(caplog):
    strategy = strategy_of(workers=3)
    with strategy.scope():
        w, optimizer = tf.Variable([0.0]), tf.keras.optimizers.SGD(1.0, momentum=0.0)
        v, other = tf.Variable([0.0]), tf.keras.optimizers.SGD(1.0, momentum=0.5)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        for _ in tf.range(4):
            optimizer.apply_gradients([(tf.constant([1.0]), w)])

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    assert (float(w[0]), int(optimizer.iterations)) == (-40.0, 40)
    assert not caplog.records

    @tf.function
    def with_momentum():
        for _ in tf.range(4):
            other.apply_gradients([(tf.constant([1.0]), v)])

    coordinator.schedule(with_momentum)
    coordinator.join()
    assert "with_momentum takes many steps" in caplog.text


def test_closure_with_more_steps_than_one_message():
    strategy = strategy_of()
    with strategy.scope():
        w, optimizer = tf.Variable([0.0]), tf.keras.optimizers.SGD(1.0)

    def step():
        for _ in range(70):
            optimizer.apply_gradients([(tf.constant([1.0]), w)])

    run_closure(strategy, step)
    assert (float(w[0]), int(optimizer.iterations)) == (-70.0, 70)


def test_closure_reads_its_trained_values():
    strategy = strategy_of()
    with strategy.scope():
        w, other = tf.Variable([1.0, 2.0]), tf.Variable(5.0)
        optimizer = tf.keras.optimizers.SGD(0.5)

    @tf.function
    def step():
        before = optimizer.iterations.read_value()
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), w)])
        return before, optimizer.iterations.read_value(), other + 1.0

    @tf.function
    def clipped():
        optimizer.apply_gradients([(tf.constant([1.0, -8.0]), w)])
        w.assign(tf.clip_by_value(w, -1.0, 1.0))
        return w.read_value()

    assert run_closure(strategy, step) == (0, 1, 6.0)
    np.testing.assert_array_equal(w.numpy(), [0.5, 1.5])
    np.testing.assert_array_equal(run_closure(strategy, clipped), [0.0, 1.0])
    np.testing.assert_array_equal(w.numpy(), [0.0, 1.0])
    assert int(optimizer.iterations) == 2


def test_reads_are_local_and_state_is_on_servers():
    strategy = strategy_of(workers=3, servers=1)
    with strategy.scope():
        table, optimizer = (
            tf.Variable(np.zeros((6, 2), np.float32)),
            tf.keras.optimizers.Adagrad(0.1),
        )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    sent = []
    for server in strategy.cluster.servers:

        def exchange(push, *args, _first=server.exchange):
            sent.append(push)
            return _first(push, *args)

        server.exchange = exchange

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        before = loss
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return before, tf.reduce_sum(tf.gather(table, ids))

    ids = tf.constant([1, 4])
    pairs = coordinator.fetch([coordinator.schedule(step, args=(ids,)) for _ in range(30)])
    assert all(after < before for before, after in pairs)
    # No step of any worker is lost, in slots either, and rows are pushed as rows.
    own, rule = tf.Variable(np.zeros((6, 2), np.float32)), tf.keras.optimizers.Adagrad(0.1)
    for _ in range(30):
        rule.apply_gradients([(tf.IndexedSlices(tf.ones([2, 2]), ids, [6, 2]), own)])
    np.testing.assert_allclose(table.numpy(), own.numpy(), rtol=1e-5)
    pushes = [push for push in sent if push is not None]
    assert len(pushes) == 30
    assert not any(push.sets or push.adds for push in pushes)


def test_models_that_train_in_turn():
    def losses(strategy):
        if strategy is not None:
            with strategy.scope():
                return losses_of(lambda step: run_closure(strategy, tf.function(step), 3))
        return losses_of(lambda step: [step() for _ in range(3)][-1])

    def losses_of(run):
        a, b = tf.Variable(1.0), tf.Variable(2.0)
        first, second = tf.keras.optimizers.Adam(0.1), tf.keras.optimizers.SGD(0.1)

        def step():
            with tf.GradientTape() as tape:
                loss = a * b
            first.apply_gradients([(tape.gradient(loss, a), a)])
            with tf.GradientTape() as tape:
                other = -a * b
            second.apply_gradients([(tape.gradient(other, b), b)])
            return loss, other

        return [float(x) for x in run(step)]

    np.testing.assert_allclose(losses(strategy_of()), losses(None), rtol=1e-5)
