"""Models that round their numbers while they are trained are converted with the ranges that they were trained with."""

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("ai_edge_litert", reason="needs the extra lite")

L, quantization = tf.keras.layers, tf.quantization


class Rounding(L.Layer):
    def build(self, shape):
        self.low = self.add_weight("low", [], initializer=tf.keras.initializers.Constant(-3.0))
        self.high = self.add_weight("high", [], initializer=tf.keras.initializers.Constant(3.0))

    def call(self, x):
        return quantization.fake_quant_with_min_max_vars(x, self.low, self.high)


class RoundedConvolution(L.Layer):
    def build(self, shape):
        self.kernel = self.add_weight("kernel", [3, 3, shape[-1], 6])

    def call(self, x):
        ends = 0.5 * tf.ones([6])
        kernel = quantization.fake_quant_with_min_max_vars_per_channel(
            self.kernel, -ends, ends, narrow_range=True
        )
        return quantization.fake_quant_with_min_max_args(
            tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 0.0, 6.0
        )


@pytest.fixture(scope="module")
def model():
    layers = [Rounding(), RoundedConvolution(), L.MaxPooling2D(), L.Flatten(), L.Dense(4)]
    model = tf.keras.Sequential([tf.keras.Input((6, 6, 3)), *layers, Rounding(), L.Softmax()])
    rng = np.random.default_rng(0)
    for layer in (model.layers[1], model.layers[4]):
        for w in layer.weights:
            w.assign(rng.uniform(-0.5, 0.5, w.shape))
    return model


def _convert(model, *settings):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    for name, value in settings:
        setattr(converter, name, value)
    return tf.lite.Interpreter(model_content=converter.convert())


def _codes(interpreter):
    return [o["op_name"] for o in interpreter._get_ops_details() if o["op_name"] != "DELEGATE"]


def test_the_ranges_of_training_are_those_of_integers(model):
    default = ("optimizations", [tf.lite.Optimize.DEFAULT])
    ends = [(f"inference_{end}_type", tf.int8) for end in ("input", "output")]
    x = np.random.default_rng(1).normal(size=(5, 6, 6, 3)).astype(np.float32)
    expected = model(x).numpy()

    floats = _convert(model).get_signature_runner()
    (key,) = floats.get_input_details()
    np.testing.assert_allclose(next(iter(floats(**{key: x}).values())), expected, atol=1e-5)

    interpreter = _convert(model, default, *ends)
    expected_codes = ["CONV_2D", "MAX_POOL_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"]
    assert _codes(interpreter) == expected_codes
    integers = interpreter.get_signature_runner()
    (given,), (result,) = (
        integers.get_input_details().values(),
        integers.get_output_details().values(),
    )
    # Computed by TensorFlow's converter.
    np.testing.assert_allclose(given["quantization"], (6 / 255, 0), rtol=1e-5)
    np.testing.assert_allclose(result["quantization"], (1 / 256, -128), rtol=1e-5)
    rounded = np.clip(np.round(x / (6 / 255)), -128, 127).astype(np.int8)
    found = next(iter(integers(**{key: rounded}).values())).astype(np.float32)
    np.testing.assert_allclose((found + 128) / 256, expected, atol=0.015)
    # The steps of the kernel are those that it was rounded to.
    (kernel,) = [t for t in interpreter.get_tensor_details() if tuple(t["shape"]) == (6, 3, 3, 3)]
    np.testing.assert_allclose(kernel["quantization_parameters"]["scales"], 0.5 / 127, rtol=1e-5)


def test_samples_are_required_without_fake_quantization():
    model = tf.keras.Sequential([tf.keras.Input((3,)), L.Dense(2)])
    with pytest.raises(ValueError, match=r"must be tf\.float32"):
        _convert(model, ("optimizations", [tf.lite.Optimize.DEFAULT]), ("inference_input_type", tf.int8))  # fmt: skip
