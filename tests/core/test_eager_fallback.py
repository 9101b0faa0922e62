"""Functions with sizes that depend on values, and functions that run as Python because a trace needs a value."""

import logging

import numpy as np
import pytest

import meshflow as tf


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, n: tf.boolean_mask(x, x > 4), [5, 6, 7]),
        (lambda x, n: tf.squeeze(tf.where(x < 2), -1), [0, 1]),
        (lambda x, n: x[n - 1 : n + 2], [2, 3, 4]),
        (lambda x, n: tf.range(n) * 2, [0, 2, 4]),
        (lambda x, n: tf.gather(x, tf.range(n)), [0, 1, 2]),
        (lambda x, n: tf.linalg.diag_part(tf.eye(n, dtype=tf.int32)), [1, 1, 1]),
        (lambda x, n: tf.unique(x // 3)[0], [0, 1, 2]),
        (lambda x, n: tf.histogram_fixed_width(x, [0, n + 5], 2), [4, 4]),
        (lambda x, n: tf.gather(x, [n], axis=n - 3), [3]),
        (lambda x, n: tf.cond(n > 2, lambda: tf.boolean_mask(x, x > 6), lambda: x), [7]),
    ],
)
def test_sizes_that_arguments_decide_on(function, expected):
    x, n = tf.range(8), tf.constant(3)
    np.testing.assert_array_equal(tf.function(function)(x, n), expected)


def test_fallback_warns_once_and_follows_values(caplog):
    @tf.function
    def positive(x):
        return tf.numpy_function(lambda x: x[x > 0], [x], tf.float32)

    with caplog.at_level(logging.WARNING, logger="meshflow"):
        assert positive(tf.constant([1.0, -1.0])).shape == (1,)
        assert positive(tf.constant([1.0, 2.0])).shape == (2,)
    assert [r.getMessage().split(",")[0] for r in caplog.records] == ["positive runs op by op"]


def test_fallback_accepts_other_variables():
    @tf.function
    def positive(scale, x):
        return tf.numpy_function(lambda x: x[x > 0], [x * scale], tf.float32)

    for value in (2.0, 3.0):
        result = positive(tf.Variable([value, 1.0]), tf.constant([1.0, -1.0]))
        assert result.numpy().tolist() == [value]


def test_outer_function_also_falls_back_with_variables_and_gradients():
    total = tf.Variable(0.0)

    @tf.function
    def kept(x):
        return tf.gather(x, tf.squeeze(tf.where(x > 1.0), -1))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(kept(x) ** 2)
        total.assign_add(loss)
        return tf.convert_to_tensor(tape.gradient(loss, x))

    assert step(tf.constant([1.0, 2.0, 3.0])).numpy().tolist() == [0.0, 4.0, 6.0]
    assert step(tf.constant([3.0, 0.0, 0.0])).numpy().tolist() == [6.0, 0.0, 0.0]
    assert total.numpy() == 13.0 + 9.0


def test_a_function_that_must_be_compiled_is_refused():
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="depends on"):
        tf.function(tf.unique, jit_compile=True)(tf.range(3))


def test_python_values_of_tensors_are_still_refused():
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="Python `int`"):
        tf.function(int)(tf.constant(1))


def test_parts_of_images_at_computed_places_are_compiled():
    @tf.function(jit_compile=True)
    def part(image, top):
        return tf.image.crop_to_bounding_box(image, top, 1, 2, 2)

    image = tf.reshape(tf.range(16), [4, 4, 1])
    assert part(image, tf.constant(2))[..., 0].numpy().tolist() == [[9, 10], [13, 14]]
