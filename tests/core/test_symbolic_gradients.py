"""`tf.gradients` and `tf.hessians` inside functions."""

from __future__ import annotations

import pytest

import meshflow as tf
from helpers import assert_close


def test_gradients_of_earlier_computations():
    v = tf.Variable(5.0)

    @tf.function
    def f(x):
        y = x * x * v
        first = tf.gradients(y, x)
        return first, tf.gradients(first, x), tf.gradients([y, x], [x, v], grad_ys=[None, 2.0])

    first, second, both = f(tf.constant(3.0))
    assert_close(first, [30])
    assert_close(second, [10])
    assert_close(both, [32, 9])


def test_constants_and_unconnected_sources():
    @tf.function
    def f(x):
        a = 2.0 * x
        y = a * x
        unrelated = tf.constant([1.0, 2.0])
        return (
            tf.gradients(y, [x, a], stop_gradients=[a]),
            tf.gradients(y, unrelated),
            tf.gradients(y, unrelated, unconnected_gradients="zero"),
        )

    stopped, nothing, zeros = f(tf.constant(3.0))
    assert_close(stopped, [6, 3])
    assert nothing == [None]
    assert_close(zeros, [[0, 0]])


def test_function_with_inner_tape_and_variable():
    kept = []

    @tf.function
    def f(x):
        if not kept:
            kept.append(tf.Variable(2.0))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x * kept[0]
        return tape.gradient(y, x), tf.gradients(y, kept)

    gradient, of_variable = f(tf.constant(3.0))
    assert_close(gradient, 12)
    assert_close(of_variable, [9])


def test_hessians():
    f = tf.function(lambda x: tf.hessians(tf.reduce_sum(x**3), x))
    assert_close(f(tf.constant([1.0, 2.0]))[0], [[6, 0], [0, 12]])


def test_symbolic_gradients_are_refused_outside_functions():
    x = tf.constant(1.0)
    with pytest.raises(RuntimeError, match="GradientTape"):
        tf.gradients(x, x)


def test_gradients_in_loops_of_computations_before_them():
    v = tf.Variable(5.0)

    @tf.function
    def in_loop(w, count):
        scale = w * w
        for _ in tf.range(2):
            scale = scale * v
        total, moved = 0.0, w
        for i in tf.range(count):
            moved = tf.gradients(moved * moved, moved)[0]
            total += tf.gradients(scale, v)[0] + tf.gradients(scale * w, w)[0]
            if i > 0:
                total += tf.gradients(scale, w)[0]
        return total, moved

    # `scale` is w^2 v^2.
    total, moved = in_loop(tf.constant(2.0), tf.constant(2))
    assert_close(total, 2 * (40 + 300) + 100)
    assert_close(moved, 8)


def test_gradients_in_loops_of_tensors_that_do_not_depend_on_loop_variables():
    @tf.function
    def in_loop(w):
        y, found = w * w, True
        for _ in tf.range(3):
            found = tf.gradients(y, w + 1.0)[0] is not None
        return found

    assert not in_loop(tf.constant(2.0))
