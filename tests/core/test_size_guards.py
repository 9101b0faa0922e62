"""Traces with symbolic sizes and their guards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from meshflow.core.values.size_guards import GuardedSizes


def trace(sizes, function):
    with sizes.record():
        specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in sizes.shapes]
        return jax.make_jaxpr(function)(*specs)


def test_sizes_that_varied_together_share_a_symbol():
    sizes = GuardedSizes([[(8, 10), (10, 3)], [(8, 12), (12, 5)]])
    assert str(sizes.shapes) == "[(8, d0), (d0, d1)]"
    assert sizes.bind([(8, 20), (20, 4)]) == {"d0": 20, "d1": 4}
    assert sizes.bind([(8, 20), (21, 4)]) is None
    assert sizes.bind([(9, 20), (20, 4)]) is None
    assert sizes.bind([(8, 20), (20, 4, 1)]) is None
    assert sizes.bind([(8, 0), (0, 4)]) is None


@pytest.mark.parametrize(
    "decide",
    [
        lambda n: n > 16,
        lambda n: n >= 17,
        lambda n: n < 17,
        lambda n: not n <= 16,
        lambda n: 2 * n > 33,
        lambda n: n // 2 > 8 or n == 17,
        lambda n: n % 5 == 0,
        lambda n: n == 24,
        lambda n: n != 24,
        lambda n: max(n, 16) > 16,
        lambda n: n in (18, 24, 30),
        lambda n: min(n, 16) == n,
        lambda n: jax.core.max_dim(n, 16) == 16,
        lambda n: jax.core.min_dim(16, n) == 16,
        lambda n: n % 2,
        lambda n: not n % 3,
        lambda n: 2 * (n // 2) == n,
        lambda n: -(-n // 4) == n // 4,
    ],
)
@pytest.mark.parametrize("hint", [12, 24, 40])
def test_trace_is_valid_only_for_equal_python_decisions(decide, hint):
    sizes = GuardedSizes([[(10,)], [(hint,)]])
    results = []

    def program(x):
        results.append(bool(decide(x.shape[0])))
        return x

    trace(sizes, program)
    for size in range(2, 50):
        if sizes.bind([(size,)]) is not None:
            assert bool(decide(size)) is results[0], size


def test_a_trace_is_valid_for_a_size_that_equals_a_constant():
    sizes = GuardedSizes([[(5, 3)], [(2, 3)]])
    trace(sizes, lambda x: x if x.shape[0] == 2 else x + 1)
    assert sizes.bind([(2, 3)]) and not sizes.bind([(5, 3)])


def test_caches_of_jax_add_no_guards():
    sizes = GuardedSizes([[(10, 3)], [(12, 3)]])
    trace(sizes, lambda x: jnp.concatenate([jnp.sin(x), jnp.ones((12, 3)) @ jnp.ones((3, 3))]))
    assert sizes.bind([(20, 3)]) and sizes.bind([(24, 3)]) and sizes.bind([(3, 3)])


def test_other_relations_of_sizes_get_another_trace():
    add = tf.function(lambda x, y: x - y, reduce_retracing=True)
    for m, n in ((5, 1), (6, 1), (1, 5), (1, 6), (7, 7), (8, 8), (9, 1), (3, 3)):
        x, y = np.arange(1.0 * m), np.arange(1.0 * n)
        np.testing.assert_array_equal(add(x, y), x - y)
    assert add.experimental_get_tracing_count() <= 6


def test_size_guards_keep_results_exact():
    table = np.random.RandomState(0).randn(40, 3).astype("float32")

    @tf.function(reduce_retracing=True)
    def double_or_gather(x):
        if x.shape[0] > 16:
            return 2.0 * x
        return tf.gather(table, tf.range(tf.shape(x)[0])) + x

    for size in (10, 12, 16, 17, 20, 9, 30, 1):
        x = np.random.RandomState(size).randn(size, 3).astype("float32")
        expected = 2 * x if size > 16 else table[:size] + x
        np.testing.assert_allclose(double_or_gather(x), expected, rtol=1e-6)


def test_code_that_needs_a_size_is_traced_for_each():
    traced = []

    @tf.function(reduce_retracing=True)
    def unrolled(x):
        traced.append(x.shape)
        return sum(x[i] for i in range(int(x.shape[0])))

    for size in (3, 4, 5, 4):
        assert unrolled(np.ones(size, "float32")).numpy() == size
    # The trace with symbols fails once.
    assert len(traced) == 4


def test_functions_with_unknown_sizes_are_traced_twice():
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    def total(x):
        return tf.reduce_sum(x * tf.cast(tf.shape(x)[0], tf.float32), axis=0)

    for size in (3, 4, 7, 1, 9):
        np.testing.assert_array_equal(total(np.ones((size, 2))), [size**2, size**2])
    # For 3 rows, for any number of rows, and for 1 row, which is broadcast.
    assert total.experimental_get_tracing_count() <= 3


def test_families_do_not_mix_objects_with_the_same_id():
    class Scale:
        __hash__ = None

        def __init__(self, factor):
            self.factor = factor

    @tf.function(reduce_retracing=True)
    def scale(x, by):
        return x * by.factor

    for factor in range(40):
        by = Scale(float(factor))
        for size in (2, 3, 4):
            assert scale(np.ones(size, "float32"), by).numpy().tolist() == [factor] * size
        del by


def test_a_dtype_among_the_arguments_is_no_array():
    cast = tf.function(lambda x, dtype: tf.cast(x, dtype), reduce_retracing=True)
    for size in (2, 3, 4):
        assert cast(np.ones(size, "float32"), np.dtype("int32")).dtype == tf.int32


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, i: tf.gather(x, i), "indices = 9 is not in [0, {})"),
        (
            lambda x, i: tf.math.invert_permutation(tf.range(tf.shape(x)[0]) + i),
            "9 is not between 0 and {}",
        ),
        (
            lambda x, i: tf.TensorArray(tf.float32, 0).unstack(x).read(i),
            "element 9 in a list with {} elements",
        ),
        (lambda x, i: x[i], "slice index 9 of dimension 0 out of bounds"),
    ],
)
def test_errors_name_the_size_of_the_call(function, message, programs):
    run = tf.function(function, reduce_retracing=True)
    for size in (3, 4, 5):
        with pytest.raises(tf.errors.InvalidArgumentError) as failure:
            run(np.ones(size, "float32"), tf.constant(9))
        assert message.format(size) in str(failure.value)
    assert programs == []


RANGES = {
    "add": lambda n, i: tf.range(n) + i,
    "radd": lambda n, i: i + tf.range(n),
    "sub": lambda n, i: tf.range(n) - i,
    "rsub": lambda n, i: i - tf.range(n),
    "mul": lambda n, i: 2 * tf.range(n) + i,
    "truediv": lambda n, i: tf.range(n) / i,
    "floordiv": lambda n, i: tf.range(n) // i,
    "mod": lambda n, i: tf.range(n) % i,
    "pow": lambda n, i: tf.range(n) ** i,
    "neg": lambda n, i: -tf.range(n) - i,
    "compare": lambda n, i: tf.range(n) >= i,
    "item": lambda n, i: tf.range(n)[i],
    "slice": lambda n, i: tf.range(n)[1:] + i,
    "two": lambda n, i: tf.range(n) + tf.range(n) * i,
    "bounds": lambda n, i: tf.range(1, n, 2) * i,
    "attribute": lambda n, i: tf.range(n).shape[0] * i,
}


@pytest.mark.parametrize("name", RANGES)
def test_operators_of_a_range_of_unknown_size(name):
    function = RANGES[name]
    run = tf.function(lambda x, i: function(tf.shape(x)[0], i), reduce_retracing=True)
    for size in (4, 5, 6):
        expected = function(tf.constant(size), tf.constant(2))
        np.testing.assert_array_equal(run(np.ones(size, "float32"), tf.constant(2)), expected)


def test_operators_of_a_range_survive_saving(tmp_path):
    module = tf.Module()
    spec = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int32)]
    module.run = tf.function(lambda x, i: tf.range(tf.shape(x)[0]) * 2 + i, input_signature=spec)
    tf.saved_model.save(module, str(tmp_path))
    restored = tf.saved_model.load(str(tmp_path))
    assert restored.run(np.ones(3, "float32"), tf.constant(9)).numpy().tolist() == [9, 11, 13]


def test_row_splits_have_one_more_element_than_rows():
    sizes = GuardedSizes([[(5,), (4, 1)], [(8,), (7, 1)]])
    assert str(sizes.shapes) == "[(d0 + 1,), (d0, 1)]"
    assert sizes.bind([(3,), (2, 1)]) == {"d0": 2}
    assert sizes.bind([(3,), (3, 1)]) is None
    calls = []
    spec = [
        tf.RaggedTensorSpec([None, None]),
        tf.TensorSpec([None, 1]),
        tf.SparseTensorSpec([None, 3]),
    ]

    @tf.function(input_signature=spec)
    def subtract(rows, targets, sparse):
        calls.append(1)
        return tf.reduce_sum(rows, 1)[:, None] - targets + tf.sparse.reduce_sum(sparse, 1)[:, None]

    for count in (4, 2, 7):
        rows = tf.RaggedTensor.from_row_lengths(tf.ones([5 * count]), [5] * count)
        ones = tf.sparse.from_dense(tf.ones([count, 3]))
        result = subtract(rows, tf.zeros([count, 1]), ones).numpy().ravel()
        assert result.tolist() == [8.0] * count
    assert len(calls) == 1


@pytest.mark.parametrize("declared", [True, False])
def test_errors_of_users_are_raised_once_and_at_every_call(declared):
    runs = []

    def check(x):
        runs.append(x.shape)
        if len(runs) in (2, 3):
            raise KeyError("mine")
        return x * 2.0

    signature = [tf.TensorSpec([None])] if declared else None
    function = tf.function(check, input_signature=signature, reduce_retracing=not declared)
    if declared:
        runs.append(None)
    else:
        function(tf.ones([3]))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            function(tf.ones([4]))
    assert len(runs) == 3
    assert function(tf.ones([4])).shape == [4]


def test_errors_of_type_checks_lead_to_exact_traces():
    @tf.function(reduce_retracing=True)
    def check(x):
        if not isinstance(x.shape[0], int):
            raise TypeError("no integer")
        return x

    assert [check(tf.ones([n])).shape[0] for n in (2, 3, 4)] == [2, 3, 4]


def test_errors_for_unknown_sizes_are_raised_once():
    runs = []

    @tf.function
    def fail(x):
        tf.boolean_mask(x, x > 0)
        runs.append(1)
        raise ValueError("mine")

    for count in (1, 2):
        with pytest.raises(ValueError, match="mine"):
            fail(tf.constant([1.0, -1.0]))
        assert len(runs) == count


def test_sizes_of_one_vary_after_the_first_call():
    shapes = []

    @tf.function(reduce_retracing=True)
    def add_row(x):
        shapes.append(x.shape)
        return x + tf.ones([1, 2])

    assert [add_row(tf.zeros([n, 2])).shape[0] for n in (1, 2, 3, 1)] == [1, 2, 3, 1]
    assert len(shapes) == 2


def test_only_vectors_can_be_row_splits():
    # The second argument could be row splits of the first. The third and fourth are indices and values of a sparse tensor.
    sizes = GuardedSizes([[(5,), (6,), (6, 2), (6,)], [(8,), (9,), (9, 2), (9,)]])
    assert str(sizes.shapes) == "[(d0,), (d1,), (d1, 2), (d1,)]"
    sizes = GuardedSizes([[(5,), (6,)], [(8,), (9,)]])
    assert str(sizes.shapes) == "[(d0,), (d0 + 1,)]"
