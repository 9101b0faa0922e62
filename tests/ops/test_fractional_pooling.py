"""Pooling of regions with random sizes, next to a loop over the regions."""

import numpy as np
import pytest

import meshflow as tf

VALUES = np.random.default_rng(0).normal(size=(2, 11, 7, 2)).astype(np.float32)


@pytest.mark.parametrize(
    "pool, reduce", [(tf.nn.fractional_max_pool, np.max), (tf.nn.fractional_avg_pool, np.mean)]
)
@pytest.mark.parametrize("pseudo_random, overlapping", [(False, False), (True, True)])
def test_values_are_those_of_the_regions(pool, reduce, pseudo_random, overlapping):
    value, options = tf.Variable(VALUES), (pseudo_random, overlapping)
    with tf.GradientTape() as tape:
        output, *starts = pool(value, [1, 1.5, 1.2, 1], *options, seed=4)
    rows, columns = (s.numpy() for s in starts)
    assert output.shape == (2, 7, 5, 2)
    assert (rows[[0, -1]].tolist(), columns[[0, -1]].tolist()) == ([0, 11], [0, 7])
    assert {*np.diff(rows), *np.diff(columns)} == {1, 2}
    for i, y in enumerate(rows[:-1]):
        for j, x in enumerate(columns[:-1]):
            region = VALUES[:, y : rows[i + 1] + overlapping, x : columns[j + 1] + overlapping]
            np.testing.assert_allclose(output[:, i, j], reduce(region, (1, 2)), rtol=1e-5)
    # Each region passes on a gradient of 1.
    assert np.sum(tape.gradient(output, value)) == pytest.approx(output.numpy().size)
    repeated = pool(VALUES, [1.5, 1.2], *options, seed=4).output
    assert np.array_equal(repeated.numpy(), output.numpy())


def test_means_of_integers_are_rounded_towards_zero():
    value = tf.reshape(tf.range(-4, 5), [1, 3, 3, 1])
    # Rows and columns have regions of one and two.
    output, rows, columns = tf.nn.fractional_avg_pool(value, 1.5, seed=1)
    parts = np.split(value.numpy()[0, :, :, 0], rows[1:-1], 0)
    expected = [[int(p.mean()) for p in np.split(part, columns[1:-1], 1)] for part in parts]
    assert output.dtype is tf.int32 and output.numpy()[0, :, :, 0].tolist() == expected


@pytest.mark.parametrize(
    "shape, ratio, message",
    [
        ((1, 4, 4, 1), 0.5, "should be >= 1.0"),
        ((1, 4, 4, 1), [2, 2, 2, 1], "first and last"),
        ((4, 4, 1), 2.0, r"\[batch, height, width, channels\]"),
        ((1, 4, 4, 1), 5.0, "higher than input dimension size for dimension 1"),
    ],
)
def test_invalid_arguments(shape, ratio, message):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        tf.nn.fractional_max_pool(tf.zeros(shape), ratio)


@pytest.mark.parametrize("overlapping", [False, True])
def test_equal_maxima_pass_the_gradient_to_the_first(overlapping):
    value = tf.constant([[[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]])[..., None]
    with tf.GradientTape() as tape:
        tape.watch(value)
        output = tf.nn.fractional_max_pool(value, 2.0, overlapping=overlapping, seed=1).output
    gradient = tape.gradient(output, value)[0, :, :, 0]
    np.testing.assert_array_equal(gradient, [[0, 1, 1, 0], [0, 0, 0, 0]])
