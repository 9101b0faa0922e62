"""Test the functions of `tensorflow.python.eager.backprop` that unit tests and older programs call."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.shims import gradient_functions as backprop


def test_gradients_of_arguments():
    assert backprop.gradients_function(lambda x, y: x * y)(2.0, 3.0)[1].numpy() == 2
    assert backprop.gradients_function(lambda x: (x, 2 * x))(1.0)[0].numpy() == 3
    assert backprop.gradients_function(lambda x: x)(1.0, dy=2.0)[0].numpy() == 2
    assert backprop.gradients_function(lambda x: x + x)(tf.constant(1))[0] is None
    # An object in two arguments has two gradients.
    v = tf.Variable(1.0)
    assert [g.numpy() for g in backprop.gradients_function(lambda x, y: x * y * y)(v, v)] == [1, 2]
    np.testing.assert_array_equal(backprop.gradients_function(lambda x: x * x)([[3.0]])[0], [[6]])
    second = backprop.gradients_function(lambda x: backprop.gradients_function(tf.exp)(x)[0])
    assert second(0.0)[0].numpy() == 1


def test_selected_arguments():
    function = backprop.gradients_function(lambda a, b, strides: a * b * strides, params=["b"])
    assert [g.numpy() for g in function(2.0, 3.0, 5.0)] == [10]
    value, (gradient,) = backprop.val_and_grad_function(lambda a, b: a * b, params=[1])(2.0, 3.0)
    assert (value.numpy(), gradient.numpy()) == (6, 2)
    with pytest.raises(ValueError, match="keyword arguments"):
        function(2.0, b=3.0)


def test_products_with_vectors():
    value, vjp = backprop.make_vjp(lambda x: x * x)(tf.constant(3.0))
    assert (value.numpy(), vjp(2.0)[0].numpy(), vjp(1.0)[0].numpy()) == (9, 12, 6)


def test_gradients_of_variables_in_the_order_of_creation():
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    with tf.GradientTape() as tape:
        _ = second * first
    assert [v is first for v in tape.watched_variables()] == [True, False]
    value, pairs = backprop.implicit_val_and_grad(lambda: second * second + first)()
    assert value.numpy() == 5
    assert [(g.numpy(), v is first) for g, v in pairs] == [(1, True), (4, False)]
    np.testing.assert_array_equal(backprop.implicit_grad(lambda: first * 3)()[0][0], 3)
    with pytest.raises(ValueError, match="No trainable variables were accessed"):
        backprop.implicit_grad(lambda: tf.constant(1.0))()


def test_functions_without_result():
    with pytest.raises(ValueError, match="Cannot differentiate a function that returns None"):
        backprop.gradients_function(lambda x: None)(1.0)
