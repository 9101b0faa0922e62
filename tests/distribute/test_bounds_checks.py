"""Indices out of range raise TensorFlow's error in programs that run on several devices."""

import numpy as np
import pytest

import meshflow as tf
from capabilities import needs

keras = tf.keras
dtensor = tf.experimental.dtensor
VALID, INVALID = (
    np.array([[0, 1], [2, 3], [4, 4], [1, 1]]),
    np.array([[0, 1], [2, 3], [4, 5], [1, 1]]),
)
TARGETS = np.ones((4, 1), np.float32)


@pytest.fixture(autouse=True)
def default_checks():
    yield
    tf.debugging.reset_bounds_check()


def make_mesh_strategy():
    return tf.distribute.MeshStrategy(dtensor.create_mesh([("data", 2), ("model", 2)]))


@pytest.mark.parametrize(
    "make_strategy",
    [lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), make_mesh_strategy],
)
def test_models_refuse_rows_that_an_embedding_lacks(make_strategy):
    strategy = make_strategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Embedding(5, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    model.fit(VALID, TARGETS, verbose=0)
    weights = model.get_weights()
    dataset = tf.data.Dataset.from_tensor_slices((INVALID, TARGETS)).batch(4)
    for arguments in ((INVALID, TARGETS), (dataset,)):
        for method in ("fit", "evaluate", "predict"):
            used = arguments[:1] if method == "predict" else arguments
            with pytest.raises(tf.errors.InvalidArgumentError, match="= 5 is not in"):
                getattr(model, method)(*used, verbose=0)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def run_replicas(f):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.Dataset.from_tensor_slices([VALID, INVALID])
    first, second = strategy.experimental_distribute_dataset(dataset.unbatch().batch(4))
    run = tf.function(lambda x: strategy.run(f, (x,)))
    return strategy, run, first, second


@needs("CPU kernels")
@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("order", [tf.identity, tf.sort])
def test_replicas_raise(order, is_strict):
    if is_strict:
        tf.debugging.enable_bounds_check()
    table = tf.ones([5, 2])
    strategy, run, valid, invalid = run_replicas(
        lambda x: tf.reduce_sum(tf.gather(table, order(x)))
    )
    assert float(strategy.reduce("sum", run(valid), None)) == 16
    # The first index is that of the replica.
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1,0,1\] = 5 is not in"):
        run(invalid)
    assert float(strategy.reduce("sum", run(valid), None)) == 16


@needs("CPU kernels")
@pytest.mark.parametrize("is_strict", [False, True])
def test_assignments_precede_the_error_of_replicas_unless_checks_are_enabled(is_strict):
    if is_strict:
        tf.debugging.enable_bounds_check()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    table = tf.ones([5])

    @tf.function
    def run(x):
        strategy.run(lambda i: v.assign_add(tf.reduce_sum(tf.gather(table, tf.sort(i)))), (x,))

    run(tf.constant(VALID))
    assert float(v) == 17
    with pytest.raises(tf.errors.InvalidArgumentError, match="= 5 is not in"):
        run(tf.constant(INVALID))
    assert np.isfinite(v) and (float(v) == 17) is is_strict


@needs("CPU kernels")
@pytest.mark.parametrize("order", [tf.identity, tf.sort])
def test_sharded_tensors_raise(order):
    mesh = dtensor.create_mesh([("batch", 4)])
    layout = dtensor.Layout(["batch", "unsharded"], mesh)
    gather = tf.function(lambda x: tf.gather(tf.ones([5, 2]), order(x)))
    gather(dtensor.copy_to_mesh(tf.constant(VALID), layout))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[2,1\] = 5 is not in"):
        gather(dtensor.copy_to_mesh(tf.constant(INVALID), layout))
    tf.debugging.disable_bounds_check()
    gather(dtensor.copy_to_mesh(tf.constant(INVALID), layout))
