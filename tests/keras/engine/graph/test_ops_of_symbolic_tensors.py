"""Test `keras.ops` of symbolic tensors: created layers, and inferred shapes."""

import numpy as np
import pytest

import meshflow as tf

ops = tf.keras.ops


def test_loops_and_branches_of_symbolic_tensors_are_layers():
    x = tf.keras.Input([2, 3])
    total = ops.sum(x)
    outputs = [
        ops.map(lambda a: a * 2, x),
        ops.vectorized_map(lambda a: a * 2, x),
        ops.fori_loop(0, 2, lambda i, v: ops.add(v, i), x),
        ops.while_loop(lambda v: ops.sum(v) < 50.0, lambda v: (v * 2,), (x,))[0],
        ops.scan(lambda c, a: (c + a, c), ops.zeros([2, 3]), x)[1],
        ops.cond(total > 0, lambda: ops.ones([2]), lambda: ops.zeros([2])),
        ops.switch(ops.cast(total, "int32") - 12, [lambda v: v, lambda v: -v], x),
        ops.associative_scan(lambda a, b: a + b, x, axis=1),
    ]
    assert [o.shape.as_list() for o in outputs] == [
        [2] if n == 5 else [None, 2, 3] for n in range(8)
    ]
    ones = np.ones([2, 2, 3], "float32")
    expected = [ones * 2, ones * 2, ones + 1, ones * 8, ones * [[[0]], [[1]]], np.ones(2), ones]
    found = tf.keras.Model(x, outputs)(ones)
    for value, right in zip(found, [*expected, ones * [[1], [2]]], strict=True):
        np.testing.assert_allclose(value, right)


def test_unknown_sizes_are_inferred_from_known_sizes():
    symbolic = lambda *shape: tf.keras.Input(batch_shape=shape)
    shape = lambda x: tuple(x.shape)
    assert shape(ops.add(symbolic(None, 3), symbolic(2, None))) == (2, 3)
    assert shape(symbolic(None, 3) + symbolic(2, None)) == (2, 3)
    assert shape(ops.matmul(symbolic(None, 3), symbolic(None, 4))) == (None, 4)
    assert shape(ops.reshape(symbolic(None, 3), (3, 2))) == (3, 2)
    assert shape(ops.concatenate([symbolic(None, 3), symbolic(2, None)], 1)) == (2, None)
    with pytest.raises(ValueError, match="Incompatible shapes"):
        ops.add(symbolic(None, 3), symbolic(2, 4))
