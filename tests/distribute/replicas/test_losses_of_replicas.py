"""Test losses and metrics in `Strategy.run`: shared values, and values of each replica."""

import numpy as np
import pytest

import meshflow as tf


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


X = np.arange(8.0).reshape(4, 2).astype("float32")
Y = np.ones((4, 1), "float32")


def build(loss="mse"):
    layer = tf.keras.layers.Dense(
        1, kernel_initializer="ones", kernel_regularizer="l2", input_shape=(2,)
    )
    model = tf.keras.Sequential([layer])
    model.compile(tf.keras.optimizers.SGD(0.01), loss, metrics=["mae"])
    return model


def batches(strategy):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    return strategy.experimental_distribute_dataset(dataset)


@pytest.mark.parametrize("loss", ["mse", tf.keras.losses.MeanSquaredError(reduction="sum")])
def test_custom_step_on_replicas_equals_the_global_batch(strategy, loss):
    plain = build(loss)
    plain.train_on_batch(X, Y)
    with strategy.scope():
        model = build(loss)
    for batch in batches(strategy):
        logs = strategy.run(tf.function(lambda b: model.train_step(b)), args=(batch,))
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    # A metric's result is that of all replicas, also inside.
    assert len({float(v) for v in logs["mae"].values}) == 1
    wanted = {m.name: float(m.result()) for m in plain.metrics}
    assert {m.name: float(m.result()) for m in model.metrics} == pytest.approx(wanted, rel=1e-5)


def test_mean_over_the_examples_of_one_replica_is_refused(strategy):
    means = tf.keras.losses.MeanSquaredError()
    sums = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.SUM)
    with pytest.raises(ValueError, match=r"Reduction\.SUM` or `tf\.keras\.losses\.Reduction\.NONE"):
        strategy.run(lambda: means([[1.0]], [[2.0]]))
    assert float(strategy.run(lambda: sums([[1.0]], [[2.0]])).values[0]) == 1.0
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    assert float(one.run(lambda: means([[1.0]], [[2.0]]))) == 1.0


@pytest.mark.parametrize("compiled", [False, True])
def test_results_and_states_of_metrics_in_replicas(strategy, compiled):
    class Largest(tf.keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.total = self.add_weight("total", initializer="zeros")

        def update_state(self, value):
            self.total.assign_add(tf.cast(tf.reduce_sum(value), tf.float32))

        def result(self):
            if self.total > 4.0:
                return tf.constant(1.0)
            return tf.constant(0.0)

    with strategy.scope():
        mean, largest = tf.keras.metrics.Mean(), Largest()

    def step(batch):
        mean.update_state(batch)
        largest.update_state(batch)
        return mean.result(), mean.total.value(), largest.result()

    run = tf.function(lambda b: strategy.run(step, args=(b,)))
    run = run if compiled else (lambda b: strategy.run(tf.function(step), args=(b,)))
    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    result, total, over = run(batch)
    assert [float(r) for r in result.values] == [1.5, 1.5]
    assert [float(t) for t in total.values] == [1.0, 5.0]
    assert [float(o) for o in over.values] == [1.0, 1.0]


def test_calls_allowed_only_in_cross_replica_context(strategy):
    for call in (
        lambda: strategy.run(lambda: 1),
        lambda: strategy.reduce("SUM", tf.constant(1.0), axis=None),
        lambda: strategy.gather(tf.constant([1.0]), axis=0),
    ):
        with pytest.raises(RuntimeError, match="cross-replica context"):
            strategy.run(call)
    merged = strategy.run(
        lambda: tf.distribute.get_replica_context().merge_call(
            lambda s, v: s.reduce("SUM", v, axis=None), (tf.constant(2.0),)
        )
    )
    assert float(merged.values[1]) == 4.0
    with pytest.raises(TypeError, match="callable"):
        strategy.run(3)


ALGORITHMS = [
    tf.distribute.ReductionToOneDevice(accumulation_fn=tf.add_n),
    tf.distribute.HierarchicalCopyAllReduce(num_packs=2),
    tf.distribute.NcclAllReduce(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_manual_reductions(strategy, algorithm):
    value = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant(c.replica_id_in_sync_group + 1.0)
    )
    assert float(algorithm.reduce(tf.distribute.ReduceOp.SUM, value, "CPU:0")) == 3.0
    both = algorithm.batch_reduce("mean", [(value, "CPU:0"), (value, value)])
    assert [float(v) for v in both] == [1.5, 1.5]
    assert float(algorithm.broadcast(2.0, "CPU:1")) == 2.0
    with pytest.raises(ValueError, match="pairs"):
        algorithm.batch_reduce("sum", [value])


def test_reductions_of_slices_and_by_users():
    slices = [
        tf.IndexedSlices(tf.fill([1, 2], 2.0), tf.constant([i]), tf.constant([3, 2]))
        for i in (1, 1)
    ]

    class Largest(tf.distribute.CrossDeviceOps):
        def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
            return tf.reduce_max(per_replica_value)

    mean = tf.distribute.ReductionToOneDevice().reduce("mean", slices[0], "CPU:0")
    assert isinstance(mean, tf.IndexedSlices)
    assert float(Largest().batch_reduce("sum", [([1.0, 5.0], "CPU:0")])[0]) == 5.0
    with pytest.raises(ValueError, match="num_packs"):
        tf.distribute.NcclAllReduce(num_packs=-1)
    assert tf.distribute.InputReplicationMode.PER_WORKER.value == "PER_WORKER"


def test_model_strategy_with_a_custom_step(strategy):
    class Scaled(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            # As users write it for one replica's part of the batch.
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
                loss = loss / self.distribute_strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def trained():
        model = Scaled()
        model.compile(tf.keras.optimizers.SGD(0.01))
        model.fit(X, Y, batch_size=4, verbose=0)
        return model

    plain = trained()
    with strategy.scope():
        model = trained()
    assert model.distribute_strategy is strategy and strategy.num_replicas_in_sync == 2
    assert plain.distribute_strategy is tf.distribute.get_strategy()
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-5)


def test_synchronized_batch_normalization(strategy):
    x = np.array([[0.0], [2.0], [10.0], [14.0], [4.0]], "float32")
    with strategy.scope():
        layer = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.0)
        layer.build((None, 1))
    assert layer.get_config()["synchronized"] is True
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(5)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    parts = strategy.run(tf.function(lambda v: layer(v, training=True)), args=(batch,))
    wanted = (x - x.mean()) / np.sqrt(x.var() + 1e-3)
    np.testing.assert_allclose(strategy.gather(parts, axis=0), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, [6.0], rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, [x.var()], rtol=1e-4)
