"""Test layers that assign the weights with which they compute."""

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import LAYERS, mesh, same_weights, trained


class Normalized(LAYERS.Layer):
    """A product with a kernel that each call in training scales to a norm."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 16))

    def call(self, x, training=None):
        if training:
            self.kernel.assign(2.0 * self.kernel / tf.norm(self.kernel))
        return tf.tanh(tf.matmul(x, self.kernel))


def make():
    return tf.keras.Sequential([tf.keras.Input([16]), Normalized(), Normalized(), LAYERS.Dense(8)])


@pytest.mark.parametrize(
    "options", [{"zero": 1, "recompute": "layer"}, {"zero": 3, "micro_batches": 2}]
)
def test_assigned_weights_have_the_gradients_of_one_device(options):
    compiled = {"optimizer": lambda: tf.keras.optimizers.SGD(0.5)}
    plain, curves = trained(make, **compiled)
    strategy = tf.distribute.MeshStrategy(mesh(data=2), "batch:data", **options)
    model, history = trained(make, strategy, **compiled)
    np.testing.assert_allclose(history["loss"], curves["loss"], rtol=2e-6)
    same_weights(model, plain, rtol=1e-5, atol=1e-6)
