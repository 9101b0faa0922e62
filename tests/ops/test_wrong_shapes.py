"""Test shapes and values that ops reject with TensorFlow's words, and empty or scalar operands that they accept."""

import numpy as np
import pytest

import meshflow as tf

INVALID = tf.errors.InvalidArgumentError


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tf.concat([1, 2], 0), INVALID, "Can't concatenate scalars"),
        (lambda: tf.concat([[1], [2]], 1), INVALID, r"in the range \[-1, 1\), but got 1"),
        (lambda: tf.concat([[1], [[2]]], 0), INVALID, "Ranks of all input tensors should match"),
        (lambda: tf.concat([[[1, 2]], [[2]]], 0), INVALID, "Dimension 1 in both shapes must be"),
        (lambda: tf.stack([1, [2]]), INVALID, "Shapes of all inputs must match"),
        (lambda: tf.stack([1, 2], axis=2), ValueError, r"`axis` = 2 not in range \[-1, 1\)"),
        (lambda: tf.split([1, 2, 3], [4, -1]), INVALID, "Determined shape must either match input"),
        (lambda: tf.split([1, 2, 3], [5, -2]), INVALID, "index 1 must be >= -1. Got: -2"),
        (lambda: tf.split([1, 2, 3], [1, 2], num=3), INVALID, "same elements as outputs"),
        (lambda: tf.tile([1], 2), INVALID, "Expected multiples to be 1-D"),
        (lambda: tf.reshape([1, 2, 3], [-1, 2]), INVALID, "requires a multiple of 2"),
        (lambda: tf.reshape([1, 2, 3], [-2, 3]), INVALID, "Size 0 must be non-negative, not -2"),
        (lambda: tf.pad([1], [1, 2]), INVALID, "must be a matrix with 2 columns"),
        (lambda: tf.pad([1], [[-1, 0]]), INVALID, "must be non-negative"),
        (lambda: tf.pad(3, [[1, 2]]), INVALID, "must be the rank of inputs"),
        (lambda: tf.reverse([1], [0, 0]), INVALID, "axis 0 specified more than once"),
        (lambda: tf.roll(3, 1, 0), INVALID, "input must be 1-D or higher"),
        (lambda: tf.broadcast_to([1, 2], [3]), INVALID, r"Incompatible shapes: \[2\] vs. \[3\]"),
        (lambda: tf.where([True] * 3, [1, 2], 3), INVALID, "must be broadcastable"),
        (lambda: tf.gather([1], 0, axis=1), INVALID, "Shape must be at least rank 2 but is rank 1"),
        (lambda: tf.scatter_nd([[1]], [1, 2], [3]), INVALID, r"Dimensions \[0,1\) of indices"),
        (lambda: tf.reverse_sequence([[1]], [[1]], 1), INVALID, "seq_lengths must be 1-dim"),
        (
            lambda: tf.space_to_batch([[[1]]], [0], [[0, 0]]),
            INVALID,
            "block_shape must be positive",
        ),
        (lambda: tf.batch_to_space([[[1]]], [2], [[0, 0]]), INVALID, "is not divisible by product"),
        (lambda: tf.linalg.diag(3), INVALID, "must be at least rank 1"),
        (lambda: tf.reduce_sum([[1]], [0, -2]), INVALID, "Axes contains duplicate dimension"),
        (lambda: tf.argmax([]), INVALID, "Reduction axis 0 is empty"),
        (lambda: tf.math.top_k([1], -1), INVALID, "Need k >= 0, got -1"),
        (
            lambda: tf.math.bincount([[[1]]], axis=-1),
            INVALID,
            "must be at most rank 2 but is rank 3",
        ),
        (lambda: tf.math.bincount([1], [1, 2]), INVALID, "must be the same shape as `arr`"),
        (lambda: tf.math.segment_sum([1, 2], [0, 1, 1]), INVALID, "same size as dimension 0"),
        (
            lambda: tf.math.unsorted_segment_sum([1, 2], [[0], [1]], 3),
            INVALID,
            r"data.shape = \[2\] does not start with segment_ids.shape = \[2, 1\]",
        ),
        (lambda: tf.tensordot([1], [1], 2), ValueError, "must not be larger than the number of"),
        (lambda: tf.matmul(tf.ones([2, 1, 1]), tf.ones([3, 1, 1])), INVALID, "batch dimensions"),
        (lambda: tf.nn.softmax([1.0], 1), INVALID, r"must be in the range \[-1, 1\)"),
        (
            lambda: tf.nn.conv2d(tf.ones([1, 4, 4, 1]), tf.ones([0, 2, 1, 1]), 1, "SAME"),
            INVALID,
            "filter must not have zero elements",
        ),
        (lambda: tf.nn.log_poisson_loss([1.0], [1.0, 2.0]), ValueError, "must have the same shape"),
        (lambda: tf.linalg.cholesky([[1.0, 2.0]]), INVALID, "matrix must be square"),
        (lambda: tf.linalg.eigh([[1.0, 2.0]]), INVALID, "matrix must be square"),
        (lambda: tf.linalg.qr([1.0]), INVALID, "must have rank >= 2"),
        (lambda: tf.linalg.solve([[1.0]], [[1.0], [2.0]]), INVALID, "rhs are incompatible"),
        (lambda: tf.linalg.lu([[0.0]]), INVALID, "not invertible"),
        (
            lambda: tf.linalg.banded_triangular_solve([[0.0]], [[1.0]]),
            INVALID,
            "matrix is not invertible",
        ),
        (
            lambda: tf.linalg.LinearOperatorDiag([1.0, 2.0]).matmul([[1.0]]),
            ValueError,
            "Dimensions 2 and 1 are not compatible",
        ),
        (lambda: tf.linalg.LinearOperatorDiag(1.0), ValueError, "at least 1 dimension"),
        (lambda: tf.linalg.LinearOperatorIdentity(2.0), TypeError, "must be integer"),
        (lambda: tf.linalg.LinearOperatorPermutation([0.0]), TypeError, "must be integer dtype"),
        (
            lambda: tf.image.crop_and_resize(tf.ones([1, 4, 4, 1]), [[0.0, 0, 1]], [0], [2, 2]),
            INVALID,
            "boxes must have 4 columns",
        ),
        (
            lambda: tf.image.extract_patches(
                tf.ones([1, 2, 2, 1]), [1, 0, 1, 1], [1] * 4, [1] * 4, "VALID"
            ),
            tf.errors.OutOfRangeError,
            "sizes is out of range",
        ),
        (lambda: tf.random.categorical([[]], 1), INVALID, "num_classes should be positive"),
        (lambda: tf.zeros([2**31, 2**31, 8]), INVALID, "overflow when multiplying"),
        (lambda: tf.function(tf.tile)([[1]], [2**31, 2**32]), INVALID, "overflow when multiplying"),
    ],
)
def test_errors_have_the_words_of_tensorflow(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tf.concat([1], 0), 1),
        (lambda: tf.pad(3, np.zeros([0, 2], int)), 3),
        (lambda: tf.pad(3, np.zeros([0, 2], int), "REFLECT"), 3),
        (lambda: tf.stack(3), 3),
        (lambda: tf.squeeze([[[1]]], [0, -3]), [[1]]),
        (lambda: tf.repeat([1, 2], [2, -1]), [1, 1]),
        (lambda: tf.gather([1, 2], [1], batch_dims=None), [2]),
        (lambda: tf.reduce_all([]), True),
        (lambda: tf.linalg.diag_part(np.zeros([0, 0])), []),
        (lambda: tf.linalg.qr(np.zeros([2, 0]), full_matrices=True).q, [[1, 0], [0, 1]]),
        (lambda: tf.math.squared_difference(1 + 1j, 2), 2),
        (lambda: tf.math.bincount([1], maxlength=3), [0, 1]),
        (lambda: tf.math.bincount([5], maxlength=3), [0, 0, 0]),
        (lambda: tf.math.bincount([1], weights=[]), [0.0, 1.0]),
        (lambda: tf.split([1, 2], 2, num=3)[1], [2]),
        (lambda: tf.searchsorted([1, 3, 5], [[2, 4]]), [[1, 2]]),
        (lambda: tf.searchsorted([[[1, 3]], [[1, 3]]], [[2], [4]]), [[1], [2]]),
        (lambda: tf.bitwise.left_shift(1, [33, -1]), [-(2**31), 1]),
        (lambda: tf.bitwise.right_shift(tf.constant(200, tf.uint8), 9), 1),
    ],
)
def test_empty_and_scalar_operands_and_limits(call, expected):
    assert call().numpy().tolist() == expected
