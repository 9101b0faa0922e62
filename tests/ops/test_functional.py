"""`map_fn`, `scan`, `foldl`, `foldr`, `vectorized_map`: eagerly and inside `tf.function`."""

from __future__ import annotations

import numpy as np
import pytest

import meshflow as tf

both = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
maps = pytest.mark.parametrize(
    "map_", [tf.map_fn, tf.vectorized_map], ids=["map_fn", "vectorized_map"]
)


@both
@maps
def test_maps_over_structures(wrap, map_):
    v = tf.Variable(10.0)

    def f(a, b):
        return map_(lambda e: {"sum": e[0] + e[1]["k"] * v, "pair": (e[0], 2)}, (a, {"k": b}))

    a, b = np.arange(3, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    result = wrap(f)(tf.constant(a), tf.constant(b))
    np.testing.assert_allclose(result["sum"], a[:, None] + b * 10)
    np.testing.assert_allclose(result["pair"][0], a)
    assert result["pair"][1].numpy().tolist() == [2, 2, 2]


@both
@maps
def test_map_gradients(wrap, map_):
    v = tf.Variable(2.0)
    x = tf.constant([1.0, 2.0, 3.0])
    g = wrap(lambda x: map_(lambda e: e**3 * v, x))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = g(x)
    by_x, by_v = tape.gradient(y, [x, v])
    np.testing.assert_allclose(by_x, [6, 24, 54], rtol=1e-6)
    assert float(by_v) == pytest.approx(36.0)


@both
def test_map_fn_with_variables_signatures_and_no_elements(wrap):
    v = tf.Variable(0)

    def f(x):
        def count(e):
            v.assign_add(1)
            return tf.cast(e, tf.float32) * 0.5

        return tf.map_fn(count, x, fn_output_signature=tf.float32)

    assert wrap(f)(tf.constant([1, 2])).numpy().tolist() == [0.5, 1.0]
    assert int(v) == 2
    assert wrap(f)(tf.zeros([0], tf.int32)).shape == [0]
    assert int(v) == 2


@maps
def test_map_errors(map_):
    with pytest.raises(ValueError, match="Elements in elems must be 1"):
        map_(lambda x: x, tf.constant(1))
    with pytest.raises(ValueError, match=r"same size in dimension 0, got \[2, 3\]"):
        map_(lambda x: x, (tf.zeros([2]), tf.zeros([3])))
    with pytest.raises(TypeError, match="fn_output_signature says"):
        tf.map_fn(lambda x: x, tf.zeros([2]), fn_output_signature=tf.int32)
    with pytest.raises(TypeError, match="callable"):
        tf.map_fn(3, tf.zeros([2]))


@both
def test_scan_forwards_and_backwards(wrap):
    x = np.array([1.0, 2.0, 3.0, 4.0])

    def f(x):
        plain = tf.scan(lambda a, e: a * 0.5 + e, x)
        started = tf.scan(
            lambda a, e: (a[0] + e, a[1] * e),
            x,
            initializer=(tf.constant(0.0, tf.float64), tf.constant(1.0, tf.float64)),
        )
        backwards = tf.scan(lambda a, e: a * 0.5 + e, x, reverse=True)
        return plain, started, backwards

    def accumulate(values):
        state, result = values[0], [values[0]]
        for v in values[1:]:
            state = state * 0.5 + v
            result.append(state)
        return result

    plain, started, backwards = wrap(f)(tf.constant(x))
    np.testing.assert_allclose(plain, accumulate(x))
    np.testing.assert_allclose(started[0], np.cumsum(x))
    np.testing.assert_allclose(started[1], np.cumprod(x))
    np.testing.assert_allclose(backwards, accumulate(x[::-1])[::-1])


@both
def test_folds(wrap):
    x = tf.constant([8.0, 4.0, 2.0])
    f = wrap(
        lambda x: (
            tf.foldl(lambda a, e: a / e, x),
            tf.foldr(lambda a, e: a / e, x),
            tf.foldl(lambda a, e: a - e, x, initializer=0.0),
        )
    )
    assert [float(v) for v in f(x)] == [1.0, 2.0 / 4.0 / 8.0, -14.0]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)[0]
    np.testing.assert_allclose(tape.gradient(y, x), [1 / 8, -1 / 4, -1 / 2])


@both
def test_scan_errors_and_edges(wrap):
    assert wrap(lambda x: tf.scan(lambda a, e: a + e, x))(tf.constant([5])).numpy().tolist() == [5]
    with pytest.raises(ValueError, match="empty and there is no initializer"):
        tf.foldl(lambda a, e: a + e, tf.zeros([0]))
    with pytest.raises(
        ValueError,
        match=r"accumulated value\[0\] must keep its dtype, got int32\[\] before and float32",
    ):
        wrap(lambda x: tf.scan(lambda a, e: tf.cast(a, tf.float32), x))(tf.constant([1, 2]))


def test_vectorized_map_is_one_op_and_falls_back():
    traced = []

    def f(x):
        traced.append(1)
        return tf.reduce_sum(x)

    tf.vectorized_map(f, tf.zeros([5, 2]))
    assert traced == [1]
    v = tf.Variable(0)

    def counting(x):
        v.assign_add(1)
        return x

    tf.vectorized_map(counting, tf.zeros([3]))
    assert int(v) == 3
    with pytest.raises(ValueError, match="cannot be vectorized"):
        tf.vectorized_map(counting, tf.zeros([3]), fallback_to_while_loop=False)


@both
def test_vectorized_map_shares_elements_of_size_one(wrap):
    f = wrap(lambda x, y: tf.vectorized_map(lambda e: e[0] * e[1], (x, y)))
    assert f(tf.constant([1, 2, 3]), tf.constant([10])).numpy().tolist() == [10, 20, 30]


def test_jacobian_by_vectorized_map_of_gradients():
    @tf.function
    def per_example(x):
        def one(e):
            with tf.GradientTape() as tape:
                tape.watch(e)
                y = tf.reduce_sum(e**3)
            return tape.gradient(y, e)

        return tf.vectorized_map(one, x)

    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(per_example(tf.constant(x)), 3 * x**2)


def test_functions_with_branches_on_tensors():
    @tf.function
    def f(x):
        return tf.vectorized_map(lambda e: e * 2 if e > 1 else -e, x), tf.scan(
            lambda a, e: a if a > e else e, x
        )

    doubled, running = f(tf.constant([1, 3, 2]))
    assert doubled.numpy().tolist() == [-1, 6, 4]
    assert running.numpy().tolist() == [1, 3, 3]


def test_vectorized_map_of_python_calls():
    double = lambda x: tf.numpy_function(lambda v: v * 2, [x], tf.int32)
    assert tf.vectorized_map(double, tf.constant([1, 2])).numpy().tolist() == [2, 4]
    with pytest.raises(ValueError, match="calls Python"):
        tf.vectorized_map(double, tf.constant([1, 2]), fallback_to_while_loop=False)


def test_map_fn_over_no_elements_and_with_other_structures():
    strings = tf.map_fn(lambda x: tf.constant(""), tf.constant([]), fn_output_signature=tf.string)
    assert strings.dtype is tf.string and strings.shape == [0]
    assert tf.map_fn(lambda x: 1, tf.constant([], tf.int32)).shape == [0]
    with pytest.raises(TypeError, match="don't have the same sequence type"):
        tf.map_fn(lambda x: (x, -x), tf.constant([1]), fn_output_signature=[tf.int32] * 2)


def test_strings_are_mapped():
    strings = tf.constant(["a", "bc"])
    assert tf.map_fn(lambda s: s + "x", strings).numpy().tolist() == [b"ax", b"bcx"]
    lengths = tf.map_fn(tf.strings.length, strings, fn_output_signature=tf.int32)
    assert lengths.numpy().tolist() == [1, 2]


def test_sparse_results_of_other_sizes_are_padded():
    spec = tf.SparseTensorSpec(None, tf.float32)
    stacked = tf.map_fn(tf.sparse.eye, tf.constant([3, 2]), fn_output_signature=spec)
    expected = np.stack([np.eye(3), np.diag([1.0, 1.0, 0.0])])
    np.testing.assert_array_equal(tf.sparse.to_dense(stacked), expected)


def test_mapped_rows_may_share_a_dictionary():
    shared = {}

    def double(row):
        shared["row"] = row * 2
        return shared

    ragged = tf.ragged.constant([[1, 2], [3]])
    signature = {"row": tf.RaggedTensorSpec([None], tf.int32)}
    assert tf.map_fn(double, ragged, fn_output_signature=signature)["row"].to_list() == [
        [2, 4],
        [6],
    ]


def test_vectorized_map_over_rows_of_one_length():
    rows = tf.ragged.constant([[1, 2], [3, 4]])
    assert tf.vectorized_map(lambda row: row * 2, rows).numpy().tolist() == [[2, 4], [6, 8]]
    uniform = tf.RaggedTensor.from_uniform_row_length(tf.range(4), 2)
    total = tf.function(lambda x: tf.vectorized_map(tf.reduce_sum, x))
    assert total(uniform).numpy().tolist() == [1, 5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="different lengths"):
        tf.vectorized_map(lambda row: row, tf.ragged.constant([[1], [2, 3]]))


def test_map_fn_keeps_the_dtype_of_row_splits():
    rows = tf.ragged.constant([[[1], [2, 3]], [[4]]], row_splits_dtype=tf.int32)
    assert tf.map_fn(lambda row: row + 1, rows).row_splits.dtype is tf.int32
