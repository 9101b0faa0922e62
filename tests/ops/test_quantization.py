"""Compare with numbers of TensorFlow 2.21."""

import pytest

import meshflow as tf
from helpers import assert_close

quantization = tf.quantization
VALUES = [-7.0, -0.3, 0.1, 2.77, 9.0]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((), [-6.0235295, -0.28235295, 0.09411765, 2.7764707, 5.9764705]),
        ((-1, 2, 4, True), [-1.0714285, -0.21428572, 0.0, 1.9285715, 1.9285715]),
    ],
)
def test_range_of_numbers(arguments, expected):
    rounded = quantization.fake_quant_with_min_max_args
    assert_close(rounded(VALUES, *arguments), expected)
    assert_close(tf.function(lambda x: rounded(x, *arguments))(tf.constant(VALUES)), expected)


def test_range_of_tensors():
    rounded = quantization.fake_quant_with_min_max_vars
    assert_close(rounded(VALUES, 0.5, 2.0), [0.0, 0.0, 0.1, 1.5, 1.5])
    assert_close(rounded(VALUES, -3.0, -1.0), [-2.0, -0.29803923, 0.0, 0.0, 0.0])
    assert rounded(VALUES, 0.0, 0.0).numpy().tolist() == [0.0] * 5


def test_clipped_values_have_gradients_of_the_range():
    x = tf.constant([[-7.0, -0.3, 0.1], [2.77, 9.0, 0.1]])
    low, high = tf.Variable([-1.0, -2.0, -3.0]), tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = quantization.fake_quant_with_min_max_vars_per_channel(x, low, high, num_bits=4)
    assert_close(y, [[-0.9333334, -0.26666668, 0.0], [1.0666667, 2.1333334, 0.0]])
    of_x, of_low, of_high = tape.gradient(y, [x, low, high])
    assert of_x.numpy().tolist() == [[0, 1, 1], [0, 0, 1]]
    assert of_low.numpy().tolist() == [1, 0, 0]
    assert of_high.numpy().tolist() == [1, 1, 0]


def test_bad_arguments():
    with pytest.raises(tf.errors.InvalidArgumentError, match="smaller than max"):
        quantization.fake_quant_with_min_max_args([1.0], 2, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="between 2 and 16"):
        quantization.fake_quant_with_min_max_vars([1.0], -1, 1, num_bits=1)


NUMBERS = [[-7.0, -0.3, 0.1], [2.77, 9.0, 0.1], [0.5, 1.5, -2.5]]


@pytest.mark.parametrize(
    "low, high, settings, expected",
    [
        (
            -1.0,
            1.0,
            {},
            [
                [-7.015748, -0.283465, 0.070866],
                [2.76378, 9.0, 0.070866],
                [0.496063, 1.488189, -2.480315],
            ],
        ),
        (
            -4.0,
            3.0,
            {"range_given": True, "num_bits": 4, "round_mode": "HALF_UP"},
            [[-4.0, -0.5, 0.0], [3.0, 3.5, 0.0], [0.5, 1.5, -2.5]],
        ),
        (
            -4.0,
            3.0,
            {"range_given": True, "num_bits": 3, "narrow_range": True},
            [[-4.0, 0.0, 0.0], [2.666667, 4.0, 0.0], [0.0, 1.333333, -2.666667]],
        ),
        (
            0.0,
            3.0,
            {"range_given": True, "num_bits": 4, "signed_input": False},
            [[0.0, 0.0, 0.0], [2.8, 3.0, 0.0], [0.4, 1.6, 0.0]],
        ),
        (
            [0.0] * 3,
            [0.0] * 3,
            {"num_bits": 4, "axis": 0},
            [[-7.0, 0.0, 0.0], [2.571428, 9.0, 0.0], [0.625, 1.5625, -2.5]],
        ),
    ],
)
def test_integers_times_a_step(low, high, settings, expected):
    rounded = quantization.quantize_and_dequantize_v2
    assert_close(rounded(NUMBERS, low, high, **settings), expected)
    compiled = tf.function(lambda x: rounded(x, low, high, **settings))
    assert_close(compiled(tf.constant(NUMBERS)), expected)


def test_integers_pass_gradients_inside_the_range():
    x = tf.constant(NUMBERS)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = quantization.quantize_and_dequantize_v2(x, -1.0, 1.0)
    assert tape.gradient(y, x).numpy().tolist() == [[0, 1, 1], [0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("wrong", [{"num_bits": 0}, {"round_mode": "UP"}, {"axis": 2}])
def test_bad_settings_of_integers(wrong):
    with pytest.raises(tf.errors.InvalidArgumentError, match=next(iter(wrong))):
        quantization.quantize_and_dequantize_v2(NUMBERS, -1.0, 1.0, **wrong)


@pytest.mark.parametrize(
    "name", sorted(n for n in quantization.__all__ if not n.endswith("_gradient"))
)
def test_in_models_of_keras(name, tmp_path):
    x = tf.keras.Input([3])
    bounds = [] if name.endswith("args") else [[-1.0] * 3, [1.0] * 3]
    if not name.endswith("channel"):
        bounds = [b[0] for b in bounds]
    model = tf.keras.Model(x, getattr(quantization, name)(x, *bounds))
    assert model.layers[-1].name == f"tf.quantization.{name}"
    model.save(tmp_path / "model.keras")
    values = tf.constant([[-7.0, -0.3, 2.77]])
    assert_close(tf.keras.models.load_model(tmp_path / "model.keras")(values), model(values))
