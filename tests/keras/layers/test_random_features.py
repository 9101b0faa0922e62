"""Test that random features approximate kernels and equal Keras 2's numbers."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

RandomFourierFeatures = tf.keras.layers.experimental.RandomFourierFeatures


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_products_of_features_are_the_kernel(kernel):
    tf.random.set_seed(0)
    x = np.array([[1.0, 0.0, 2.0], [0.5, 1.0, 2.0], [3.0, 3.0, 0.0]], "float32")
    features = RandomFourierFeatures(20_000, kernel, scale=2.0)(x).numpy()
    apart = x[:, None] - x[None]
    exponents = np.sum(apart**2, -1) / 8 if kernel == "gaussian" else np.sum(np.abs(apart), -1) / 2
    assert np.abs(2 * features @ features.T / 20_000 - np.exp(-exponents)).max() < 0.04


def test_formula_and_weights():
    layer = RandomFourierFeatures(
        2, tf.keras.initializers.Constant([[1.0, 2.0], [3.0, 4.0]]), scale=2
    )
    x = tf.constant([[0.5, 1.0]])
    outputs = layer(x)
    assert_close(outputs, np.cos(np.array([[1.75, 2.5]]) + layer.bias.numpy()))
    names = [w.name.split("/")[-1] for w in layer.weights]
    assert names == ["kernel_scale:0", "unscaled_kernel:0", "bias:0"]
    assert not layer.trainable_weights


def test_scale_by_default_and_trained():
    layer = RandomFourierFeatures(3, trainable=True)
    layer.build([None, 8])
    assert_close(layer.kernel_scale, [2.0])
    assert [w.name for w in layer.trainable_weights] == [layer.kernel_scale.name]
    assert layer.compute_output_shape([None, 8]).as_list() == [None, 3]


def test_saved_with_its_features(tmp_path):
    model = tf.keras.Sequential([RandomFourierFeatures(4, "laplacian", input_shape=(3,))])
    model.save(tmp_path / "model.keras")
    x = tf.constant([[1.0, 2.0, 3.0]])
    assert_close(tf.keras.models.load_model(tmp_path / "model.keras")(x), model(x))


@pytest.mark.parametrize(
    "arguments, message",
    [((0,), "output_dim"), ((1, "cubic"), "cubic"), ((1, "gaussian", -1.0), "scale")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RandomFourierFeatures(*arguments)


def test_inputs_of_another_rank():
    with pytest.raises(ValueError, match=r"\(batch, inputs\)"):
        RandomFourierFeatures(1).build([None, 2, 3])
