"""Test variables of strategies: values of replicas, and the aggregation of their writes."""

import numpy as np
import pytest

import meshflow as tf

SUM, MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def replica_id():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def on_read(strategy, value, aggregation):
    with strategy.scope():
        return tf.Variable(
            value, synchronization=tf.VariableSynchronization.ON_READ, aggregation=aggregation
        )


def test_copies_of_a_mirrored_variable(strategy):
    with strategy.scope():
        v = tf.Variable(1.0, name="v")
    v.assign(3.0)
    assert [float(c.read_value()) for c in v.values] == [3.0, 3.0]
    assert strategy.experimental_local_results(v) == v.values
    lines = repr(v).splitlines()
    assert lines[0] == "MirroredVariable:{" and lines[-1] == "}"
    assert lines[2] == "  1: <tf.Variable 'v/replica_1:0' shape=() dtype=float32, numpy=3.0>"


def test_replica_values_of_a_sync_on_read_variable(strategy):
    v = on_read(strategy, 1.0, SUM)
    # Every replica starts with the initial value; values assigned from outside are divided.
    assert [float(p) for p in v.values] == [1.0, 1.0] and float(v) == 2.0
    v.assign(3.0)
    assert [float(p.read_value()) for p in strategy.experimental_local_results(v)] == [1.5, 1.5]
    v.values[1].assign(4.0)
    assert float(v) == 5.5 and "SyncOnReadVariable:{" in repr(v)
    counter = on_read(strategy, 0, SUM)
    counter.assign(7)
    assert int(counter) == 7 and [int(p) for p in counter.values] == [4, 3]


@pytest.mark.parametrize("compiled", [False, True])
def test_run_returns_per_replica_values(strategy, compiled):
    v = on_read(strategy, 0.0, MEAN)

    def step():
        return v.assign(tf.cast(replica_id(), tf.float32))

    result = strategy.run(tf.function(step) if compiled else step)
    assert [float(r) for r in result.values] == [0.0, 1.0] and float(v) == 0.5


@pytest.mark.parametrize(
    ("method", "start", "aggregation", "wanted"),
    [
        ("scatter_add", [0.0, 0.0, 0.0], SUM, [1.0, 3.0, 2.0]),
        ("scatter_sub", [0.0, 0.0, 0.0], MEAN, [-0.5, -1.5, -1.0]),
        ("scatter_mul", [2.0, 2.0, 2.0], MEAN, [1.0, 1.0, 2.0]),
        ("scatter_div", [2.0, 6.0, 2.0], SUM, [2.0, 3.0, 1.0]),
        ("scatter_max", [0.0, 0.0, 0.0], FIRST, [1.0, 1.0, 0.0]),
        ("scatter_update", [5.0, 5.0, 5.0], FIRST, [1.0, 1.0, 5.0]),
    ],
)
def test_scatters_of_replicas(strategy, method, start, aggregation, wanted):
    with strategy.scope():
        v = tf.Variable(start, aggregation=aggregation)

    def step():
        value = tf.cast(replica_id() + 1, tf.float32)
        rows = tf.stack([replica_id(), replica_id() + 1])
        return getattr(v, method)(tf.IndexedSlices(tf.stack([value, value]), rows))

    result = strategy.run(tf.function(step))
    np.testing.assert_allclose(result.values[1], wanted)


def test_scatters_that_have_no_sum(strategy):
    with strategy.scope():
        v = tf.Variable([1.0, 2.0], aggregation=SUM)
    rows = tf.IndexedSlices(tf.constant([5.0]), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="scatter_update"):
        strategy.run(lambda: v.scatter_update(rows))
    with strategy.scope():
        assert v.scatter_update(rows).numpy().tolist() == [5.0, 2.0]


def test_roles_that_do_not_exist(strategy):
    none = tf.VariableSynchronization.NONE
    with strategy.scope():
        with pytest.raises(ValueError, match="`NONE` variable synchronization mode"):
            tf.Variable(1.0, synchronization=none)
        with pytest.raises(ValueError, match="Invalid variable synchronization mode: often"):
            tf.Variable(1.0, synchronization="often")
        with pytest.raises(ValueError, match="Invalid variable aggregation mode: max"):
            tf.Variable(1.0, aggregation="max")


def test_quotients_of_integer_rows_are_integers():
    v = tf.Variable([1, 6])
    v.scatter_div(tf.IndexedSlices(tf.constant([2, 4]), tf.constant([0, 1])))
    assert v.dtype == tf.int32 and v.numpy().dtype == np.int32 and v.numpy().tolist() == [0, 1]


@pytest.mark.parametrize("compiled", [False, True])
def test_initial_value_of_the_first_replica_is_used(strategy, compiled):
    made = {}

    def step(x):
        if not made:
            made["mirrored"] = tf.Variable(x * 10.0, aggregation=SUM)
            made["own"] = tf.Variable(
                tf.reduce_sum(x),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=SUM,
            )
        made["own"].assign_add(tf.cast(replica_id(), tf.float32))
        return made["mirrored"].assign_add(x)

    run = strategy.run
    if compiled:
        run = tf.function(lambda *args: strategy.run(*args))
    x = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([1.0, 2.0]) * (context.replica_id_in_sync_group + 1)
    )
    for total in ([13.0, 26.0], [16.0, 32.0]):
        run(step, (x,))
        assert made["mirrored"].numpy().tolist() == total
    assert [float(v) for v in made["own"].values] == [3.0, 5.0]


def test_layers_and_slots_made_in_the_first_step(strategy):
    with strategy.scope():
        layer, optimizer = tf.keras.layers.Dense(1), tf.keras.optimizers.Adam(0.1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x) ** 2)
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    losses = [float(strategy.run(step, (tf.ones([2, 3]),)).values[0]) for _ in range(3)]
    assert losses[2] < losses[0]
    assert all(strategy.extended.variable_created_in_scope(v) for v in layer.variables)
