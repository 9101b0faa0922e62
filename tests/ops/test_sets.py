"""`tf.sets` and `tf.edit_distance`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf

A, B = [[9, 5, 9, 2], [1, 2, 3, 3]], [[2, 9, 0, 0], [3, 7, 7, 7]]


def parts(sparse):
    return (
        sparse.indices.numpy().tolist(),
        sparse.values.numpy().tolist(),
        sparse.dense_shape.numpy().tolist(),
    )


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (tf.sets.difference, ([[0, 0], [1, 0], [1, 1]], [5, 1, 2], [2, 2])),
        (tf.sets.intersection, ([[0, 0], [0, 1], [1, 0]], [2, 9, 3], [2, 2])),
        (
            tf.sets.union,
            (
                [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3]],
                [0, 2, 5, 9, 1, 2, 3, 7],
                [2, 4],
            ),
        ),
    ],
)
def test_numbers_of_tensorflow(function, expected):
    assert parts(function(tf.constant(A), tf.constant(B))) == expected


def test_difference_the_other_way_and_size():
    other = tf.sets.difference(tf.constant(A), tf.constant(B), aminusb=False)
    assert other.values.numpy().tolist() == [0, 7]
    assert tf.sets.size(other).numpy().tolist() == [1, 1]
    with pytest.raises(TypeError, match="SparseTensor"):
        tf.sets.size(tf.constant(A))


def test_sparse_sets():
    first, second = tf.sparse.from_dense([[1, 2], [3, 0]]), tf.sparse.from_dense([[1, 0], [5, 0]])
    expected = [[0, 0], [0, 1], [1, 0], [1, 1]], [1, 2, 3, 5], [2, 2]
    assert parts(tf.sets.union(first, second)) == expected
    assert parts(tf.sets.union(tf.constant([[1, 2], [3, 3]]), second)) == expected


def test_wrong_sets():
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1"):
        tf.sets.union(tf.constant([1, 2]), tf.constant([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="leading dimensions"):
        tf.sets.union(tf.constant([[1, 2]]), tf.constant([[2], [3]]))
    with pytest.raises(TypeError, match="dtype"):
        tf.sets.union(tf.constant([[1, 2]]), tf.constant([[2]], tf.int64))


def test_edit_distances_of_tensorflow():
    said = tf.SparseTensor([[0, 0, 0], [1, 0, 0]], ["a", "b"], [2, 1, 1])
    meant = tf.SparseTensor(
        [[0, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]], ["a", "b", "c", "a"], [2, 2, 2]
    )
    np.testing.assert_array_equal(tf.edit_distance(said, meant), [[np.inf, 1.0], [0.5, 1.0]])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=6), st.lists(st.integers(1, 3), max_size=6))
def test_edit_distance_is_a_distance(a, b):
    def sparse(row):
        return tf.sparse.from_dense(np.array([[*row, *[0] * (6 - len(row))]]))

    def distance(x, y):
        return float(tf.edit_distance(sparse(x), sparse(y), normalize=False)[0])

    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)
    assert abs(len(a) - len(b)) <= distance(a, b) <= max(len(a), len(b))
    assert distance(a, [*a, 2]) == 1


def test_wrong_sequences():
    one = tf.sparse.from_dense([[1, 2]])
    with pytest.raises(TypeError, match="hypothesis"):
        tf.edit_distance([[1, 2]], one)
    with pytest.raises(tf.errors.InvalidArgumentError, match="same rank"):
        tf.edit_distance(one, tf.sparse.from_dense([[[1, 2]]]))
