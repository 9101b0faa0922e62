"""Version 1's names of ops."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.legacy.compat import op_aliases

v1 = tf.compat.v1


def test_renamed_ops_are_those_of_version_2():
    for old, path in op_aliases.OP_ALIASES.items():
        found = tf
        for part in path.split("."):
            found = getattr(found, part)
        assert getattr(v1, old) is found


def test_older_names_of_arguments():
    x = tf.constant([[1.0, 3.0], [2.0, 0.0]])
    np.testing.assert_array_equal(v1.reduce_sum(x, reduction_indices=1, keep_dims=True), [[4], [2]])
    np.testing.assert_array_equal(v1.argmax(x, dimension=1), [1, 0])
    assert v1.expand_dims(x, dim=0).shape == [1, 2, 2]
    assert v1.squeeze([[1]], squeeze_dims=0).shape == [1]
    assert int(v1.count_nonzero(x, reduction_indices=None)) == 3


def test_ops_that_version_2_has_not():
    variable = tf.Variable(1.0)
    assert float(v1.assign_add(variable, 2.0)) == 3.0
    assert float(v1.assign_sub(variable, 0.5)) == 2.5
    assert float(v1.assign(variable, 7.0)) == 7.0
    np.testing.assert_array_equal(v1.div([-7], [2]), [-4])
    np.testing.assert_allclose(v1.div([-7.0], [2.0]), [-3.5])
    np.testing.assert_array_equal(v1.batch_gather([[1, 2], [3, 4]], [[1], [0]]), [[2], [3]])
    np.testing.assert_allclose(v1.clip_by_average_norm([3.0, 4.0], 0.5), [0.6, 0.8])
    np.testing.assert_array_equal(v1.sparse_to_dense([1], [3], 5, 9), [9, 5, 9])
    with pytest.raises(tf.errors.InvalidArgumentError):
        v1.assert_none_equal([1, 2], [1, 3], data=[1])


def test_lookups_deal_rows_out_to_tables():
    nn, tables = tf.compat.v1.nn, [tf.Variable([[0.0], [10.0], [20.0]])]
    tables += [tf.Variable([[1.0], [11.0], [21.0]]), tf.Variable([[2.0], [12.0]])]
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], np.array([0, 4, 5]), [3, 2])
    weights = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [1.0, 2.0, 3.0], [3, 2])

    def flat(value):
        return value.numpy().ravel().tolist()

    # TensorFlow's numbers.
    assert flat(nn.embedding_lookup(tables, [0, 4, 7, 2])) == [0, 11, 21, 2]
    assert flat(nn.embedding_lookup(tables, [0, 4, 7, 2], "div")) == [0, 11, 12, 20]
    assert flat(nn.embedding_lookup(tables[1], [2], "mod")) == [21]
    assert flat(nn.embedding_lookup_sparse(tables, ids, None, "mod", combiner="sum"))[0] == 11
    assert flat(nn.embedding_lookup_sparse(tables, ids, None, "div", combiner="sum"))[0] == 11
    safe = nn.safe_embedding_lookup_sparse(
        tables, ids, weights, "sum", default_id=4, partition_strategy="mod"
    )
    assert flat(safe) == [22, 11, 36]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(nn.embedding_lookup(tables, [0, 4, 7]) * [[1.0], [2.0], [3.0]])
    found = [flat(tf.convert_to_tensor(g)) for g in tape.gradient(total, tables)]
    assert found == [[1, 0, 0], [0, 2, 3], [0, 0]]
    with pytest.raises(ValueError, match="'mod' or 'div'"):
        nn.embedding_lookup(tables, [0], "other")
