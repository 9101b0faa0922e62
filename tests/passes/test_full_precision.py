"""Products ask for full float32 when TensorFloat-32 is turned off, also in functions traced before."""

import numpy as np
import pytest

import meshflow as tf

switch = tf.config.experimental


@pytest.fixture(autouse=True)
def _restored():
    yield
    switch.enable_tensor_float_32_execution(True)


def _text(function, *arguments):
    concrete = function.get_concrete_function(*arguments)
    return concrete.lower([a._value for a in arguments], [], ("cuda",)).as_text()


@pytest.mark.parametrize("kind", ["product", "convolution", "in a loop"])
def test_functions_traced_before(kind):
    x = tf.constant(np.ones((1, 8, 8, 2), np.float32))

    @tf.function
    def run(x):
        if kind == "product":
            return tf.matmul(x, x)
        if kind == "convolution":
            return tf.nn.conv2d(x, tf.ones([3, 3, 2, 2]), 1, "SAME")
        for _ in tf.range(3):
            x = tf.matmul(x, tf.ones([2, 2]))
        return x

    if kind == "product":
        x = tf.constant(np.ones((8, 8), np.float32))
    assert "HIGHEST" not in _text(run, x)
    switch.enable_tensor_float_32_execution(False)
    assert "HIGHEST" in _text(run, x)
    switch.enable_tensor_float_32_execution(True)
    assert "HIGHEST" not in _text(run, x)


def test_low_precision_is_unchanged():
    x = tf.cast(np.ones((8, 8), np.float32), "bfloat16")
    run = tf.function(lambda x: tf.matmul(x, x))
    run(x)
    text = _text(run, x)
    switch.enable_tensor_float_32_execution(False)
    assert "HIGHEST" not in text and _text(run, x) == text
