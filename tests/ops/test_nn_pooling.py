"""Pooling: gradients against XLA's own, ties, second order, vmap, windows of all kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close, check_gradients
from meshflow.ops.nn.windows import Windows, max_windows, sum_windows


def windows(size, strides, pads, dilations=(1, 1)):
    return Windows((1, *size, 1), (1, *strides, 1), ((0, 0), *pads, (0, 0)), (1, *dilations, 1))


CASES = {
    "tiles": windows((2, 2), (2, 2), ((0, 0), (0, 0))),
    "overlapping": windows((3, 3), (2, 2), ((0, 1), (1, 1))),
    "every step": windows((3, 2), (1, 1), ((1, 1), (0, 1))),
    "gaps": windows((2, 1), (3, 2), ((0, 0), (0, 0))),
    "large tiles": windows((12, 6), (12, 6), ((0, 0), (0, 0))),
    "large overlapping": windows((6, 6), (1, 2), ((2, 2), (2, 2))),
    "dilated": windows((2, 3), (1, 1), ((1, 0), (0, 0)), (2, 2)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ties", [False, True])
def test_reductions_and_gradients_are_xlas(case, ties, rng):
    spec, shape = CASES[case], (2, 12, 6, 3)
    x = rng.integers(0, 3, shape).astype(float) if ties else rng.normal(size=shape)
    arguments = (spec.size, spec.strides, spec.pads, None, spec.dilations)
    for ours, start, combine in (
        (max_windows, -np.inf, jax.lax.max),
        (sum_windows, 0.0, jax.lax.add),
    ):
        library = lambda x, start=start, combine=combine: jax.lax.reduce_window(
            x, start, combine, *arguments
        )
        y, pull = jax.vjp(lambda x, ours=ours: ours(x, spec), x)
        expected, expected_pull = jax.vjp(library, x)
        assert_close(y, expected)
        if case == "dilated" and combine is jax.lax.max:
            continue  # JAX has no gradient for this case
        g = rng.normal(size=y.shape)
        assert_close(jax.jit(pull)(g)[0], expected_pull(g)[0])


def test_dilated_maximum_has_a_gradient(rng):
    x = rng.permutation(32).reshape(1, 4, 8, 1).astype(float)
    check_gradients(lambda t: tf.nn.pool(t, [2, 2], "MAX", dilations=[2, 3]) ** 2, x)


@pytest.mark.parametrize("strides", [1, 2])
def test_twice_differentiable(strides, rng):
    x = tf.constant(rng.permutation(16).reshape(1, 4, 4, 1) / 8.0)

    def slope(t):
        with tf.GradientTape() as tape:
            tape.watch(t)
            y = tf.nn.max_pool2d(t, 2, strides, "VALID") ** 3
        return tape.gradient(y, t)

    check_gradients(slope, x.numpy())


def test_vmap_of_the_gradient(rng):
    spec = CASES["overlapping"]
    x = jnp.asarray(rng.normal(size=(3, 1, 12, 6, 2)))
    slope = jax.grad(lambda t: (max_windows(t, spec) ** 2).sum())
    assert_close(jax.vmap(slope)(x), np.stack([slope(row) for row in x]))


def test_channels_first_integers_and_one_dimension(rng):
    x = rng.integers(0, 100, (2, 6, 4, 3)).astype(np.int32)
    last = tf.nn.max_pool2d(x, 2, 2, "VALID")
    first = tf.nn.max_pool2d(x.transpose(0, 3, 1, 2), 2, 2, "VALID", data_format="NCHW")
    assert last.dtype == tf.int32
    np.testing.assert_array_equal(first.numpy().transpose(0, 2, 3, 1), last.numpy())
    line = tf.nn.avg_pool1d(tf.constant([[[1.0], [3.0], [8.0]]]), 2, 2, "SAME")
    assert_close(line, [[[2], [8]]])


def test_half_precision_averages_are_exact_sums():
    x = tf.cast(tf.fill([1, 64, 64, 1], 100.0), "float16")
    assert_close(tf.nn.avg_pool2d(x, 64, 1, "VALID"), [[[[100]]]])


def test_argmax_positions_select_the_maxima(rng):
    x = rng.normal(size=(2, 6, 6, 3)).astype(np.float32)
    for padding, batch in (("SAME", False), ("VALID", True)):
        y, at = tf.nn.max_pool_with_argmax(x, 3, 2, padding, include_batch_in_index=batch)
        rows = x.reshape(-1) if batch else x.reshape(2, -1)
        found = (
            rows[at.numpy()] if batch else np.take_along_axis(rows, at.numpy().reshape(2, -1), 1)
        )
        assert_close(found.reshape(y.shape), y)
    assert tf.nn.max_pool_with_argmax(x, 2, 2, "SAME", output_dtype=tf.int32)[1].dtype == tf.int32


def test_errors_name_sizes():
    x = tf.zeros([1, 2, 2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="subtracting 3 from 2"):
        tf.nn.max_pool2d(x, 3, 1, "VALID")
    with pytest.raises(ValueError, match=r"Received: ksize=.* of length 3"):
        tf.nn.avg_pool2d(x, [1, 2, 2], 1, "VALID")
    with pytest.raises(ValueError, match="strides > 1"):
        tf.nn.pool(x, [2, 2], "AVG", strides=[2, 2], dilations=[2, 2])
    with pytest.raises(ValueError, match="NCHW"):
        tf.nn.max_pool_with_argmax(x, 2, 2, "SAME", data_format="NCHW")


def test_maxima_of_channels():
    x = tf.constant(np.arange(24.0, dtype=np.float32).reshape(1, 2, 2, 6))
    window = (1, 1, 1, 3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = tf.nn.max_pool(x, window, window, "VALID")
    np.testing.assert_array_equal(found, np.arange(2, 24, 3).reshape(1, 2, 2, 2))
    np.testing.assert_array_equal(tape.gradient(found, x)[0, 0, 0], [0, 0, 1, 0, 0, 1])
    turned = tf.transpose(x, [0, 3, 1, 2])
    first = tf.nn.max_pool2d(turned, (1, 3, 1, 1), (1, 3, 1, 1), "VALID", "NCHW")
    np.testing.assert_array_equal(tf.transpose(first, [0, 2, 3, 1]), found)
    layer = tf.keras.layers.Lambda(lambda y: tf.nn.max_pool(y, window, window, "VALID"))
    assert layer(tf.keras.Input([2, 2, 6])).shape.as_list() == [None, 2, 2, 2]
    for size, step in [((1, 1, 1, 3), (1, 1, 1, 2)), ((1, 2, 2, 3),) * 2, ((1, 1, 1, 4),) * 2]:
        with pytest.raises(tf.errors.UnimplementedError, match="over channels"):
            tf.nn.max_pool(x, size, step, "VALID")
