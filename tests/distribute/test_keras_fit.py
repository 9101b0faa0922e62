"""Test that `compile/fit/evaluate/predict` on several devices equal one device."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

LAYERS = tf.keras.layers


def build(steps=1, **layouts):
    tf.keras.backend.reset_uids()
    tf.random.set_seed(3)
    model = tf.keras.Sequential(
        [
            LAYERS.Dense(8, "relu", input_shape=(6,), **layouts),
            LAYERS.BatchNormalization(),
            LAYERS.Dropout(0.25),
            LAYERS.Dense(3),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return model


def train(model, rng):
    x = rng.normal(size=(54, 6)).astype("float32")
    y = rng.integers(0, 3, size=54)
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return history.history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)


def assert_equal_training(found, expected):
    for name, values in expected[0].items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-5)


@pytest.fixture
def expected():
    return train(build(), np.random.default_rng(5))


@pytest.mark.parametrize("steps", [1, 2])
def test_mirrored_fit_equals_one_device(expected, steps):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = build(steps)
    found = train(model, np.random.default_rng(5))
    assert_equal_training(found, expected)
    kernel = model.layers[0].kernel
    assert len(kernel._value.sharding.device_set) == 4
    assert strategy.extended.variable_created_in_scope(kernel)
    assert all(len(v._value.sharding.device_set) == 4 for v in model.optimizer.variables if v.ndim)


@pytest.mark.parametrize("whole", [True, False], ids=["batches", "from function"])
def test_fit_on_a_distributed_dataset(whole):
    """Test that `fit` treats batches distributed by the strategy like its own."""
    x, y = np.arange(48, dtype="float32").reshape(24, 2) / 48, np.ones([24, 1], "float32")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    arrays = tf.data.Dataset.from_tensor_slices((x, y))
    found = []
    for distributed in (True, False):
        with strategy.scope():
            model = tf.keras.Sequential([LAYERS.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse")
        data = arrays.batch(8)
        if distributed and whole:
            data = strategy.experimental_distribute_dataset(data)
        elif distributed:
            make = lambda context: arrays.batch(context.get_per_replica_batch_size(8))
            data = strategy.distribute_datasets_from_function(make)
        found.append(model.fit(data, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_model_built_by_its_first_batch():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = tf.keras.Sequential([LAYERS.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones([8, 2], "float32"), np.ones([8, 1], "float32"), verbose=0)
    assert len(model.layers[0].kernel._value.sharding.device_set) == 2


def test_sharded_model_fit_equals_one_device(expected):
    mesh = dtensor.create_mesh([("batch", 2), ("model", 2)])
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["dense.kernel"] = Layout([UNSHARDED, "model"], mesh)
    layouts["dense.bias"] = Layout(["model"], mesh)
    with tf.keras.dtensor.experimental.layout_map_scope(layouts):
        model = build()
    assert_equal_training(train(model, np.random.default_rng(5)), expected)
    dtensor.check_layout(model.layers[0].kernel, layouts["dense.kernel"])
    assert model.layers[0].kernel._value.addressable_shards[0].data.shape == (6, 4)
    assert dtensor.fetch_layout(model.layers[3].bias).is_fully_replicated()


def test_layout_arguments_of_layers():
    mesh = dtensor.create_mesh([("batch", 4)])
    model = tf.keras.Sequential(
        [
            LAYERS.Flatten(input_shape=(2, 3)),
            LAYERS.Dense(
                8,
                kernel_layout=Layout([UNSHARDED, "batch"], mesh),
                bias_layout=Layout(["batch"], mesh),
            ),
        ]
    )
    assert dtensor.fetch_layout(model.layers[1].kernel).sharding_specs == [UNSHARDED, "batch"]
    with pytest.raises(ValueError, match="has 2 axes, its layout"):
        LAYERS.Dense(8, kernel_layout=Layout(["batch"], mesh)).build((None, 4))
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not divide"):
        LAYERS.Dense(7, kernel_layout=Layout([UNSHARDED, "batch"], mesh)).build((None, 4))


def test_layout_map_matches_regular_expressions():
    mesh = dtensor.create_mesh([("model", 4)])
    layouts = tf.keras.dtensor.experimental.LayoutMap()
    layouts[".*kernel"] = Layout([UNSHARDED, "model"], mesh)
    assert layouts["dense_7.kernel"].rank == 2 and layouts.get("dense.bias") is None
    with pytest.raises(ValueError, match="already exist"):
        layouts[".*kernel"] = Layout([UNSHARDED, "model"], mesh)
    with pytest.raises(ValueError, match="should be a dtensor"):
        layouts["x"] = 3


def test_layout_map_matches_attribute_paths_of_a_subclass():
    mesh = dtensor.create_mesh([("batch", 2), ("model", 2)])
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["feature.*kernel"] = Layout([UNSHARDED, "model"], mesh)
    layouts["feature.*bias"] = Layout(["model"], mesh)
    layouts[r"blocks\.1\.kernel"] = Layout(["model", UNSHARDED], mesh)

    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.feature = LAYERS.Dense(4)
            self.blocks = [LAYERS.Dense(4), LAYERS.Dense(2)]

        def call(self, x):
            return self.blocks[1](self.blocks[0](self.feature(x)))

    with layouts.scope():
        model = Net()
    model(tf.ones([2, 3]))
    specs = [v.layout.sharding_specs for v in model.weights]
    assert specs[:2] == [[UNSHARDED, "model"], ["model"]]
    assert specs[2:4] == [[UNSHARDED, UNSHARDED], [UNSHARDED]]
    assert specs[4] == ["model", UNSHARDED]


def test_unused_layout_map_keys_are_named():
    mesh = dtensor.create_mesh([("batch", 4)])
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["dense.kernel"] = layouts["dens.bias"] = Layout([UNSHARDED, UNSHARDED], mesh)
    with layouts.scope():
        model = tf.keras.Sequential([LAYERS.Dense(2, input_shape=(3,))])
    model.compile("sgd", "mse")
    data = np.ones([4, 3], "float32"), np.ones([4, 2], "float32")
    with pytest.warns(UserWarning, match=r"no weight of a model matches \['dens\.bias'\]"):
        model.fit(*data, verbose=0)
    model.evaluate(*data, verbose=0)
