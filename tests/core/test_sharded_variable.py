"""`ShardedVariable`: consecutive rows of one table in several variables, used as one."""

import copy
import pickle

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.runtime.bounds_checks import PADDING_INDEX


def table(sizes=(3, 2), columns=2, dtype="float32", **kwargs):
    rows, made = 0, []
    for i, size in enumerate(sizes):
        values = np.arange(rows * columns, (rows + size) * columns).reshape(size, columns)
        made.append(tf.Variable(values.astype(dtype), name=f"t/part_{i}", **kwargs))
        rows += size
    return tf.distribute.ShardedVariable(made, name="t")


WHOLE = np.arange(10, dtype="float32").reshape(5, 2)


def test_sharded_variable_reads_as_one_tensor():
    t = table()
    assert t.shape == (5, 2) and t.dtype == tf.float32 and t.name == "t" and t.trainable
    assert [v.name for v in t.variables] == ["t/part_0:0", "t/part_1:0"]
    assert [v.shape for v in t] == [(3, 2), (2, 2)]
    for whole in (t.numpy(), np.asarray(t), tf.convert_to_tensor(t).numpy(), t.value().numpy()):
        np.testing.assert_array_equal(whole, WHOLE)
    np.testing.assert_array_equal(t + 1.0, WHOLE + 1)
    np.testing.assert_array_equal(1.0 - t, 1 - WHOLE)
    np.testing.assert_array_equal(tf.matmul(t, np.ones((2, 1), "f")), WHOLE.sum(1, keepdims=True))
    np.testing.assert_array_equal(tf.gather(t, [1], axis=1), WHOLE[:, [1]])
    assert not isinstance(t, tf.Variable) and not tf.is_tensor(t)
    assert "rows of shards=[3, 2]" in repr(t)


@pytest.mark.parametrize(
    "key",
    [
        *(0, 2, 3, 4, -1, -5, (0, 1), (4, slice(None, 1)), Ellipsis, None, (Ellipsis, 0)),
        *(slice(1, 4), slice(3, 1), slice(1, 4, 2), slice(4, 0, -1), slice(None, None, -1)),
        *(slice(5, None), slice(-2, None), slice(None, None, 3), slice(-1, None, -3)),
        *((slice(1, None), 0), (slice(None), 1), slice(3, 99), slice(2, None, -2)),
        np.array([True, False, True, False, True]),
    ],
)
@pytest.mark.parametrize("sizes", [(3, 2), (1, 1, 1, 1, 1), (5,)])
def test_indices_and_slices(key, sizes):
    expected = WHOLE[key]
    found = table(sizes)[key]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_gather_reads_only_shards_with_the_rows():
    t = table()
    with tf.GradientTape() as tape:
        _ = t[1] + t[0:2][0]
    assert tape.watched_variables() == (t.variables[0],)


def test_wrong_indices():
    with pytest.raises(IndexError, match="slice index 5 of dimension 0 out of bounds"):
        table()[5]
    with pytest.raises(TypeError, match="using Tensor for indexing is not allowed"):
        table()[tf.constant(3)]


def test_assignments_reach_their_shards():
    t = table()
    assert t.assign(WHOLE * 2) is t
    np.testing.assert_array_equal(t.variables[1], WHOLE[3:] * 2)
    t.assign_add(WHOLE)
    t.assign_sub(np.ones((5, 2), "f"))
    np.testing.assert_array_equal(t, WHOLE * 3 - 1)
    with pytest.raises(ValueError, match=r"shape \(4, 2\) to the sharded variable t of shape"):
        t.assign(WHOLE[:4])
    with pytest.raises(ValueError, match="assign_add"):
        t.assign_add(1.0)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        *("scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min"),
        *("scatter_mul", "scatter_div", "batch_scatter_update"),
    ],
)
def test_scatters_are_those_of_a_variable(method, traced):
    t, v = table(), tf.Variable(WHOLE)
    rows = tf.IndexedSlices(np.full((3, 2), 3.0, "f"), np.array([4, 0, 2]))
    plain = "scatter_update" if method == "batch_scatter_update" else method
    scatter = tf.function(lambda: (getattr(t, method)(rows), None)[1])
    scatter() if traced else getattr(t, method)(rows)
    getattr(v, plain)(rows)
    np.testing.assert_array_equal(t, v)


def test_wrong_scatters():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"are not all in \[0, 5\)"):
        table().scatter_add(tf.IndexedSlices(np.ones((1, 2), "f"), np.array([7])))
    with pytest.raises(ValueError, match="indices must be 1D"):
        table().scatter_add(tf.IndexedSlices(np.ones((1, 1, 2), "f"), np.array([[1]])))
    with pytest.raises(TypeError, match="not IndexedSlices"):
        table().scatter_add(np.ones(3))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_lookups_touch_rows_only(traced, dtype):
    t = table()
    ids = tf.constant([[0, 4], [3, 3]], dtype)

    def rows_and_gradients():
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(t, ids)
            loss = tf.reduce_sum(rows * rows)
        gradients = tape.gradient(loss, t.variables)
        assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
        return rows, gradients

    call = tf.function(rows_and_gradients) if traced else rows_and_gradients
    rows, gradients = call()
    np.testing.assert_array_equal(rows, WHOLE[[[0, 4], [3, 3]]])
    dense = np.zeros((5, 2), "f")
    np.add.at(dense, [0, 4, 3, 3], 2 * WHOLE[[0, 4, 3, 3]])
    for gradient, expected in zip(gradients, (dense[:3], dense[3:]), strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)
        # Rows of the other shard are padding, with zeros.
        outside = np.asarray(gradient.indices) == PADDING_INDEX
        assert outside.any() and not np.asarray(gradient.values)[outside].any()
    assert float(tf.linalg.global_norm(gradients)) == pytest.approx(
        float(np.sqrt((dense[[0, 4]] ** 2).sum() + 2 * ((dense[3] / 2) ** 2).sum()))
    )


@pytest.mark.nan_expected
def test_lookup_of_rows_that_do_not_exist():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 5 is not in \[0, 5\)"):
        tf.nn.embedding_lookup(table(), [5])
    with pytest.raises(TypeError, match="indices must be integers"):
        tf.nn.embedding_lookup(table(), [1.0])
    rows = table()
    look_up = tf.function(lambda ids: tf.nn.embedding_lookup(rows, ids))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 5 is not in \[0, 5\)"):
        np.asarray(look_up(tf.constant([1, 5])))
    tf.debugging.disable_bounds_check()
    try:
        found = look_up(tf.constant([5, 1]))
    finally:
        tf.debugging.reset_bounds_check()
    assert np.isnan(found[0]).all() and not np.isnan(found[1]).any()
    np.testing.assert_allclose(
        tf.norm(tf.nn.embedding_lookup(table(), [1, 4], max_norm=1.0), axis=1), [1, 1], 1e-6
    )


def test_a_list_of_tables_is_looked_up_in_parts():
    tables = [tf.Variable(WHOLE[:3]), tf.Variable(WHOLE[3:])]
    with tf.GradientTape() as tape:
        rows = tf.nn.embedding_lookup(tables, [4, 1])
    np.testing.assert_array_equal(rows, WHOLE[[4, 1]])
    gradients = tape.gradient(rows, tables)
    assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
    names = [tf.constant(["a", "b"]), tf.constant(["c"])]
    assert tf.nn.embedding_lookup(names, [2, 0]).numpy().tolist() == [b"c", b"a"]


@pytest.mark.nan_expected
def test_lookup_does_not_let_nan_of_other_rows_in():
    t = table()
    t.scatter_update(tf.IndexedSlices(np.full((1, 2), np.nan, "f"), np.array([2])))
    assert not np.isnan(tf.nn.embedding_lookup(t, [0, 4])).any()


def test_wrong_shards():
    make = tf.distribute.ShardedVariable
    with pytest.raises(TypeError, match="non-empty list"):
        make([])
    with pytest.raises(TypeError, match="non-empty list"):
        make([np.ones(2)])
    with pytest.raises(ValueError, match="same dtype"):
        make([tf.Variable([1.0]), tf.Variable([1])])
    with pytest.raises(ValueError, match="except for the first axis"):
        make([tf.Variable([[1.0]]), tf.Variable([[1.0, 2.0]])])
    with pytest.raises(ValueError, match="except for the first axis"):
        make([tf.Variable(1.0), tf.Variable(2.0)])


def test_copies_have_separate_shards():
    t = table()
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        other.assign_add(np.ones((5, 2), "f"))
        np.testing.assert_array_equal(t, WHOLE)
        np.testing.assert_array_equal(other, WHOLE + 1)
        assert all(v._shard_of is other for v in other.variables)


def test_modules_track_shards():
    module = tf.Module()
    module.table, module.bias = table(), tf.Variable(1.0)
    assert len(module.variables) == len(module.trainable_variables) == 3


def test_gradients_are_taken_of_shards():
    t = table()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(t * t)
    for gradient, v in zip(tape.gradient(loss, t.variables), t.variables, strict=True):
        np.testing.assert_array_equal(gradient, 2 * v)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(t * t)
    with pytest.raises(ValueError, match="ShardedVariable"):
        tape.gradient(loss, t)


def test_functions_accept_sharded_tables():
    first, second, traced = table(), table((1, 4)), []

    @tf.function
    def step(one, both):
        traced.append(type(one))
        one.assign_add(tf.ones([5, 2]))
        both["other"].scatter_add(tf.IndexedSlices(tf.ones([1, 2]), [4]))
        return tf.gather(one, [4])

    np.testing.assert_array_equal(step(first, {"other": second}), WHOLE[4:] + 1)
    np.testing.assert_array_equal(step(second, {"other": first}), WHOLE[4:] + 2)
    np.testing.assert_array_equal(step(first, {"other": second}), WHOLE[4:] + 3)
    assert traced == [tf.distribute.ShardedVariable] * 2
    np.testing.assert_array_equal(first[:4], WHOLE[:4] + 2)
