"""Names of Keras that DTensor scripts use."""

import numpy as np
import pytest

import meshflow as tf

dtensor = tf.experimental.dtensor


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])


def test_optimizers_and_metrics_accept_a_mesh(mesh):
    optimizer = tf.keras.dtensor.experimental.optimizers.Adam(0.1, mesh=mesh)
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    values = dtensor.pack([tf.constant([1.0, 2.0]), tf.constant([3.0, 6.0])], layout)
    assert optimizer.iterations.layout == dtensor.Layout.replicated(mesh, 0)
    for metric in (tf.keras.metrics.Mean(mesh=mesh), tf.keras.metrics.Mean("mean", mesh=mesh)):
        assert all(isinstance(w, dtensor.DVariable) for w in metric.non_trainable_weights)
        metric.update_state(values)
        assert float(metric.result()) == 3.0
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy(mesh=mesh)
    accuracy.update_state(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]))
    assert float(accuracy.result()) == 0.5


def test_random_generators_are_always_on():
    experimental = tf.keras.backend.experimental
    assert experimental.is_tf_random_generator_enabled()
    experimental.disable_tf_random_generator()
    assert not experimental.is_tf_random_generator_enabled()
    experimental.enable_tf_random_generator()
    assert experimental.is_tf_random_generator_enabled()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda **kwargs: tf.keras.layers.Dense(4, **kwargs), ("kernel", "bias")),
        (tf.keras.layers.BatchNormalization, ("gamma", "beta", "moving_mean", "moving_variance")),
        (tf.keras.layers.LayerNormalization, ("gamma", "beta")),
        (tf.keras.layers.GroupNormalization, ("gamma", "beta")),
    ],
)
def test_layers_accept_layouts_of_their_weights(mesh, make, names):
    layer = make(**{f"{name}_layout": dtensor.Layout.replicated(mesh, 1) for name in names[1:]})
    assert not hasattr(layer, f"{names[0]}_layout")
    layer(dtensor.copy_to_mesh(tf.ones([2, 32]), dtensor.Layout.replicated(mesh, 2)))
    for name in names[1:]:
        assert isinstance(getattr(layer, name), dtensor.DVariable)
        assert getattr(layer, f"{name}_layout") == getattr(layer, name).layout
    assert not isinstance(getattr(layer, names[0]), dtensor.DVariable)


def test_layout_map_returns_none_for_other_names(mesh):
    layout = dtensor.Layout.replicated(mesh, 1)
    layouts = tf.keras.dtensor.experimental.LayoutMap()
    layouts["dense.*bias"] = layout
    assert layouts["dense_2.bias"] == layout and layouts["conv.bias"] is None
    assert "conv.bias" not in layouts and layouts.get("conv.bias", 1) == 1
    with pytest.raises(KeyError):
        layouts.pop("dense_2.bias")
    assert layouts.pop("dense.*bias") == layout and not layouts
