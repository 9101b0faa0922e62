"""Test replicas with arguments of different shapes: the last batch of a dataset."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

ROWS = np.random.default_rng(0).normal(size=(19, 3)).astype("float32")
GOALS = (ROWS.sum(axis=1, keepdims=True) > 0).astype("float32")


def make_strategy(count):
    return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(count)])


def train(strategy, compiled, batch=8):
    """Two epochs of batches 8, 8, 3 with a custom loop: weights, losses, metric."""
    dataset = tf.data.Dataset.from_tensor_slices((ROWS, GOALS)).batch(batch)
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(4, activation="tanh"), tf.keras.layers.Dense(1)]
        )
        model.build((None, 3))
        optimizer = tf.keras.optimizers.Adam(0.05)
        entropy = tf.keras.losses.BinaryCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE
        )
        mean = tf.keras.metrics.Mean()

    def replica(x, y):
        # As in many scripts, scaled by a fixed global batch size.
        with tf.GradientTape() as tape:
            each = entropy(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(each)
        return loss

    def step(x, y):
        losses = strategy.run(replica, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    step = tf.function(step) if compiled else step
    losses = []
    for _ in range(2):
        for x, y in strategy.experimental_distribute_dataset(dataset):
            losses.append(float(step(x, y)))
    return model.get_weights(), losses, float(mean.result())


@pytest.fixture(scope="module")
def one_device():
    return train(tf.distribute.get_strategy(), True)


@pytest.mark.parametrize("compiled", [False, True])
def test_custom_loop_with_uneven_batches_equals_one_device(compiled, one_device):
    weights, losses, mean = one_device
    for count in (2, 4):
        others, losses_of_many, mean_of_many = train(make_strategy(count), compiled)
        assert_close(losses_of_many, losses, rtol=1e-5)
        assert_close(mean_of_many, mean, rtol=1e-5)
        for one, other in zip(weights, others, strict=True):
            assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_replica_without_rows():
    strategy = make_strategy(4)
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(tf.range(5.0)).batch(5)
    )
    (x,) = dataset
    sizes = strategy.run(lambda v: tf.size(v), args=(x,))
    assert sum(int(v) for v in strategy.experimental_local_results(sizes)) == 5
    total = strategy.run(lambda v: tf.reduce_sum(v), args=(x,))
    assert float(strategy.reduce("SUM", total, axis=None)) == 10.0
    assert np.sort(strategy.gather(x, axis=0)).tolist() == [0, 1, 2, 3, 4]


def test_replicas_execute_the_same_collectives():
    strategy = make_strategy(2)
    uneven = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant([[1.0, 2.0], [3.0]][c.replica_id_in_sync_group])
    )

    def replica(x):
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(x))
        everything = context.all_gather(tf.reduce_max(x)[None], axis=0)
        return x / total, everything, context.replica_id_in_sync_group

    shares, everything, numbers = strategy.run(replica, args=(uneven,))
    assert_close(shares.values[0], [1 / 6, 2 / 6])
    assert_close(shares.values[1], [3 / 6])
    assert [v.numpy().tolist() for v in everything.values] == [[2.0, 3.0]] * 2
    assert [int(v) for v in numbers.values] == [0, 1]


def test_gradients_flow_through_uneven_replicas():
    strategy = make_strategy(2)
    with strategy.scope():
        w = tf.Variable(2.0)
    uneven = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant([[1.0, 2.0], [3.0]][c.replica_id_in_sync_group])
    )
    with tf.GradientTape() as tape:
        parts = strategy.run(lambda x: tf.reduce_sum(w * w * x), args=(uneven,))
        loss = strategy.reduce("SUM", parts, axis=None)
    assert float(tape.gradient(loss, w)) == 24.0


def test_divergent_collectives_are_refused():
    strategy = make_strategy(2)
    uneven = strategy.experimental_distribute_values_from_function(
        lambda c: tf.constant([[1.0, 2.0], [3.0]][c.replica_id_in_sync_group])
    )

    def reduce_all(x):
        return tf.distribute.get_replica_context().all_reduce("SUM", x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="different shapes"):
        strategy.run(reduce_all, args=(uneven,))

    def reduce_in_loop(x):
        total = tf.reduce_sum(x)
        for _ in tf.range(3):
            total += tf.distribute.get_replica_context().all_reduce("SUM", total)
        return total

    with pytest.raises(tf.errors.InvalidArgumentError, match="equal shapes on all replicas"):
        strategy.run(tf.function(reduce_in_loop), args=(uneven,))

    def different(x):
        return (x, x) if x.shape[0] == 2 else x

    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of tensors"):
        strategy.run(different, args=(uneven,))
