"""Test axes, shapes and sizes that are invalid for ops: the error names op and argument."""

import numpy as np
import pytest

import meshflow as tf

IMAGE = np.zeros((1, 4, 4, 1), "float32")
INVALID = tf.errors.InvalidArgumentError


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: tf.reduce_sum([1.0], axis="a"),
            INVALID,
            "reduce_sum: `axis` must be an integer.*'a'",
        ),
        (lambda: tf.reduce_mean([1.0], axis=1.5), INVALID, "reduce_mean: `axis`.* 1.5"),
        (lambda: tf.argmax([1.0], axis="a"), TypeError, "argmax: `axis`"),
        (lambda: tf.squeeze([1], "a"), TypeError, "squeeze: `axis`"),
        (lambda: tf.sort([1.0], axis="a"), ValueError, "sort: `axis`"),
        (lambda: tf.nn.softmax([1.0], "a"), TypeError, "`axis`"),
        (lambda: tf.concat([[1], [2]], "a"), INVALID, "concat: `axis`"),
        (lambda: tf.concat([], 0), INVALID, "concat: `values` must hold at least one tensor"),
        (lambda: tf.eye(-1), INVALID, "`num_rows` must hold sizes of at least 0"),
        (lambda: tf.eye(2, -1), INVALID, "`num_columns` must hold sizes of at least 0"),
        (lambda: tf.eye(2.5), TypeError, "`num_rows` must be an integer.*2.5"),
        (lambda: tf.zeros([2.5]), TypeError, "`shape` must be an integer.*2.5"),
        (lambda: tf.ones(2.0), TypeError, "`shape`"),
        (lambda: tf.random.normal([2.0]), INVALID, "`shape`"),
        (lambda: tf.reshape([1, 2], [2.0, 1.0]), INVALID, "reshape: `shape`"),
        (lambda: tf.fill([2.0], 1), INVALID, "`dims`"),
        (lambda: tf.tile([1], [2.0]), INVALID, "tile: `multiples`"),
        (lambda: tf.broadcast_to([1], [2.0]), INVALID, "broadcast_to: `shape`"),
        (lambda: tf.constant(1.0, shape=[2.0]), TypeError, "integer"),
        (lambda: tf.image.resize(IMAGE, [-2, 2]), ValueError, "Dimension -2 must be >= 0"),
        (lambda: tf.image.resize(IMAGE, [0, 2]), INVALID, "output dimensions must be positive"),
        (lambda: tf.image.resize(IMAGE, [2.5, 2]), ValueError, "'size' must be a 1-D int32"),
        (lambda: tf.image.resize(IMAGE, ["a", 2]), ValueError, "'size' must be a 1-D int32"),
        (lambda: tf.image.resize(IMAGE[:, :0], [2, 2]), INVALID, "input image must be of non-zero"),
        (lambda: tf.image.resize_with_pad(IMAGE, -1, 2), ValueError, "target_height must be > 0"),
        (lambda: tf.image.resize_with_crop_or_pad(IMAGE, 2, 0), ValueError, "target_width must be"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()
