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


def gradients(function, *values):
    tensors = [tf.constant(value, tf.float32) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    return y.numpy(), [g.numpy().tolist() for g in tape.gradient(y, tensors)]


def test_gradients_of_the_larger_and_the_smaller_beside_nan():
    a, b = [NAN, 1, NAN, 2, INF, 1], [1, NAN, NAN, 2, -INF, 3]
    value, found = gradients(tf.maximum, a, b)
    assert_close(value, [NAN, NAN, NAN, 2, INF, 3])
    assert found == [[0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1]]
    value, found = gradients(tf.minimum, a, b)
    assert_close(value, [NAN, NAN, NAN, 2, -INF, 1])
    assert found == [[0, 0, 0, 1, 0, 1], [1, 1, 1, 0, 1, 0]]
    assert np.signbit(tf.maximum([-1.0], [-0.0]).numpy()).all()


def test_gradient_of_rsqrt_at_negative_zero():
    assert_close(gradient(tf.math.rsqrt, [-0.0, 0.0, INF, 4.0]), [INF, -INF, 0, -1 / 16])


@pytest.mark.parametrize(("kind", "end"), [("max", -INF), ("min", INF)])
def test_gradients_are_divided_among_rows_of_their_segment(kind, end):
    ids, rows = [0, 0, 1, 1], [end, end, 1.0, 1.0]
    of_sorted = gradient(lambda x: getattr(tf.math, f"segment_{kind}")(x, ids), rows)
    assert of_sorted.tolist() == [0.5] * 4
    function = getattr(tf.math, f"unsorted_segment_{kind}")
    assert gradient(lambda x: function(x, ids, 3), rows).tolist() == [0.5] * 4
    with_nan = gradient(lambda x: function(x, ids, 3), [NAN, 1.0, 2.0, 2.0])
    assert with_nan.tolist() == [0, 0, 0.5, 0.5]


def test_zeros_of_both_signs_are_equal_in_top_k():
    values, indices = tf.math.top_k([-0.0, 0.0, -0.0, 0.0, 1.0], 5)
    assert indices.numpy().tolist() == [4, 0, 1, 2, 3]
    assert np.signbit(values.numpy()).tolist() == [False, True, False, True, False]
    assert gradient(lambda x: tf.math.top_k(x, 2)[0], [1, 3, 2]).tolist() == [0, 1, 1]


def test_no_class_is_among_predictions_that_are_not_finite():
    predictions = [[NAN, 1.0], [INF, 1.0], [0.0, 1.0]]
    assert tf.math.in_top_k([1, 1, 1], predictions, 1).numpy().tolist() == [False, False, True]


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_padding_gets_no_gradient_from_windows_of_negative_infinity(size, stride):
    x = np.full((1, 3, 3, 1), -INF)
    pooled = lambda t: tf.nn.max_pool2d(t, size, stride, "SAME")
    found = gradient(pooled, x)[0, :, :, 0]
    # TensorFlow's: each window's first place that is not padding.
    expected = {
        (2, 2): [[1, 0, 1], [0, 0, 0], [1, 0, 1]],
        (3, 2): [[1, 1, 0], [1, 1, 0], [0, 0, 0]],
        (3, 1): [[4, 2, 0], [2, 1, 0], [0, 0, 0]],
    }
    assert found.tolist() == expected[size, stride]
