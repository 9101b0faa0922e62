"""Products with sparse matrices: values, gradients, and NaN and Inf beside zeros."""

from __future__ import annotations

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close


def make_matrix():
    rng = np.random.default_rng(0)
    dense = rng.random((5, 7), np.float32) * (rng.random((5, 7)) < 0.4)
    return dense, tf.sparse.from_dense(dense), rng


@pytest.mark.parametrize("adjoint_a", [False, True])
@pytest.mark.parametrize("adjoint_b", [False, True])
def test_products_with_adjoints(adjoint_a, adjoint_b):
    dense, sparse, rng = make_matrix()
    transpose = lambda x, swap: x.T if swap else x
    flags = {"adjoint_a": adjoint_a, "adjoint_b": adjoint_b}
    multiply = lambda a, b: tf.sparse.sparse_dense_matmul(a, b, **flags)
    left = transpose(dense, adjoint_a)
    right = rng.random((left.shape[1], 3), np.float32)
    for function in (multiply, tf.function(multiply)):
        assert_close(function(sparse, transpose(right, adjoint_b)), left @ right, rtol=1e-5)
    right = transpose(dense, adjoint_b)
    left = rng.random((3, right.shape[0]), np.float32)
    assert_close(multiply(transpose(left, adjoint_a), sparse), left @ right, rtol=1e-5)


def test_gradients_of_products():
    dense, sparse, rng = make_matrix()
    values, b = tf.Variable(sparse.values), tf.Variable(rng.random((7, 3), np.float32))
    with tf.GradientTape() as tape:
        matrix = tf.SparseTensor(sparse.indices, values, [5, 7])
        y = tf.reduce_sum(tf.sparse.sparse_dense_matmul(matrix, b) ** 2)
    value_gradient, dense_gradient = tape.gradient(y, [values, b])
    product = dense @ b.numpy()
    assert_close(value_gradient, (2 * product @ b.numpy().T)[dense != 0], rtol=1e-5)
    assert_close(dense_gradient, 2 * dense.T @ product, rtol=1e-5)


def test_complex_and_repeated_elements():
    a = tf.SparseTensor([[0, 1]], [1j], [2, 2])
    y = tf.sparse.sparse_dense_matmul(a, np.full((2, 2), 1 + 2j), adjoint_a=True, adjoint_b=True)
    assert y.numpy().tolist() == [[0, 0], [-2 - 1j, -2 - 1j]]
    a = tf.SparseTensor([[1, 0], [0, 0], [1, 0]], [1.0, 4.0, 2.0], [2, 2])
    assert_close(tf.sparse.sparse_dense_matmul(a, [[1.0], [5.0]]), [[4.0], [3.0]])
    empty = tf.SparseTensor(np.zeros((0, 2)), np.zeros(0, np.float32), [2, 2])
    assert_close(tf.sparse.sparse_dense_matmul(empty, [[1.0], [5.0]]), [[0.0], [0.0]])


@pytest.mark.nan_expected
def test_zeros_do_not_spread_bad_values():
    a = tf.SparseTensor([[0, 1], [1, 0], [2, 1]], [2.0, 3.0, 4.0], [3, 3])
    b = np.array([[1, 2], [np.nan, 5], [np.inf, np.nan]], np.float32)
    assert_close(tf.sparse.sparse_dense_matmul(a, b), [[np.nan, 10], [3, 6], [np.nan, 20]])
    a = tf.SparseTensor([[0, 1], [1, 0]], [np.inf, 3.0], [2, 2])
    x = tf.constant([[1.0], [2.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.sparse.sparse_dense_matmul(a, x)
    assert_close(y, [[np.inf], [3.0]])
    assert_close(tape.gradient(y, x), [[3.0], [np.inf]])


def test_wrong_matrices():
    _, sparse, _ = make_matrix()
    with pytest.raises(tf.errors.InvalidArgumentError, match="Matrix size-incompatible"):
        tf.sparse.sparse_dense_matmul(sparse, np.ones((5, 3), np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"m \(9\) from index\[0,0\] out of"):
        tf.sparse.sparse_dense_matmul(tf.SparseTensor([[9, 0]], [1.0], [2, 2]), [[1.0], [1.0]])


def test_large_matrices_are_not_densified():
    a = tf.SparseTensor([[0, 399_999], [299, 7]], [2.0, 3.0], [300, 400_000])
    b = tf.reshape(tf.range(400_000, dtype=tf.float32), [400_000, 1])
    y = tf.function(tf.sparse.sparse_dense_matmul)(a, b).numpy()
    assert y[0, 0] == 799_998 and y[299, 0] == 21 and np.count_nonzero(y) == 2


@pytest.mark.nan_expected
def test_infinite_logits_of_other_classes():
    logits = tf.constant([[0.0, -np.inf, 1.0]])
    for loss in (
        tf.nn.sparse_softmax_cross_entropy_with_logits([0], logits),
        tf.keras.losses.sparse_categorical_crossentropy([0], logits, from_logits=True),
        tf.keras.ops.sparse_categorical_crossentropy([0], logits, from_logits=True),
    ):
        assert_close(loss, [1.3132616], rtol=1e-5)


@pytest.mark.nan_expected
def test_bad_rows_of_feature_columns_affect_only_their_examples():
    table = np.array([[np.nan, 1], [2, 3], [4, 5]], np.float32)
    column = tf.feature_column.categorical_column_with_identity("kind", 3)
    for combiner, pair in (("sum", [6, 8]), ("mean", [3, 4]), ("sqrtn", [72**0.5 / 2, 32**0.5])):
        vectors = tf.feature_column.embedding_column(
            column, 2, combiner, initializer=lambda *args, **kwargs: table
        )
        y = tf.keras.layers.DenseFeatures([vectors])({"kind": [[1, 2], [1, -1]]})
        assert_close(y, [pair, [2, 3]], rtol=1e-5)
    weighted = tf.feature_column.weighted_categorical_column(column, "weight")
    layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(weighted)])
    features = {"kind": [[1, 2], [1, -1]], "weight": [[np.nan, 2.0], [3.0, 4.0]]}
    y = layer({name: tf.constant(value) for name, value in features.items()})
    assert_close(y, [[0, np.nan, 2], [0, 3, 0]])


def test_crosses_join_the_values_of_rows():
    """TensorFlow 2.21 returns these values."""
    sparse = tf.sparse.from_dense([["a", ""], ["b", "c"]])
    crossed = tf.sparse.cross([sparse, tf.constant([["d"], ["e"]])], separator="-")
    assert crossed.values.numpy().tolist() == [b"a-d", b"b-e", b"c-e"]
    assert crossed.indices.numpy().tolist() == [[0, 0], [1, 0], [1, 1]]
    hashed = tf.sparse.cross_hashed([sparse, tf.constant([["d"], ["e"]])], num_buckets=100)
    assert hashed.values.numpy().tolist() == [82, 61, 41]


@pytest.mark.parametrize("row", [-1, 2])
@pytest.mark.parametrize("cross", [tf.sparse.cross, tf.sparse.cross_hashed])
def test_crosses_refuse_rows_out_of_bounds(cross, row):
    sparse = tf.SparseTensor([[0, 0], [row, 0]], ["a", "b"], [2, 1])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"rows of elements must be in \[0, 2\)"
    ):
        cross([sparse, [["c"], ["d"]]])
