"""Compiled forms of ops."""

import contextlib

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch import accepted_calls, dispatch, eager_forms, operation
from meshflow.core.values.tensor import TensorLike


def test_ops_forget_the_oldest_of_too_many_forms(monkeypatch):
    monkeypatch.setattr(operation, "MAX_CACHED_FORMS", 3)
    op = operation.Op("plus", lambda operands, static: operands[0] + static[0])
    for number in range(5):
        assert op.get_eager((number,))(1) == 1 + number
        assert op.get_gradient_op((number,), (True,)) is op.get_gradient_op((number,), (True,))
        assert op.get_residual_function((number,), (True,)) is op.get_residual_function(
            (number,), (True,)
        )
    assert list(op._eager_forms) == [(2,), (3,), (4,)]
    assert len(op._gradient_ops) == len(op._residual_functions) == 3


def test_annotations_that_python_evaluated_are_refused():
    def double(x: TensorLike, name: str | None = None):
        return x + x

    with pytest.raises(TypeError, match=r"Op twice .*from __future__ import annotations"):
        dispatch.op(double, name="twice")


def count_traces(monkeypatch, run):
    traces = []
    make = eager_forms._InterpretedForm.__init__
    monkeypatch.setattr(
        eager_forms._InterpretedForm,
        "__init__",
        lambda form, closed, tree: (traces.append(closed), make(form, closed, tree))[1],
    )
    for size in range(3, 9):
        run(size)
    return len(traces)


def add_segments(size):
    with tf.GradientTape() as tape:
        rows = tf.Variable(np.ones((2 * size, 3), np.float32))
        total = tf.math.unsorted_segment_sum(rows * 2.0, np.arange(2 * size) % size, size)
        loss = tf.reduce_sum(total * tf.range(float(size))[:, None])
    expected = np.broadcast_to(2.0 * (np.arange(2 * size) % size)[:, None], (2 * size, 3))
    np.testing.assert_array_equal(tape.gradient(loss, rows), expected)
    assert total.shape == (size, 3)


def multiply_sparse(size):
    product = tf.sparse.sparse_dense_matmul(tf.sparse.eye(size), tf.ones([size, 2]))
    np.testing.assert_array_equal(product, np.ones((size, 2)))
    np.testing.assert_array_equal(
        tf.sparse.reduce_sum(tf.sparse.eye(size, size + 1), 1), [1] * size
    )


def join(size):
    rows = [np.ones((k + 1, 2)) for k in range(size)]
    assert tf.concat(rows, 0).shape == (size * (size + 1) // 2, 2)
    assert tf.stack(rows[:1] * size, 1).shape == (1, size, 2)


@pytest.mark.parametrize("run", [add_segments, multiply_sparse, join])
def test_sizes_among_static_arguments_need_few_traces(monkeypatch, run):
    operation.clear_op_caches()
    assert count_traces(monkeypatch, run) <= (0 if run is join else 20)


@pytest.mark.parametrize("uses_tape", [False, True])
def test_repeated_calls_distinguish_the_types_and_order_of_arguments(uses_tape):
    x, y = tf.constant([[1.0, -2.0], [3.0, 4.0]]), tf.constant([[5.0, 0.0], [1.0, 2.0]])
    tape = tf.GradientTape() if uses_tape else contextlib.nullcontext()
    with tape:
        for _ in range(2):
            np.testing.assert_array_equal(tf.subtract(x, y), tf.subtract(y=y, x=x))
            np.testing.assert_array_equal(tf.subtract(y=x, x=y), y.numpy() - x.numpy())
            np.testing.assert_array_equal(tf.subtract(y=x, x=x), np.zeros([2, 2]))
            assert np.signbit(tf.multiply(tf.abs(x), -0.0)).all()
            assert not np.signbit(tf.multiply(tf.abs(x), 0.0)).any()
            np.testing.assert_array_equal(tf.reduce_sum(x, 1), [-1, 7])
            with pytest.raises(TypeError):
                tf.reduce_sum(x, 1.0)
            np.testing.assert_array_equal(tf.reduce_sum(x, tf.constant(0)), [4, 2])
            np.testing.assert_array_equal(tf.reduce_sum(x, tf.constant(1)), [-1, 7])
            np.testing.assert_array_equal(tf.concat([x, y], 0)[2:], y)
            np.testing.assert_array_equal(tf.concat([y, x], 0)[2:], x)
            np.testing.assert_array_equal(tf.concat([x, [[7.0, 8.0]]], 0)[2], [7, 8])
            np.testing.assert_array_equal(tf.broadcast_to(x[:1], y.shape), [[1, -2]] * 2)


def test_repeated_calls_compute_gradients_of_the_present_tensors():
    for value in (1.0, 2.0):
        x = tf.constant([value, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = tf.concat([x * 2, tf.maximum(x, 2.5)], 0)
        np.testing.assert_array_equal(tape.gradient(z, x), [2, 3])


def test_repeated_calls_forget_the_calls_of_too_many_numbers(monkeypatch):
    monkeypatch.setattr(accepted_calls, "_MAX_CALLS", 3)
    x = tf.constant([1.0, 2.0])
    for _ in range(2):
        for number in range(7):
            np.testing.assert_array_equal(tf.add(x, number), [1 + number, 2 + number])


def test_errors_of_repeated_calls_are_explained():
    x = tf.constant([[1.0, 2.0]])
    for _ in range(2):
        assert tf.reduce_max(x, axis=1).shape == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="dimension 1"):
            tf.reduce_max(x[0], axis=1)
