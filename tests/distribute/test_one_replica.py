"""Strategies of one replica: scripts written for strategies run, and more replicas are refused."""

import threading

import jax
import numpy as np
import pytest

import forked
import meshflow as tf

STRATEGIES = {
    "mirrored": lambda: tf.distribute.MirroredStrategy(["/cpu:0"]),
    "one device": lambda: tf.distribute.OneDeviceStrategy("/cpu:1"),
    "default": lambda: tf.distribute.get_strategy(),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 3)).astype("float32")
    return x, x @ np.array([[1.0], [2.0], [3.0]], "float32")


def build():
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])


def test_fit_is_the_same_as_without(strategy):
    plain = build()
    plain.compile(tf.keras.optimizers.SGD(0.1), "mse")
    wanted = plain.fit(*data(), batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    with strategy.scope():
        model = build()
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(8)
    found = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_custom_loop_of_the_guides(strategy):
    with strategy.scope():
        model = build()
        optimizer = tf.keras.optimizers.SGD(0.1)
        losses = tf.keras.losses.MeanSquaredError(reduction="none")

    def step(x, y):
        with tf.GradientTape() as tape:
            per_example = losses(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed(inputs):
        per_replica = strategy.run(step, args=inputs)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(8)
    dataset = strategy.experimental_distribute_dataset(dataset)
    totals = []
    for _ in range(10):
        totals.append(sum(float(distributed(batch)) for batch in dataset))
    assert totals[-1] < 0.05 * totals[0]


def test_contexts(strategy):
    here = tf.distribute
    assert here.get_replica_context() is not None and not here.in_cross_replica_context()
    default = strategy is here.get_strategy()
    with strategy.scope():
        assert here.get_strategy() is strategy
        # The scope of the default strategy changes nothing.
        assert here.in_cross_replica_context() is not default
        assert (here.get_replica_context() is None) is not default

        def replica():
            context = here.get_replica_context()
            assert int(context.replica_id_in_sync_group) == 0 and context.num_replicas_in_sync == 1
            merged = context.merge_call(
                lambda s, v: (s is strategy, here.in_cross_replica_context(), v), (5,)
            )
            total = context.all_reduce("sum", tf.constant(2.0))
            return merged, total, context.all_gather(tf.constant([1]), 0)

        merged, total, gathered = strategy.run(replica)
        assert (
            merged == (True, True, 5) and float(total) == 2.0 and gathered.numpy().tolist() == [1]
        )
    assert not here.in_cross_replica_context()


def test_reductions(strategy):
    value = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert float(strategy.reduce("MEAN", tf.constant(3.0), axis=None)) == 3.0
    assert strategy.reduce("SUM", value, axis=0).numpy().tolist() == [4.0, 6.0]
    assert strategy.reduce("MEAN", value, axis=0).numpy().tolist() == [2.0, 3.0]
    assert strategy.gather(value, axis=0).numpy().tolist() == value.numpy().tolist()
    (local,) = strategy.experimental_local_results(value)
    assert local is value
    with pytest.raises(ValueError, match=r"must be ReduceOp.SUM or ReduceOp.MEAN, got 'MAX'"):
        strategy.reduce("MAX", value, axis=None)


def test_input_functions(strategy):
    def made(context):
        size = context.get_per_replica_batch_size(4)
        return (
            tf.data.Dataset.range(8)
            .batch(size)
            .shard(context.num_input_pipelines, context.input_pipeline_id)
        )

    dataset = strategy.distribute_datasets_from_function(made)
    assert [len(b) for b in dataset] == [4, 4]
    value = strategy.experimental_distribute_values_from_function(
        lambda c: c.replica_id_in_sync_group
    )
    assert value == 0


def test_variables_are_placed():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:1")
    with strategy.scope():
        v = tf.Variable([1.0])
    assert v.value().device.endswith("CPU:1")


def test_threads_have_separate_strategies():
    seen = []
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        thread = threading.Thread(target=lambda: seen.append(tf.distribute.has_strategy()))
        thread.start()
        thread.join()
        assert tf.distribute.has_strategy()
    assert seen == [False]


def test_wrong_use_is_refused():
    with pytest.raises(RuntimeError, match="Mixing different"):  # noqa: SIM117
        with STRATEGIES["mirrored"]().scope():
            with STRATEGIES["one device"]().scope():
                pass
    with pytest.raises(ValueError, match="not divisible"):
        tf.distribute.InputContext(1, 0, 3).get_per_replica_batch_size(8)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="a GPU")
def test_cpus_replace_missing_gpus():
    program = """
import meshflow as tf
try:
    tf.distribute.MirroredStrategy([])
except ValueError as error:
    assert "at least one device" in str(error)
strategy = tf.distribute.MirroredStrategy(["GPU:0", "/gpu:1"])
print(strategy.num_replicas_in_sync, [d.name[-5:] for d in tf.config.list_logical_devices()])
print(int(strategy.reduce("SUM", strategy.run(lambda: tf.constant(2)), axis=None)))
print(tf.distribute.OneDeviceStrategy("/gpu:0").num_replicas_in_sync)
for devices in (["GPU:0", "CPU:0"], ["CPU:0", "CPU:7"]):
    mixed = tf.distribute.MirroredStrategy(devices)
    print([d[-5:] for d in mixed.extended.worker_devices])
tf.config.set_soft_device_placement(False)
for devices in (["GPU:0", "CPU:0"], ["CPU:7"]):
    try:
        tf.distribute.MirroredStrategy(devices)
    except ValueError as error:
        print(error)
"""
    code, output = forked.run(program)
    assert code == 0, output
    lines = [line for line in output.splitlines() if "not visible" not in line]
    assert lines[:3] == ["2 ['CPU:0', 'CPU:1']", "4", "1"]
    assert lines[3:5] == ["['CPU:1', 'CPU:0']", "['CPU:0', 'CPU:1']"]
    assert [line[:28] for line in lines[5:]] == ["Could not find device 'GPU:0", "Could not find device 'CPU:7"]  # fmt: skip
