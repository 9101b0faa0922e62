"""NaN and infinities where TensorFlow's answer differs from NumPy's."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

pytestmark = pytest.mark.nan_expected
NAN, INF = np.nan, np.inf


def gradient(function, x):
    x = tf.constant(x, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x).numpy()


@pytest.mark.parametrize(
    ("x", "largest", "smallest"),
    [([1, NAN, 3], 2, 0), ([NAN, 5, 1], 1, 2), ([-INF, NAN], 0, 0), ([1, 3, NAN, INF], 3, 0)],
)
def test_positions_pass_over_nan(x, largest, smallest):
    for dtype in ("float16", "float32", "float64"):
        assert tf.argmax(tf.constant(x, dtype)).numpy() == largest
        assert tf.argmin(tf.constant(x, dtype)).numpy() == smallest


def test_limits_that_are_nan():
    assert np.isnan(tf.clip_by_value([1.0, 2.0], NAN, 1.0).numpy()).all()
    assert np.isnan(tf.clip_by_value([1.0, 2.0], 0.0, NAN).numpy()).all()
    assert_close(tf.clip_by_value([NAN, INF, -INF, 0.5], 0.0, 1.0), [NAN, 1, 0, 0.5])


def test_clipped_nan_has_no_gradient():
    result = gradient(lambda x: tf.clip_by_value(x, 0.0, 1.0), [NAN, 0.5, 2, -1, 0, 1])
    assert result.tolist() == [0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("function", [tf.reduce_max, tf.reduce_min])
def test_gradients_of_extremes_that_are_nan(function):
    assert np.isnan(gradient(function, [1, NAN, 3])).all()
    rows = gradient(lambda x: function(x, 1), [[1, NAN], [2, 2]])
    assert np.isnan(rows[0]).all() and rows[1].tolist() == [0.5, 0.5]
    # As it was: shapes, several dimensions, derivatives of derivatives.
    x = tf.constant(np.arange(24.0).reshape(2, 3, 4))
    for axis in (None, 0, -1, [0, 2], [1, -1]):
        expected = getattr(np, function.__name__[7:])(
            x.numpy(), axis=axis and tuple(np.ravel(axis))
        )
        assert_close(function(x, axis), expected)
    assert gradient(lambda t: function(t) ** 2, [3, 3, 3]).tolist() == [2, 2, 2]
