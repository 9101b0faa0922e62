"""Compiled forms of ops."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch import dispatch, eager_forms, operation
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
