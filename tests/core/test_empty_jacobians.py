"""Jacobians of tensors without elements."""

import pytest

import meshflow as tf


@pytest.mark.parametrize("use_pfor", [True, False])
@pytest.mark.parametrize("traced", [True, False])
def test_jacobians_of_an_empty_batch(use_pfor, traced):
    v = tf.Variable([1.0, 2.0, 3.0])
    table = tf.Variable(tf.ones([5, 2]))
    other = tf.Variable(1.0)

    def jacobians(x, ids):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * v
            rows = tf.gather(table, ids)
        options = {"experimental_use_pfor": use_pfor}
        return (
            tape.jacobian(y, {"v": v, "x": x}, **options),
            tape.jacobian(y, other, unconnected_gradients="zero", **options),
            tape.jacobian(rows, table, **options),
            tape.batch_jacobian(y, x, **options),
            tape.jacobian(y, other, **options),
        )

    run = tf.function(jacobians) if traced else jacobians
    both, zeros, rows, batch, nothing = run(tf.zeros([0, 3]), tf.zeros([0], tf.int32))
    assert both["v"].shape == [0, 3, 3] and both["x"].shape == [0, 3, 0, 3]
    assert zeros.shape == [0, 3] and rows.shape == [0, 2, 5, 2] and batch.shape == [0, 3, 3]
    assert nothing is None
