"""`tf.TensorArray`: eagerly, in unrolled loops and in staged ones."""

from __future__ import annotations

import numpy as np
import pytest

import meshflow as tf

both = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])


@both
def test_write_read_stack_gather_concat(wrap):
    def f(x):
        ta = tf.TensorArray(tf.float32, size=3, clear_after_read=False)
        for i in range(3):
            ta = ta.write(i, x * i)
        return ta.read(2), ta.stack(), ta.gather([2, 0]), ta.concat(), ta.size()

    x = np.array([1.0, 2.0], np.float32)
    read, stacked, gathered, joined, size = wrap(f)(tf.constant(x))
    rows = np.outer([0, 1, 2], x)
    np.testing.assert_allclose(read, rows[2])
    np.testing.assert_allclose(stacked, rows)
    np.testing.assert_allclose(gathered, rows[[2, 0]])
    np.testing.assert_allclose(joined, rows.ravel())
    assert int(size) == 3


@both
def test_unstack_split_scatter(wrap):
    def f(x):
        ta = tf.TensorArray(tf.int32, size=3, clear_after_read=False).unstack(x)
        pieces = tf.TensorArray(tf.int32, 2, infer_shape=False, clear_after_read=False).split(
            x, [1, 2]
        )
        placed = tf.TensorArray(tf.int32, size=3).scatter([2, 0, 1], x)
        return ta.read(1), pieces.read(1), pieces.concat(), placed.stack(), ta.write(0, 9).stack()

    one, piece, joined, placed, changed = wrap(f)(tf.constant([1, 2, 3]))
    assert (int(one), piece.numpy().tolist(), joined.numpy().tolist()) == (2, [2, 3], [1, 2, 3])
    assert placed.numpy().tolist() == [2, 3, 1]
    assert changed.numpy().tolist() == [9, 2, 3]


@both
def test_dynamic_size_grows(wrap):
    def f(x):
        ta = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
        for i in range(4):
            ta = ta.write(i, x + i)
        return ta.stack()

    assert wrap(f)(tf.constant(1)).numpy().tolist() == [1, 2, 3, 4]


def test_eager_arrays_change_in_place():
    ta = tf.TensorArray(tf.int32, size=1)
    ta.write(0, 5)
    assert int(ta.read(0)) == 5
    assert len(ta) == 1 and ta.dtype == tf.int32 and ta.element_shape == []


@pytest.mark.parametrize(
    "options", [{"size": 5}, {"size": 5, "element_shape": [2]}, {"size": 0, "dynamic_size": True}]
)
def test_staged_loop_writes_every_element(options):
    @tf.function
    def rnn(x):
        ta = tf.TensorArray(tf.float32, **options)
        state = tf.zeros([2])
        for i in tf.range(5):
            state = state * 0.5 + x[i]
            ta = ta.write(i, state)
        return ta.stack()

    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    state, expected = np.zeros(2), []
    for row in x:
        state = state * 0.5 + row
        expected.append(state)
    np.testing.assert_allclose(rnn(tf.constant(x)), expected)


def test_long_dynamic_array_and_enumerate():
    @tf.function
    def f(x):
        ta = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(100):
            ta = ta.write(i, x * tf.cast(i, tf.float32))
        tb = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i, row in enumerate(ta.stack()):
            tb = tb.write(i, row * 2)
        return tb.stack()

    np.testing.assert_allclose(f(tf.constant(3.0)), np.arange(100) * 6.0)


def test_writes_in_while_loops_branches_and_reads_at_unknown_indices():
    @tf.function
    def f(n):
        ta = tf.TensorArray(tf.int32, size=6)
        i = 0
        while i < n:
            if i % 2 == 0:
                ta = ta.write(i, i * 10)
            i += 1
        total = 0
        for k in tf.range(n):
            total += ta.read(k)
        return ta.stack(), total

    stacked, total = f(tf.constant(5))
    assert stacked.numpy().tolist() == [0, 0, 20, 0, 40, 0]
    assert int(total) == 60


def test_as_a_variable_of_while_loop():
    @tf.function
    def f(x):
        ta = tf.TensorArray(tf.float32, size=3, element_shape=[])
        _, ta = tf.while_loop(
            lambda i, ta: i < 3, lambda i, ta: (i + 1, ta.write(i, x * x)), (0, ta)
        )
        return ta.stack()

    assert f(tf.constant(2.0)).numpy().tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("staged", [False, True])
def test_gradients(staged):
    def f(x):
        ta = tf.TensorArray(tf.float64, size=4, element_shape=[])
        state = x
        for i in tf.range(4) if staged else range(4):
            state = state * x
            ta = ta.write(i, state)
        return tf.reduce_sum(ta.stack() * tf.constant([1.0, 2.0, 3.0, 4.0], tf.float64))

    x = tf.constant(1.3, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(f)(x)
    powers = np.array([2, 3, 4, 5])
    expected = np.sum(np.arange(1, 5) * powers * 1.3 ** (powers - 1))
    assert float(tape.gradient(y, x)) == pytest.approx(expected, rel=1e-12)


def test_errors():
    ta = tf.TensorArray(tf.float32, size=2)
    with pytest.raises(ValueError, match="dtype is float32 but the value written has dtype int32"):
        ta.write(0, tf.constant(1))
    ta = ta.write(0, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"Incompatible shape for value \(3,\), expected \(2,\)"):
        ta.write(1, [1.0, 2.0, 3.0])
    with pytest.raises(
        tf.errors.OutOfRangeError, match="write to index 2 but array is not resizeable"
    ):
        ta.write(2, [1.0, 2.0])
    with pytest.raises(tf.errors.OutOfRangeError, match="read from index 5"):
        ta.read(5)
    with pytest.raises(ValueError, match="shape of the elements is not known"):
        tf.TensorArray(tf.int32, size=2).stack()
    with pytest.raises(ValueError, match="do not sum to 3 rows"):
        tf.TensorArray(tf.int32, size=2).split([1, 2, 3], [1, 1])
    with pytest.raises(ValueError, match="handle"):
        tf.TensorArray(tf.int32, handle=1)

    @tf.function
    def unknown(n):
        ta = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
        i = 0
        while i < n:
            ta = ta.write(i, i)
            i += 1
        return ta.stack()

    assert unknown(tf.constant(3)).numpy().tolist() == [0, 1, 2]


def test_elements_that_were_not_written_are_zeros():
    ta = tf.TensorArray(tf.float32, size=3).write(1, [1.0, 2.0])
    np.testing.assert_allclose(ta.stack(), [[0, 0], [1, 2], [0, 0]])
    np.testing.assert_allclose(ta.read(2), [0, 0])
    assert tf.TensorArray(tf.int32, size=0).stack().shape == [0]


def test_reading_clears_as_in_tensorflow():
    ta = tf.TensorArray(tf.float32, size=2).unstack([1.0, 2.0])
    assert float(ta.read(0)) == 1
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="index 0 twice because it was cleared"
    ):
        ta.read(0)
    assert ta.stack().numpy().tolist() == [0, 2] and ta.gather([0]).numpy().tolist() == [0]
    ta = ta.write(0, 4.0)
    assert float(ta.read(0)) == 4 and float(ta.read(1)) == 2
    kept = tf.TensorArray(tf.float32, size=1, clear_after_read=False).write(0, 3.0)
    assert float(kept.read(0)) == float(kept.read(0)) == 3


def test_functions_that_run_op_by_op_do_not_clear():
    @tf.function
    def twice(x):
        ta = tf.TensorArray(tf.float32, size=2).unstack(x)
        return tf.boolean_mask(ta.read(0) + ta.read(0) + x, x > 1)

    assert twice(tf.constant([1.0, 2.0])).numpy().tolist() == [4]


def write_each(values, make=lambda v: v, dtype=tf.string):
    array = tf.TensorArray(dtype, size=0, dynamic_size=True)
    for v in values:
        if make(v) != make(values[1]):
            array = array.write(array.size(), v)
    return array.stack(), array.size()


def write_in_branches(x):
    array = tf.TensorArray(tf.string, size=0, dynamic_size=True)
    if x > 0:
        array = array.write(0, "a").write(1, "b")
    return array.size(), array.stack()


def join_in_loops(words):
    array = tf.TensorArray(tf.string, size=3)
    for i in tf.range(3):
        array = array.write(i, words[i])
    text = tf.constant("")
    for i in tf.range(3):
        text += array.read(2 - i)
    return text, array.gather([1, 1])


def use_parts(words):
    array = tf.TensorArray(tf.string, 0, True, infer_shape=False, element_shape=[None])
    array = array.write(0, words[:2]).write(1, words)
    other = tf.TensorArray(tf.string, size=0, dynamic_size=True).unstack(words)
    if tf.size(words) > 2:
        other = other.write(other.size(), "end")
    last = other.read(other.size() - 1)
    return array.concat(), last, tf.TensorArray(tf.string, 3).scatter([2, 0, 1], words).stack()


def grow_in_cond(x):
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    array = tf.cond(x > 0, lambda: array.write(0, x), lambda: array.write(0, x * 2).write(1, x))
    return array.size(), array.stack()


def grow_in_while_loop(n):
    array = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
    _, array = tf.while_loop(
        lambda i, _: i < n, lambda i, a: (i + 1, a.write(a.size(), i * 2)), [0, array]
    )
    return array.size(), array.gather([0, 1])


def write_beyond_a_stacked_array(x):
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True).unstack(x)
    return array.write(3, 9.0).stack()


WORDS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        (write_each, WORDS, [[b"a", b"c"], 2]),
        (lambda v: write_each(v, dtype=tf.float32), [1.0, 2.0, 3.0], [[1, 3], 2]),
        (write_in_branches, 1, [2, [b"a", b"b"]]),
        (write_in_branches, -1, [0, []]),
        (join_in_loops, WORDS, [b"cba", [b"b", b"b"]]),
        (use_parts, WORDS, [[b"a", b"b", b"a", b"b", b"c"], b"end", [b"b", b"c", b"a"]]),
        (grow_in_cond, 3.0, [1, [3]]),
        (grow_in_cond, -3.0, [2, [-6, -3]]),
        (grow_in_while_loop, 4, [4, [0, 2]]),
        (write_beyond_a_stacked_array, [1.0, 2.0], [[1, 2, 0, 9]]),
    ],
)
def test_sizes_that_depend_on_values_and_strings(function, argument, expected):
    """The expected values are those of TensorFlow 2.21."""
    results = tf.nest.flatten(tf.function(function)(tf.constant(argument)))
    values = [np.asarray(r.numpy()).tolist() for r in results]
    assert values == expected
    if function not in (write_each, join_in_loops):  # Eager tensors use other code.
        eager = tf.nest.flatten(function(tf.constant(argument)))
        assert [np.asarray(r.numpy()).tolist() for r in eager] == expected
