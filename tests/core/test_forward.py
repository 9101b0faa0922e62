"""Test `tf.autodiff.ForwardAccumulator`: products with the Jacobian, also in combination with
tapes."""

from __future__ import annotations

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

X, DIRECTION = np.array([0.5, 2.0]), np.array([1.0, -3.0])


def product(f, x, direction):
    with tf.autodiff.ForwardAccumulator(x, direction) as acc:
        y = f(x)
    return acc.jvp(y)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_products_are_those_of_the_jacobian(wrap):
    f = wrap(lambda x: tf.stack([tf.reduce_sum(tf.sin(x) * x), x[0] ** 2 * x[1]]))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    expected = tape.jacobian(y, x).numpy() @ DIRECTION
    assert_close(product(f, x, tf.constant(DIRECTION)), expected)


def test_variables_structures_and_unconnected_outputs():
    v, x = tf.Variable([[1.0], [2.0]]), tf.constant([[2.0, 3.0]])
    with tf.autodiff.ForwardAccumulator(primals=[v], tangents=[tf.ones([2, 1])]) as acc:
        y = {"sum": tf.reduce_sum(v), "product": [x @ v]}
    assert_close(acc.jvp(v), [[1], [1]])
    found = acc.jvp(y)
    assert_close(found["sum"], 2)
    assert_close(found["product"][0], [[5]])
    assert acc.jvp(x) is None
    assert_close(acc.jvp(x, unconnected_gradients="zero"), [[0, 0]])


def test_accumulators_and_tapes_nest_in_any_order():
    x, one = tf.constant(2.0), tf.constant(1.0)
    with tf.autodiff.ForwardAccumulator(x, one) as outer:
        with tf.autodiff.ForwardAccumulator(x, one) as inner:
            y = x**3
        first = inner.jvp(y)
    assert_close([first, outer.jvp(first)], [12, 12])
    with tf.GradientTape() as tape:
        tape.watch(x)
        first = product(lambda x: x**3, x, one)
    assert_close(tape.gradient(first, x), 12)
    with tf.autodiff.ForwardAccumulator(x, one) as acc:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x**3
        gradient = tape.gradient(y, x)
    assert_close(acc.jvp(gradient), 12)


def test_a_tape_inside_an_accumulator_does_not_see_its_products():
    x = tf.constant(2.0, tf.float64)
    with tf.autodiff.ForwardAccumulator(x, 3.0) as acc, tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x**3
    assert_close([acc.jvp(y), tape.gradient(y, x)], [36, 12])
    assert tape.gradient(acc.jvp(y), x) is None


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_a_custom_gradient_decides_forwards_too(wrap):
    @tf.custom_gradient
    def f(x, y):
        return x * y, lambda dz: (10.0 * dz, 100.0 * dz)

    y = tf.constant(5.0)
    found = product(wrap(lambda x: f(x, y) + x), tf.constant(2.0), tf.constant(3.0))
    assert_close(found, 33)


def test_a_loop_is_followed_eagerly_and_compiled():
    x, one = tf.constant(2.0), tf.constant(1.0)

    def loop(x):
        return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * x), [0, x])[1]

    assert_close(product(loop, x, one), 32)
    assert_close(product(tf.function(loop), x, one), 32)


def test_errors():
    x = tf.constant(1.0)
    for primals, tangents, message in [
        ([x, x], [x, x], "given multiple times"),
        (x, tf.constant(1), "shape and dtype"),
        (x, tf.constant([1.0]), "shape and dtype"),
        (1.0, 1.0, "tensors or variables"),
    ]:
        with pytest.raises(ValueError, match=message):
            tf.autodiff.ForwardAccumulator(primals, tangents)
    acc = tf.autodiff.ForwardAccumulator(x, x)
    with acc, pytest.raises(ValueError, match="already recording"):
        acc.__enter__()
    with pytest.raises(ValueError, match="takes tensors and variables"):
        acc.jvp(np.float32(1.0))


@tf.function
def _rotate(x, times):
    y = x
    for _ in tf.range(times):
        y = tf.sin(y) * x
    return y


def test_loops_of_unknown_length_are_followed():
    x, times = tf.constant(0.7), tf.constant(4)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(2.0)) as acc:
        y = _rotate(x, times)
        with tf.GradientTape() as tape:
            tape.watch(x)
            again = _rotate(x, times)
        gradient = tape.gradient(again, x)
    assert_close(acc.jvp(y), 2.0 * gradient)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            again = _rotate(x, times)
        gradient = tape.gradient(again, x)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(2.0)) as acc:
        with tf.GradientTape() as tape:
            tape.watch(x)
            again = _rotate(x, times)
        moved = tape.gradient(again, x)
    assert_close(acc.jvp(moved), 2.0 * outer.gradient(gradient, x), 1e-4)


def test_a_loop_beside_a_custom_gradient_is_followed():
    @tf.custom_gradient
    def doubled(x):
        return tf.identity(x), lambda dy: 2.0 * dy

    @tf.function
    def function(x, times):
        return _rotate(doubled(x), times)

    x, times = tf.constant(0.7), tf.constant(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x, times)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)) as acc:
        again = function(x, times)
    assert_close(acc.jvp(again), tape.gradient(y, x))
