"""Test training on parameter servers, in one process: behaviour of optimizers and metrics."""

import numpy as np
import pytest

import meshflow as tf


def strategy_of(workers=1, servers=2):
    return tf.distribute.ParameterServerStrategy(engine="threads", workers=workers, servers=servers)


def regression(seed=0, batches=12):
    random = np.random.default_rng(seed)
    x = random.normal(size=(batches, 16, 4)).astype("float32")
    return x, x.sum(-1, keepdims=True)


OPTIMIZERS = {
    "SGD": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    ),
    "legacy": lambda: tf.keras.optimizers.legacy.RMSprop(0.01, clipnorm=0.1),
    "AdamW": lambda: tf.keras.optimizers.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3
    ),
    "global norm": lambda: tf.keras.optimizers.Adagrad(0.1, global_clipnorm=0.5),
    "own": lambda: Own("own", learning_rate=0.1),
}


class Own(tf.keras.optimizers.Optimizer):
    def build(self, var_list):
        super().build(var_list)
        self.seen = [self.add_variable_from_reference(v, "seen") for v in var_list]

    def update_step(self, gradient, variable):
        seen = self.get_slot(variable, "seen")
        seen.assign_add(tf.abs(gradient))
        variable.assign_sub(self.learning_rate * gradient / (1.0 + seen))


def model_of():
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential(
        [
            tf.keras.Input((4,)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(1, kernel_constraint=tf.keras.constraints.MaxNorm(1.0)),
        ]
    )


def stepping(model, optimizer, metric):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        metric.update_state(loss)
        return loss

    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_equals_local_training(name):
    model, optimizer, metric = model_of(), OPTIMIZERS[name](), tf.keras.metrics.Mean()
    step, (x, y) = stepping(model, optimizer, metric), regression()
    losses = [float(step(tf.constant(a), tf.constant(b))) for a, b in zip(x, y, strict=True)]

    strategy = strategy_of()
    with strategy.scope():
        hosted, own, mean = model_of(), OPTIMIZERS[name](), tf.keras.metrics.Mean()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = stepping(hosted, own, mean)
    results = [
        coordinator.schedule(step, args=(tf.constant(a), tf.constant(b)))
        for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(coordinator.fetch(results), losses, rtol=1e-4)
    for v, w in zip(model.variables, hosted.variables, strict=True):
        np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-3, atol=1e-5)
    for v, w in zip(optimizer.variables, own.variables, strict=True):
        np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-3, atol=1e-5)
    assert float(mean.result()) == pytest.approx(float(metric.result()), rel=1e-4)
    assert int(own.iterations) == len(x)


@pytest.mark.parametrize(
    "make", [tf.keras.optimizers.Adagrad, tf.keras.optimizers.SGD, tf.keras.optimizers.Adam]
)
def test_gradients_of_rows_train_embeddings(make):
    def tables():
        return tf.Variable(np.ones((50, 3), np.float32)), make(0.1)

    def stepping(table, optimizer):
        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids) ** 2)
            gradient = tape.gradient(loss, table)
            assert isinstance(gradient, tf.IndexedSlices)
            optimizer.apply_gradients([(gradient, table)])
            return loss

        return step

    random = np.random.default_rng(0)
    batches = [tf.constant(random.integers(0, 50, n)) for n in (4, 4, 7, 4, 7)]
    table, optimizer = tables()
    expected = [float(stepping(table, optimizer)(ids)) for ids in batches]
    strategy = strategy_of()
    with strategy.scope():
        hosted, own = tables()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = stepping(hosted, own)
    results = [coordinator.schedule(step, args=(ids,)) for ids in batches]
    np.testing.assert_allclose(coordinator.fetch(results), expected, rtol=1e-5)
    np.testing.assert_allclose(hosted.numpy(), table.numpy(), rtol=1e-5)


def test_the_learning_rate_and_slots_are_reached_from_the_coordinator():
    strategy = strategy_of(servers=3)
    with strategy.scope():
        a, b = tf.Variable([1.0]), tf.Variable([1.0, 1.0])
        optimizer = tf.keras.optimizers.SGD(1.0, momentum=0.5)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.constant([1.0]), a), (tf.constant([2.0, 2.0]), b)])

    coordinator.schedule(step)
    coordinator.join()
    optimizer.learning_rate = 0.0
    optimizer.get_slot(a, "momentum").assign([8.0])
    coordinator.schedule(step)
    coordinator.join()
    assert float(a[0]) == 4.0
    np.testing.assert_array_equal(b.numpy(), [-2.0, -2.0])
    assert optimizer.get_slot(a, "momentum").servers == a.servers != b.servers
    assert int(optimizer.iterations) == 2


def test_two_optimizers_train_in_one_closure():
    strategy = strategy_of()
    with strategy.scope():
        a, b = tf.Variable(1.0), tf.Variable(1.0)
        first, second = tf.keras.optimizers.SGD(1.0), tf.keras.optimizers.SGD(0.5)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step(also):
        first.apply_gradients([(tf.constant(1.0), a)])
        if also:
            second.apply_gradients([(tf.constant(1.0), b)])

    for also in (True, False):
        coordinator.schedule(step, args=(tf.constant(also),))
    coordinator.join()
    assert (float(a), float(b)) == (-1.0, 0.5)
    assert (int(first.iterations), int(second.iterations)) == (2, 1)


# ---- errors --------------------------------------------------------------------------------


def failing(step, strategy):
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    coordinator.schedule(step)
    coordinator.join()


def test_variables_from_outside_the_scope_are_named():
    strategy = strategy_of()
    v = tf.Variable(1.0, name="stranger")
    with strategy.scope():
        optimizer = tf.keras.optimizers.SGD(1.0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="stranger:0"):
        failing(lambda: optimizer.apply_gradients([(tf.constant(1.0), v)]), strategy)


def test_an_optimizer_may_have_been_looked_at_before():
    strategy = strategy_of()
    with strategy.scope():
        w = tf.Variable(1.0)
    outside = tf.keras.optimizers.SGD(0.5)
    outside.iterations.assign(7)
    assert float(outside.learning_rate) == 0.5
    failing(lambda: outside.apply_gradients([(tf.constant(1.0), w)]), strategy)
    assert (float(w), int(outside.iterations)) == (0.5, 8)
    assert [v.numpy() for v in outside.variables] == [8]
    outside.learning_rate = 0.25
    failing(lambda: outside.apply_gradients([(tf.constant(1.0), w)]), strategy)
    assert float(w) == 0.25


def test_error_names_objects_that_cannot_be_hosted():
    strategy = strategy_of()
    with strategy.scope(), pytest.raises(ValueError, match=r"words:0.*string"):
        tf.Variable(["a"], name="words")
    with strategy.scope(), pytest.raises(ValueError, match="grows:0"):
        tf.Variable([1.0], shape=tf.TensorShape([None]), name="grows")
    with pytest.raises(ValueError, match="at least 1"):
        strategy_of(workers=0)


@pytest.mark.parametrize("clipping", [{}, {"clipnorm": 0.5}])
def test_servers_gather_the_gradients_of_several_steps(clipping):
    def trained(make, run):
        dense, table = make(np.ones(3, np.float32)), make(np.ones((6, 2), np.float32))
        optimizer = tf.keras.optimizers.Adam(0.1, gradient_accumulation_steps=3, **clipping)

        @tf.function
        def step(x):
            rows = tf.IndexedSlices(tf.fill([2, 2], x), tf.constant([1, 4]), [6, 2])
            optimizer.apply_gradients([(tf.fill([3], x), dense), (rows, table)])

        seen = []
        for i in range(7):
            run(step, tf.constant(float(i + 1)))
            seen.append((dense.numpy(), table.numpy()))
        return seen, int(optimizer.iterations)

    strategy = strategy_of()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def run(step, x):
        coordinator.schedule(step, args=(x,))
        coordinator.join()

    with strategy.scope():
        hosted, steps = trained(tf.Variable, run)
    own, own_steps = trained(tf.Variable, lambda step, x: step(x))
    assert steps == own_steps == 2
    for (dense, table), (expected, rows) in zip(hosted, own, strict=True):
        np.testing.assert_allclose(dense, expected, rtol=1e-6)
        np.testing.assert_allclose(table, rows, rtol=1e-6)
    np.testing.assert_array_equal(hosted[1][0], np.ones(3))
    assert hosted[2][0][0] < 1


def test_global_norm_clipping_uses_all_servers():
    strategy = strategy_of()
    with strategy.scope():
        variables = [tf.Variable(1.0), tf.Variable(1.0)]
        optimizer = tf.keras.optimizers.SGD(1.0, gradient_accumulation_steps=2, global_clipnorm=1.0)
    pairs = [(tf.constant(1.0), v) for v in variables]
    with pytest.raises(NotImplementedError, match="global_clipnorm"):
        failing(lambda: optimizer.apply_gradients(pairs), strategy)
