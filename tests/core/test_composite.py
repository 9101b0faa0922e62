"""`IndexedSlices` and `SparseTensor` by themselves."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.values.composite import CompositeTensor


def test_rows_become_a_tensor():
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    whole = tf.convert_to_tensor(tf.IndexedSlices(rows, [0, -1, 0], dense_shape=[3, 2]))
    assert whole.numpy().tolist() == [[6, 8], [0, 0], [0, 0]]

    @tf.function
    def traced(numbers):
        return tf.convert_to_tensor(tf.IndexedSlices(rows, numbers, dense_shape=[4, 2]))

    assert traced(tf.constant([3, 1, 3])).numpy().tolist() == [[0, 0], [3, 4], [0, 0], [6, 8]]


def test_rows_out_of_range():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"segment_ids\[1\] = 7 is out of range \[0, 3\)"
    ):
        tf.convert_to_tensor(tf.IndexedSlices([[1.0], [2.0]], [0, 7], dense_shape=[3, 1]))
    with pytest.raises(ValueError, match="without dense_shape"):
        tf.convert_to_tensor(tf.IndexedSlices([[1.0]], [0]))


def test_sparse_tensor_times_and_over_dense():
    sparse = tf.SparseTensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
    assert (sparse * tf.constant([2.0, 3.0])).values.numpy().tolist() == [3, 4]
    assert (sparse / [[1.0, 4.0], [8.0, 1.0]]).values.numpy().tolist() == [0.25, 0.25]
    weights = tf.constant([[1.0, 5.0], [7.0, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        total = tf.reduce_sum((sparse * weights).values)
    assert tape.gradient(total, weights).numpy().tolist() == [[0, 1], [2, 0]]


def test_texts():
    assert str(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))) == (
        "IndexedSlices(indices=tf.Tensor([0], shape=(1,), dtype=int32), "
        "values=tf.Tensor([1.], shape=(1,), dtype=float32))"
    )
    assert str(tf.SparseTensor([[1]], [2], [3])) == (
        "SparseTensor(indices=tf.Tensor([[1]], shape=(1, 1), dtype=int64), "
        "values=tf.Tensor([2], shape=(1,), dtype=int32), "
        "dense_shape=tf.Tensor([3], shape=(1,), dtype=int64))"
    )


class Point(tf.experimental.BatchableExtensionType):
    x: tf.Tensor
    y: tf.Tensor


def make_points():
    return Point([1.0, 2.0, 3.0], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])


def as_lists(value):
    """Return the parts of a value as lists."""
    return [part.numpy().tolist() for part in tf.nest.flatten(value, expand_composites=True)]


POINT = Point.Spec(tf.TensorSpec([]), tf.TensorSpec([2]))
SPARSE = tf.SparseTensor([[0, 1], [2, 0]], [2.0, 4.0], [3, 4])
SPARSE_ROW = tf.SparseTensorSpec([4], tf.float32)


@pytest.mark.parametrize("run", [lambda f, x: f(x), lambda f, x: tf.function(f)(x)])
@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (
            lambda s: tf.map_fn(tf.sparse.reduce_sum, s, fn_output_signature=tf.float32),
            SPARSE,
            [[2.0, 0.0, 4.0]],
        ),
        (
            lambda s: tf.map_fn(lambda row: row * 2.0, s, fn_output_signature=SPARSE_ROW),
            SPARSE,
            [[[0, 1], [2, 0]], [4.0, 8.0], [3, 4]],
        ),
        (
            lambda p: tf.map_fn(lambda q: Point(q.x * 2.0, q.y), p, fn_output_signature=POINT),
            make_points(),
            [[2.0, 4.0, 6.0], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]],
        ),
        (
            lambda p: tf.map_fn(
                lambda q: q.x + tf.reduce_sum(q.y), p, fn_output_signature=tf.float32
            ),
            make_points(),
            [[3.0, 6.0, 9.0]],
        ),
        (
            lambda p: tf.vectorized_map(lambda q: Point(q.x, q.y * q.x), p),
            make_points(),
            [[1.0, 2.0, 3.0], [[1.0, 1.0], [4.0, 4.0], [9.0, 9.0]]],
        ),
    ],
)
def test_maps_over_composites(run, function, value, expected):
    assert as_lists(run(function, value)) == expected


@pytest.mark.parametrize("run", [lambda f: f, tf.function])
def test_custom_gradients_of_composites(run):
    weight = tf.Variable(3.0)

    @tf.custom_gradient
    def scale(rows, sparse):
        def differentiate(row_gradient, sparse_gradient, variables):
            return (row_gradient * 10.0, sparse_gradient * 5.0), [tf.constant(7.0)]

        return (rows * weight, sparse * 2.0), differentiate

    rows = tf.ragged.constant([[1.0, 2.0], [], [3.0]])
    with tf.GradientTape() as tape:
        tape.watch([rows.flat_values, SPARSE.values])
        doubled, sparse = run(scale)(rows[:, :1], SPARSE)
        total = tf.reduce_sum(sparse.values) + tf.reduce_sum(doubled.values) + weight
    assert doubled.to_list() == [[3.0], [], [9.0]]
    gradients = tape.gradient(total, [SPARSE.values, weight, rows.flat_values])
    dense = [tf.convert_to_tensor(g) for g in gradients]
    assert as_lists(dense) == [[5.0, 5.0], 8.0, [10.0, 0.0, 10.0]]


def test_custom_gradients_with_integer_results():
    double = tf.custom_gradient(lambda x: ((x * 2.0, tf.constant([1])), lambda dy, _: dy * 5.0))
    x = tf.constant(2.0)
    for function in (double, tf.function(double)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = function(x)
        assert float(tape.gradient(y, x)) == 5.0


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (lambda x: tf.reduce_sum(x, 1), [tf.ragged.constant([[1, 2]]), tf.ragged.constant([[5]])], [3, 5]),
        (lambda x: tf.sparse.reduce_sum(x * 2), [tf.sparse.from_dense([1, 0]), tf.sparse.from_dense([3, 4])], [2, 14]),
        (
            lambda x: tf.reduce_sum(tf.strings.length(x), 1),
            [tf.ragged.constant([["a", "b"]]), tf.ragged.constant([["cde"]])],
            [2, 3],
        ),
    ],
)  # fmt: skip
def test_concrete_functions_of_values(function, values, expected):
    concrete = tf.function(function).get_concrete_function(values[0])
    assert [concrete(value).numpy().item() for value in values] == expected


def test_division_of_sparse_tensors_by_zero():
    sparse = tf.SparseTensor([[0, 0], [1, 1]], [1.0, 2.0], [2, 2])
    dense = tf.constant([[0.0, 1.0], [1.0, 0.5]])
    divide = tf.function(lambda x, y: x / y)
    raw = lambda x, y: tf.raw_ops.SparseDenseCwiseDiv(
        sp_indices=x.indices, sp_values=x.values, sp_shape=x.dense_shape, dense=y
    )
    for function in (divide, raw, lambda x, y: x / y):
        with pytest.raises(tf.errors.InvalidArgumentError, match="zero divides"):
            function(sparse, dense)
    # A zero that divides no element is allowed.
    sparse = tf.SparseTensor([[0, 1], [1, 1]], [1.0, 2.0], [2, 2])
    assert divide(sparse, dense).values.numpy().tolist() == [1, 4]


def test_results_of_concrete_functions_of_sparse_tensors():
    double = tf.function(lambda x: (x * 2.0, tf.sparse.to_dense(x)))
    concrete = double.get_concrete_function(tf.SparseTensorSpec([3], tf.float32))
    specs = concrete.structured_outputs
    assert specs == (tf.SparseTensorSpec([3], tf.float32), tf.TensorSpec([3]))
    for value in ([1.0, 0.0, 2.0], [0.0, 3.0, 0.0]):
        assert concrete(tf.sparse.from_dense(value))[1].numpy().tolist() == value
    needy = tf.function(lambda x: tf.zeros([int(x.values.numpy().size)]))
    with pytest.raises(ValueNeededError, match="needs values of its composite arguments"):
        _ = needy.get_concrete_function(tf.SparseTensorSpec([3])).structured_outputs


class PairSpec(tf.TypeSpec):
    """The spec of a library, which derives from `tf.TypeSpec` directly."""

    value_type = property(lambda self: Pair)
    _component_specs = property(lambda self: (self.first, self.second))

    def __init__(self, first, second, label="x"):
        self.first, self.second, self.label = first, second, label

    def _serialize(self):
        return self.first, self.second, self.label

    def _to_components(self, value):
        return value.first, value.second

    def _from_components(self, components):
        return Pair(*components)


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


def test_specs_of_libraries_are_compared_and_generalized():
    make = lambda size, *label: PairSpec(tf.TensorSpec([size]), tf.TensorSpec([2, size]), *label)
    three, four = make(3), make(4)
    assert three == make(3) and hash(three) == hash(make(3)) and three != make(3, "y")
    assert three.most_specific_compatible_type(four) == make(None)
    assert three.most_specific_common_supertype([make(3, "y")]) is None
    assert three.is_subtype_of(make(None)) and not make(None).is_subtype_of(three)
    assert make(None).is_compatible_with(four) and not three.is_compatible_with(four)
    assert make(2, np.ones([2])) == make(2, np.ones([2]))
    weighted = make(2, np.ones([2])).most_specific_compatible_type(make(3, np.ones([2])))
    assert weighted == make(None, np.ones([2]))

    @tf.function
    def select(x):
        shape = x[x > 0].shape
        # The shape that users' code reads has a class of its own.
        assert type(shape) is not tf.TensorShape
        assert make(None, tf.TensorShape([None])).is_compatible_with(make(None, shape))
        return x

    select(tf.constant([1.0, -1.0]))
    assert three._flat_tensor_specs == [three.first, three.second]
    parts = three._to_tensor_list(Pair(tf.zeros([3]), tf.ones([2, 3])))
    assert three._from_tensor_list(parts).second is parts[1]
    with pytest.raises(ValueError, match="is not compatible with"):
        four._from_tensor_list(parts)
    assert repr(three).startswith("PairSpec(TensorSpec(shape=(3,)")


def test_structures_of_different_composites_differ():
    rows, sparse = tf.ragged.constant([[1], []]), tf.sparse.from_dense([[1, 0]])
    tf.nest.assert_same_structure([rows], [sparse])
    for other in (sparse, tf.constant(1)):
        with pytest.raises(ValueError, match="same nested structure"):
            tf.nest.assert_same_structure([rows], [other], expand_composites=True)


def test_variables_of_a_module_that_is_a_composite_tensor():
    class Distribution(CompositeTensor, tf.Module):
        def __init__(self):
            tf.Module.__init__(self)
            self.scale = tf.Variable(1.0)

        @property
        def _type_spec(self):
            raise NotImplementedError

    module = tf.Module()
    module.posterior = Distribution()
    assert [id(v) for v in module.variables] == [id(module.posterior.scale)]
