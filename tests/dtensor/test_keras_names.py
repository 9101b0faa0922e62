"""Names of Keras that DTensor scripts use."""

import numpy as np
import pytest

import meshflow as tf

dtensor = tf.experimental.dtensor


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])


def test_optimizers_and_metrics_take_a_mesh(mesh):
    optimizer = tf.keras.dtensor.experimental.optimizers.Adam(0.1, mesh=mesh)
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    values = dtensor.pack([tf.constant([1.0, 2.0]), tf.constant([3.0, 6.0])], layout)
    for metric in (tf.keras.metrics.Mean(mesh=mesh), tf.keras.metrics.Mean("mean", mesh=mesh)):
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
