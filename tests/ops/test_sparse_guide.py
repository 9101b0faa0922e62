"""A tour of sparse tensors, in the order of TensorFlow's guide, with the results of TensorFlow 2.21."""

import numpy as np
import pytest

import meshflow as tf

T = tf.sparse
RAIN = tf.SparseTensor(indices=[[0, 2], [1, 0], [2, 3]], values=[4.0, 7.0, 1.5], dense_shape=[3, 4])


def show(sparse):
    return T.to_dense(sparse).numpy().tolist()


def test_conversions():
    assert show(RAIN) == [[0, 0, 4, 0], [7, 0, 0, 0], [0, 0, 0, 1.5]]
    again = T.from_dense(T.to_dense(RAIN))
    assert again.indices.numpy().tolist() == [[0, 2], [1, 0], [2, 3]] and again.shape == [3, 4]
    assert T.to_dense(RAIN, default_value=-1.0).numpy()[0].tolist() == [-1, -1, 4, -1]


def test_arithmetic():
    snow = tf.SparseTensor([[0, 0], [1, 0]], [2.0, 3.0], [3, 4])
    total = T.add(RAIN, snow)
    assert show(total) == [[2, 0, 4, 0], [10, 0, 0, 0], [0, 0, 0, 1.5]]
    assert show(T.map_values(tf.add, RAIN, 1.0))[0] == [0, 0, 5, 0]
    assert T.sparse_dense_matmul(RAIN, tf.ones([4, 1])).numpy().tolist() == [[4], [7], [1.5]]
    assert show(RAIN * [[1.0], [2.0], [4.0]]) == [[0, 0, 4, 0], [14, 0, 0, 0], [0, 0, 0, 6]]


def test_elements_are_merged_in_their_order():
    late = tf.SparseTensor([[1, 2], [0, 0]], [1.0, 2.0], [2, 3])
    twice = tf.SparseTensor([[0, 0], [0, 0]], [3.0, 4.0], [2, 3])
    total = T.add(late, twice)
    assert total.indices.numpy().tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]
    assert total.values.numpy().tolist() == [3, 4, 1, 2]


def test_division_by_zero_is_refused():
    assert (RAIN / tf.ones([3, 4])).values.numpy().tolist() == [4, 7, 1.5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        RAIN / tf.zeros([3, 4])


def test_full_vectors_are_their_values():
    full = tf.SparseTensor([[0], [1]], [1.0, 2.0], [2])
    assert T.to_dense(full).numpy().tolist() == [1, 2]
    with pytest.raises((TypeError, ValueError)):
        T.to_dense(full, default_value="x")


def test_strings_of_sparse_tensors():
    parts = {"sparse_indices": RAIN.indices, "sparse_values": RAIN.values}
    text = tf.raw_ops.SerializeSparse(**parts, sparse_shape=RAIN.dense_shape)
    read = tf.raw_ops.DeserializeSparse(serialized_sparse=[[text, text]], dtype=tf.float32)
    rows = tf.SparseTensor(*read)
    assert rows.shape == [1, 2, 3, 4] and show(rows) == [[show(RAIN)] * 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one"):
        tf.raw_ops.DeserializeSparse(serialized_sparse=tf.zeros([0, 3], tf.string), dtype=tf.int32)


def test_parts():
    wide = T.concat(axis=1, sp_inputs=[RAIN, T.map_values(tf.negative, RAIN)])
    assert wide.shape == [3, 8] and show(wide)[1] == [7, 0, 0, 0, -7, 0, 0, 0]
    assert show(T.slice(RAIN, [1, 0], [2, 4])) == [[7, 0, 0, 0], [0, 0, 0, 1.5]]
    left, right = T.split(RAIN, 2, axis=1)
    assert show(left) == [[0, 0], [7, 0], [0, 0]] and show(right) == [[4, 0], [0, 0], [0, 1.5]]


def test_missing_elements_are_no_zeros():
    scores = tf.SparseTensor([[0], [1], [3]], [-2.0, 0.0, 5.0], [5])
    large = T.map_values(lambda v: tf.where(v > 0, v, 0.0), scores)
    assert large.values.numpy().tolist() == [0, 0, 5] and show(large) == [0, 0, 0, 5, 0]
    assert T.reduce_max(scores).numpy() == 5 and T.softmax(T.expand_dims(scores, 0)).shape == [1, 5]


def test_functions():
    @tf.function(input_signature=[tf.SparseTensorSpec([None, 4])])
    def weigh(rain):
        return T.reduce_sum(rain, axis=0), T.transpose(rain)

    for rows in (3, 2, 1):
        sums, turned = weigh(T.slice(RAIN, [0, 0], [rows, 4]))
        np.testing.assert_array_equal(sums, np.sum(show(RAIN)[:rows], 0))
        assert turned.shape == [4, rows]


def test_data_and_examples():
    data = tf.data.Dataset.from_tensor_slices(RAIN)
    assert [show(row)[0] for row in data] == [0, 7, 0]
    assert [batch.shape[0] for batch in data.batch(2)] == [2, 1]
    doubled = data.map(lambda row: row * [2.0]).batch(3)
    assert show(next(iter(doubled)))[2] == [0, 0, 0, 3]

    def make_example(days):
        feature = tf.train.Feature(int64_list=tf.train.Int64List(value=days))
        features = tf.train.Features(feature={"days": feature})
        return tf.train.Example(features=features).SerializeToString()

    features = {"days": tf.io.VarLenFeature(tf.int64)}
    parsed = tf.io.parse_example(
        [make_example([3]), make_example([]), make_example([1, 2])], features
    )
    assert show(parsed["days"]) == [[3, 0], [0, 0], [1, 2]]


def test_models():
    inputs = tf.keras.Input([4], sparse=True)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2, kernel_initializer="ones")(inputs))
    np.testing.assert_allclose(model.predict(RAIN, verbose=0), [[4, 4], [7, 7], [1.5, 1.5]])


def test_map_values_refuses_other_shapes():
    wide = tf.SparseTensor(RAIN.indices, RAIN.values, RAIN.dense_shape + 1)
    with pytest.raises(ValueError, match="must have the same shape"):
        T.map_values(tf.add, RAIN, wide)


def test_printing(capsys):
    sparse = tf.sparse.SparseTensor([[0, 1], [1, 0]], [5, 6], [2, 2])
    expected = "'SparseTensor(indices=[[0 1]\n [1 0]], values=[5 6], shape=[2 2])' done\n"
    tf.print(sparse, "done")
    assert capsys.readouterr().err == expected
    tf.function(lambda x: tf.print(x, "done"))(sparse)
    assert capsys.readouterr().err == expected


def test_shapes_that_a_program_computes():
    @tf.function(input_signature=[tf.SparseTensorSpec([None, None])])
    def measure(sparse):
        small = T.reset_shape(sparse)
        return tf.shape(small), tf.size(small), tf.shape(small, tf.int64)

    for wide in (tf.SparseTensor([[1, 0]], [1.0], [4, 5]), RAIN):
        sizes, count, wide_sizes = measure(wide)
        expected = (wide.indices.numpy().max(0) + 1).tolist()
        assert sizes.numpy().tolist() == wide_sizes.numpy().tolist() == expected
        assert sizes.dtype == count.dtype == tf.int32 and count.numpy() == np.prod(expected)


def test_lookups_of_empty_last_rows():
    table = tf.reshape(tf.range(12.0), [6, 2])
    look_up = lambda ids: tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
    signature = [tf.SparseTensorSpec([None, None], tf.int64)]
    ids = [
        tf.SparseTensor(indices, tf.constant([2, 5][: len(indices)], tf.int64), [rows, 4])
        for indices, rows in (([[0, 0], [0, 1]], 2), ([[0, 0], [1, 1]], 2), ([[1, 1]], 3))
    ]
    for function in (
        look_up,
        tf.function(look_up),
        tf.function(look_up, input_signature=signature),
    ):
        found = [function(x).numpy().tolist() for x in ids]
        assert found == [[[14, 16]], [[4, 5], [10, 11]], [[0, 0], [4, 5]]]


@pytest.mark.parametrize("indices", [[[1, 1], [0, 0]], [[0, 0], [0, 0]], [[2**62, 0], [2**62, 9]]])
def test_merged_elements(indices):
    a = tf.SparseTensor(indices, [1.0, 2.0], [2**63 - 1] * 2)
    both = T.maximum(a, a.with_values([3.0, 1.0]))
    assert both.indices.numpy().tolist() == indices and both.values.numpy().tolist() == [3, 2]
