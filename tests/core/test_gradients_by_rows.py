"""Gradients of tables that rows were picked from: `tf.IndexedSlices`."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

IDS = [[1, 2], [2, 5]]


@pytest.fixture
def table():
    return tf.Variable(np.arange(18, dtype=np.float32).reshape(6, 3))


def gradient(function, source, compiled=False):
    def run():
        with tf.GradientTape() as tape:
            tape.watch(source)
            y = function(source)
        return tape.gradient(y, source)

    return tf.function(run)() if compiled else run()


def dense(function, source):
    """The gradient where the table is multiplied by one first, so that it is a tensor."""
    return gradient(lambda t: function(t * 1.0), source)


BY_ROWS = {
    "gather": lambda t: tf.reduce_sum(tf.gather(t, IDS) ** 2),
    "one row": lambda t: tf.reduce_sum(tf.gather(t, 4) ** 2),
    "lookup": lambda t: tf.reduce_sum(tf.nn.embedding_lookup(t, IDS, max_norm=2.0)),
    "gather_nd": lambda t: tf.reduce_sum(tf.gather_nd(t, [[0], [0]]) ** 2),
    "two lookups": lambda t: tf.reduce_sum(tf.gather(t, [3, 1]) ** 2) * tf.gather(t, [1])[0, 0],
    "negated and cast": lambda t: tf.reduce_sum(tf.gather(-tf.cast(t, tf.float64), IDS) ** 2),
}
WHOLE = {
    "other axis": lambda t: tf.reduce_sum(tf.gather(t, [0, 0], axis=1) ** 2),
    "elements": lambda t: tf.reduce_sum(tf.gather_nd(t, [[0, 1]]) ** 2),
    "dense use as well": lambda t: tf.reduce_sum(tf.gather(t, IDS)) + tf.reduce_sum(t * t),
    "scaled": lambda t: tf.reduce_sum(tf.gather(2.0 * t, IDS)),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("what", BY_ROWS)
def test_picked_rows_have_gradients_by_rows(table, what, compiled):
    found = gradient(BY_ROWS[what], table, compiled)
    assert isinstance(found, tf.IndexedSlices) and found.dense_shape.numpy().tolist() == [6, 3]
    assert found.values.shape[0] == found.indices.shape[0] and found.dtype == tf.float32
    assert_close(found, dense(BY_ROWS[what], table))


@pytest.mark.parametrize("what", WHOLE)
def test_other_uses_have_dense_gradients(table, what):
    found = gradient(WHOLE[what], table)
    assert isinstance(found, tf.Tensor)
    assert_close(found, dense(WHOLE[what], table))


def test_rows_are_in_order_of_use(table):
    found = gradient(BY_ROWS["two lookups"], table)
    assert found.indices.numpy().tolist() == [3, 1, 1]
    watched = tf.constant([[1.0], [2.0]])
    of_tensor = gradient(lambda t: tf.reduce_sum(tf.gather(t, [1, 1])), watched)
    assert of_tensor.values.numpy().tolist() == [[1.0], [1.0]]


def test_layers_and_mixed_precision():
    layer = tf.keras.layers.Embedding(6, 3, dtype="mixed_float16")
    layer.build(None)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(layer(tf.constant(IDS)))
    found = tape.gradient(y, layer.embeddings)
    assert isinstance(found, tf.IndexedSlices)
    assert (found.dtype, found.indices.numpy().tolist()) == (tf.float32, [1, 2, 2, 5])


def test_second_order_and_jacobians(table):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.gather(table, [1, 1]) ** 3)
        z = tf.reduce_sum(tape.gradient(y, table))
    second = outer.gradient(z, table)
    assert isinstance(second, tf.IndexedSlices)
    assert_close(tf.convert_to_tensor(second)[1], 12 * table[1])
    with tf.GradientTape() as tape:
        rows = tf.gather(table, [4])
    jacobian = tape.jacobian(rows, table)
    assert jacobian.shape == (1, 3, 6, 3) and float(jacobian[0, 2, 4, 2]) == 1.0


def test_custom_gradients_get_tensors(table):
    @tf.custom_gradient
    def twice(x):
        return 2.0 * x, lambda dy: 2.0 * dy[:, :1] * tf.ones([1, 3])

    found = gradient(lambda t: tf.reduce_sum(tf.gather(twice(t), IDS)), table)
    assert_close(found[:, 0], [0, 2, 4, 0, 0, 2])


def test_functions_accept_and_return_row_gradients(table):
    traces = []

    @tf.function
    def halved(pairs):
        traces.append(1)
        return [tf.IndexedSlices(0.5 * g.values, g.indices, g.dense_shape) for g, _ in pairs]

    for factor in (1.0, 3.0):
        slices = gradient(lambda t, k=factor: tf.reduce_sum(k * tf.gather(t, IDS)), table)
        (found,) = halved([(slices, "table")])
        assert isinstance(found, tf.IndexedSlices) and found.shape == (6, 3)
        assert_close(tf.convert_to_tensor(found)[2], [factor] * 3)
    assert len(traces) == 1
    step = tf.function(lambda: gradient(BY_ROWS["gather"], table))
    spec = step.get_concrete_function().structured_outputs
    assert spec == tf.IndexedSlicesSpec([6, 3], tf.float32, tf.int32, tf.int32, [4])


def test_inside_a_branch(table):
    @tf.function
    def chosen(condition):
        if condition:
            slices = gradient(BY_ROWS["gather"], table)
        else:
            slices = gradient(lambda t: tf.reduce_sum(tf.gather(t, IDS)), table)
        return slices

    assert_close(chosen(tf.constant(False)).values, np.ones((4, 3)))
    graph = tf.function(lambda: tf.gradients(tf.reduce_sum(tf.gather(table, IDS)), table)[0])
    assert_close(graph().values, np.ones((4, 3)))


def test_consumers_of_row_gradients(table):
    slices = gradient(lambda t: 3.0 * tf.reduce_sum(tf.gather(t, [1, 1])), table)
    (clipped, none), norm = tf.clip_by_global_norm([slices, None], 3.0 * 6**0.5 / 2)
    assert float(norm) == pytest.approx(3.0 * 6**0.5) and none is None
    assert_close(clipped.values, np.full((2, 3), 1.5))
    assert_close(tf.clip_by_norm(slices, 6**0.5).values, np.ones((2, 3)))
    assert_close(
        tf.clip_by_value(t=slices, clip_value_min=0.0, clip_value_max=2.0).values[0], [2] * 3
    )
    for same in (
        tf.identity(slices),
        tf.scalar_mul(1.0, slices),
        -(-slices),
        tf.cast(slices, tf.float32),
    ):
        assert isinstance(same, tf.IndexedSlices)
        assert_close(same, tf.convert_to_tensor(slices))
    assert_close(tf.add_n([slices, slices])[1], [12] * 3)
    assert_close(table + slices, table.numpy() + tf.convert_to_tensor(slices).numpy())
    assert tf.is_tensor(slices) and slices.consumers() == [] and "CPU" in slices.device


def test_specs_of_rows():
    spec = tf.IndexedSlicesSpec([None, 2], indices_dtype=tf.int32)
    rows = tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([3]), tf.constant([9, 2]))
    assert spec.is_compatible_with(rows) and spec.value_type is tf.IndexedSlices
    assert not spec.is_compatible_with(tf.IndexedSlices(tf.zeros([1, 3]), tf.constant([3]), [9, 3]))
    assert not spec.is_compatible_with(tf.zeros([1, 2]))
    exact = tf.type_spec_from_value(rows)
    assert exact == tf.IndexedSlicesSpec((9, 2), tf.float32, tf.int32, tf.int32, (1,))
    assert hash(exact) == hash(rows._type_spec) and exact != spec and exact.dtype == tf.float32
    assert repr(exact).startswith("IndexedSlicesSpec(TensorShape([9, 2]), tf.float32")
