"""`IndexedSlices` and `SparseTensor` by themselves."""

import pytest

import meshflow as tf


def test_rows_become_a_tensor():
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    whole = tf.convert_to_tensor(tf.IndexedSlices(rows, [0, -1, 0], dense_shape=[3, 2]))
    assert whole.numpy().tolist() == [[6, 8], [0, 0], [0, 0]]

    @tf.function
    def traced(numbers):
        return tf.convert_to_tensor(tf.IndexedSlices(rows, numbers, dense_shape=[4, 2]))

    assert traced(tf.constant([3, 1, 3])).numpy().tolist() == [[0, 0], [3, 4], [0, 0], [6, 8]]


def test_rows_out_of_range():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"segment_ids\[1\] = 7 is out of range \[0, 3\)"
    ):
        tf.convert_to_tensor(tf.IndexedSlices([[1.0], [2.0]], [0, 7], dense_shape=[3, 1]))
    with pytest.raises(ValueError, match="without dense_shape"):
        tf.convert_to_tensor(tf.IndexedSlices([[1.0]], [0]))


def test_sparse_tensor_times_and_over_dense():
    sparse = tf.SparseTensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
    assert (sparse * tf.constant([2.0, 3.0])).values.numpy().tolist() == [3, 4]
    assert (sparse / [[1.0, 4.0], [8.0, 1.0]]).values.numpy().tolist() == [0.25, 0.25]
    weights = tf.constant([[1.0, 5.0], [7.0, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        total = tf.reduce_sum((sparse * weights).values)
    assert tape.gradient(total, weights).numpy().tolist() == [[0, 1], [2, 0]]


def test_texts():
    assert str(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))) == (
        "IndexedSlices(indices=tf.Tensor([0], shape=(1,), dtype=int32), "
        "values=tf.Tensor([1.], shape=(1,), dtype=float32))"
    )
    assert str(tf.SparseTensor([[1]], [2], [3])) == (
        "SparseTensor(indices=tf.Tensor([[1]], shape=(1, 1), dtype=int64), "
        "values=tf.Tensor([2], shape=(1,), dtype=int32), "
        "dense_shape=tf.Tensor([3], shape=(1,), dtype=int64))"
    )
