"""Numbers as TensorFlow 2.21 gives them."""

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


def test_gradients_go_to_the_range_that_a_number_is_outside_of():
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
