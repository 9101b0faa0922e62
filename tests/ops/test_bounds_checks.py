"""Indices out of range and divisions by zero raise TensorFlow's errors, eagerly and in compiled functions."""

import jax
import numpy as np
import pytest

import meshflow as tf
from capabilities import CAPABILITIES, needs
from meshflow.core.functions.early_checks import EarlyChecks
from meshflow.core.runtime import bounds_checks
from meshflow.core.runtime.bounds_checks import BoundsCheck, BoundsChecking, bounds_check_p

keras = tf.keras
pytestmark = pytest.mark.nan_expected
ROW = np.array([10, 20, 30], np.int32)
TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
V = np.array([1, 2, 3], np.float32)


@pytest.fixture(autouse=True)
def default_checks():
    yield
    tf.debugging.reset_bounds_check()


def i32(*values):
    return np.array(values[0] if len(values) == 1 else values, np.int32)


def scatter(kind, tensor=V):
    return lambda i: getattr(tf, f"tensor_scatter_nd_{kind}")(
        tensor, i, np.array([9, 9], tensor.dtype)
    )


def multiply(**flags):
    b = tf.ones([2, 2] if "adjoint_a" in flags else [2, 3] if flags else [3, 2])
    return lambda i: tf.sparse.sparse_dense_matmul(make_sparse(i), b, **flags)


def make_sparse(indices, shape=(2, 3)):
    return tf.SparseTensor(tf.cast(indices, tf.int64), tf.ones([2]), shape)


def apply_rows(make_optimizer):
    v = tf.Variable(tf.ones([3, 2]))
    optimizer = make_optimizer()

    def update(i):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([2, 2]), i), v)])
        return v.value()

    return update


OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"]
UNUSED_COLUMN, UNUSED_ROW = i32([0, 0], [1, 3]), i32([0, 0], [2, 1])
OUTSIDE = "indices[1] = [2,1] is out of bounds: need 0 <= index < [2,3]"
INVALID_INDICES = "Indices are not valid (out of bounds).  Shape: [2,3]"

# Operation, indices, and TensorFlow 2.21's message on CPUs, which is equal in functions.
RAISES = {
    "gather": (
        lambda i: tf.gather(ROW, i),
        i32([0, 1], [2, 7]),
        "indices[1,1] = 7 is not in [0, 3)",
    ),
    "negative": (lambda i: tf.gather(ROW, i), i32(0, -1), "indices[1] = -1 is not in [0, 3)"),
    "scalar": (lambda i: tf.gather(ROW, i), i32(3), "indices = 3 is not in [0, 3)"),
    "int64": (lambda i: tf.gather(ROW, i), np.array([9]), "indices[0] = 9 is not in [0, 3)"),
    "uint8": (
        lambda i: tf.gather(ROW, i),
        np.array([200], np.uint8),
        "indices[0] = 200 is not in [0, 3)",
    ),
    "axis": (lambda i: tf.gather(TABLE, i, axis=1), i32(0, 4), "indices[1] = 4 is not in [0, 4)"),
    "batch": (
        lambda i: tf.gather(TABLE, i, batch_dims=1),
        i32([3, 1], [0, 4], [1, 3]),
        "indices[1,1] = 4 is not in [0, 4)",
    ),
    "lookup": (
        lambda i: tf.nn.embedding_lookup(tf.ones([5, 2]), i),
        i32([0, 1], [2, 3], [4, 5]),
        "indices[2,1] = 5 is not in [0, 5)",
    ),
    "gather_nd": (
        lambda i: tf.gather_nd(TABLE, i),
        i32([0, 0], [1, 4]),
        "indices[1] = [1, 4] does not index into param shape [3,4]",
    ),
    "gather_nd rows": (
        lambda i: tf.gather_nd(TABLE, i),
        i32([[[0], [5]]]),
        "indices[0,1] = [5] does not index into param shape [3,4]",
    ),
    "gather_nd vector": (
        lambda i: tf.gather_nd(TABLE, i),
        i32(0, 9),
        "indices = [0, 9] does not index into param shape [3,4]",
    ),
    "scatter_nd": (
        lambda i: tf.scatter_nd(i, V[:2], [3, 4]),
        i32([0, 0], [1, 4]),
        "indices[1] = [1, 4] does not index into shape [3,4]",
    ),
    **{
        kind: (
            scatter(kind),
            i32([0], [last]),
            f"indices[1] = [{last}] does not index into shape [3]",
        )
        for kind, last in zip(
            ("update", "add", "sub", "max", "min"), (4, 3, -1, -2, 9), strict=True
        )
    },
    "integers": (
        scatter("add", ROW),
        i32([0], [3]),
        "indices[1] = [3] does not index into shape [3]",
    ),
    "floordiv": (lambda d: ROW // d, i32(0, 1, 2), "Integer division by zero"),
    "floormod": (lambda d: ROW % d, i32(0, 1, 2), "Integer division by zero"),
    "uint8 division": (
        lambda d: tf.math.floordiv(np.array([1, 2], np.uint8), d),
        np.array([1, 0], np.uint8),
        "Integer division by zero",
    ),
    "pow": (
        lambda p: tf.pow(i32(2, 3), p),
        i32(-1, 2),
        "Integers to negative integer powers are not allowed",
    ),
    **{
        kind: (
            lambda i, kind=kind: getattr(tf.math, f"unsorted_segment_{kind}")(V, i, 2),
            i32(1, 0, 2),
            "segment_ids[2] = 2 is out of range [0, 2)",
        )
        for kind in ("sum", "mean", "prod", "sqrt_n")
    },
    "segments of a matrix": (
        lambda i: tf.math.unsorted_segment_max(TABLE[:2, :2], i, 2),
        i32([1, 0], [1, 5]),
        "segment_ids[1,1] = 5 is out of range [0, 2)",
    ),
    "sorted segments": (
        lambda i: tf.math.segment_sum(V, i),
        i32(1, 0, 1),
        "segment ids are not increasing",
    ),
    "slice": (
        lambda b: tf.slice(TABLE, b, [2, 2]),
        i32(2, 0),
        "Expected size[0] in [0, 1], but got 2",
    ),
    "slice before": (
        lambda b: tf.slice(TABLE, b, [2, 2]),
        i32(0, -1),
        "Expected begin[1] in [0, 4], but got -1",
    ),
    "sequence": (
        lambda n: tf.reverse_sequence(TABLE, n, seq_axis=1),
        i32(1, 5, 1),
        "seq_lens(1) > input.dims(1)",
    ),
    "negative sequence": (
        lambda n: tf.reverse_sequence(TABLE, n, seq_axis=1),
        i32(1, 1, -1),
        "seq_lens(2) < 0",
    ),
    "unravel": (
        lambda i: tf.unravel_index(i, [2, 2]),
        i32([4]),
        "index is out of bound as with dims",
    ),
    "stitch": (
        lambda i: tf.dynamic_stitch([i], [V[:2]]),
        i32(0, -1),
        "indices[1] is out of range",
    ),
    "single row": (
        lambda i: tf.gather(TABLE[:1], i),
        i32(0, 1),
        "indices[1] = 1 is not in [0, 1)",
    ),
    "label": (
        lambda y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, TABLE[:2, :2]),
        i32(5, 0),
        "Received a label value of 5 which is outside the valid range of [0, 2).",
    ),
    "permutation": (lambda i: tf.math.invert_permutation(i), i32(0, 2), ""),
    "class": (lambda i: tf.math.confusion_matrix([0, 1], i, 2), i32(0, 2), "`predictions`"),
    "count": (lambda i: tf.math.bincount(i, minlength=3, maxlength=3), i32(0, -1), "non-negative"),
    "sparse matmul k": (multiply(), UNUSED_COLUMN, "k (3) from index[1,1] out of bounds (>=3)"),
    "sparse matmul m": (multiply(), i32([-1, 0], [1, 1]), "m (-1) from index[0,0] out of bounds"),
    "sparse adjoint": (
        multiply(adjoint_a=True),
        UNUSED_COLUMN,
        "m (3) from index[1,1] out of bounds (>=3)",
    ),
    "dense adjoint": (multiply(adjoint_b=True), UNUSED_ROW, "m (2) from index[1,0] out of bounds"),
    "dense by sparse": (
        lambda i: tf.sparse.sparse_dense_matmul(tf.ones([2, 2]), make_sparse(i)),
        UNUSED_ROW,
        "k (2) from index[1,0] out of bounds (>=2)",
    ),
    "to_dense": (lambda i: tf.sparse.to_dense(make_sparse(i)), UNUSED_ROW, OUTSIDE),
    "to_dense unordered": (
        lambda i: tf.sparse.to_dense(make_sparse(i), validate_indices=False),
        UNUSED_COLUMN,
        INVALID_INDICES,
    ),
    "sparse vector": (
        lambda i: tf.sparse.to_dense(make_sparse(i, [4])),
        i32([0], [4]),
        "indices[1] = [4] is out of bounds: need 0 <= index < [4]",
    ),
    "sparse and dense": (
        lambda i: tf.sparse.add(make_sparse(i), tf.ones([2, 3])),
        UNUSED_COLUMN,
        "invalid index on dimension 1: a_indices(1,1) = 3, dense tensor shape: 2 3",
    ),
    "sparse by dense": (
        lambda i: (make_sparse(i) * tf.ones([2, 3])).values,
        UNUSED_ROW,
        "Provided indices are out-of-bounds w.r.t. dense side with broadcasted shape",
    ),
    "sparse maximum": (
        lambda i: tf.sparse.maximum(make_sparse(i), make_sparse(i)).indices,
        UNUSED_COLUMN,
        "Sparse index tuple indices[1, :] = [1, 3] is out of bounds",
    ),
    "empty rows": (
        lambda i: tf.sparse.fill_empty_rows(make_sparse(i), 0.0)[0].indices,
        UNUSED_ROW,
        "indices(1, 0) is invalid: 2 >= 2",
    ),
    "indicator": (
        lambda i: tf.sparse.to_indicator(tf.SparseTensor([[0, 0], [1, 1]], i, [2, 2]), 3),
        np.array([1, 7]),
        INVALID_INDICES,
    ),
    "slices": (
        lambda i: tf.convert_to_tensor(tf.IndexedSlices(TABLE[:2], i, [3, 4])),
        i32(0, 3),
        "segment_ids[1] = 3 is out of range [0, 3)",
    ),
    **{
        name: (
            apply_rows(getattr(keras.optimizers, name)),
            i32(0, last),
            f"indices[1] = {last} is not in [0, 3)",
        )
        for name, last in zip(OPTIMIZERS, [3, -1] * 5, strict=False)
    },
    "crop height": (
        lambda i: tf.image.crop_to_bounding_box(tf.ones([4, 6, 1]), i[0], i[1], 2, 2),
        i32(3, 0),
        "height must be >= target + offset.",
    ),
    "crop width": (
        lambda i: tf.image.crop_to_bounding_box(tf.ones([2, 4, 6, 1]), i[0], i[1], 2, 2),
        i32(0, 5),
        "width must be >= target + offset.",
    ),
    "crop negative": (
        lambda i: tf.image.crop_to_bounding_box(tf.ones([4, 6, 1]), i[0], i[1], 2, 2),
        i32(0, -1),
        "offset_width must be >= 0.",
    ),
    "crop sizes": (
        lambda i: tf.image.crop_to_bounding_box(tf.ones([4, 6, 1]), 1, 1, i[0], i[1]),
        i32(4, 2),
        "height must be >= target + offset.",
    ),
    "crop empty": (
        lambda i: tf.image.crop_to_bounding_box(tf.ones([4, 6, 1]), 1, 1, i[0], i[1]),
        i32(2, 0),
        "target_width must be > 0.",
    ),
    "pad": (
        lambda i: tf.image.pad_to_bounding_box(tf.ones([4, 6, 1]), i[0], i[1], 5, 7),
        i32(2, 0),
        "height must be <= target - offset",
    ),
    "slice size": (
        lambda b: tf.slice(TABLE, b, [2, 5]),
        i32(0, 0),
        "Expected size[1] in [0, 4], but got 5",
    ),
    "index": (
        lambda i: tf.constant(TABLE)[1, i],
        i32(4),
        "slice index 4 of dimension 1 out of bounds.",
    ),
}


@pytest.mark.parametrize("name", RAISES)
def test_operations_raise_tensorflows_errors(name):
    f, indices, message = RAISES[name]
    for function in (f, tf.function(f)):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            np.asarray(function(tf.constant(indices)))
        assert message in str(caught.value)


# Operation, indices, and TensorFlow's result.
ALLOWED = {
    "last index": (lambda i: tf.gather(ROW, i), i32(2, 0), [30, 10]),
    "no index": (lambda i: tf.gather(np.zeros((0, 3)), i), np.zeros(0, np.int32), np.zeros((0, 3))),
    "negative segment": (lambda i: tf.math.unsorted_segment_sum(V, i, 2), i32(1, 0, -1), [2, 1]),
    "negative index": (lambda i: tf.constant(ROW)[i], i32(-3), 10),
    "division": (lambda d: ROW // d, i32(-1, 1, 2), [-10, 20, 15]),
    "smallest integer": (lambda d: i32([-(2**31)]) % d, i32([-1]), [0]),
    "quotient of integers": (lambda d: tf.math.divide(ROW, d), i32(0, 1, 2), [np.inf, 20, 15]),
    "no nan": (lambda d: tf.math.divide_no_nan(ROW, d), i32(0, 1, 2), [0, 20, 15]),
    "one hot": (lambda i: tf.one_hot(i, 3), i32(-1, 5), np.zeros((2, 3))),
    "whole slice": (lambda b: tf.slice(TABLE, b, [3, 2]), i32(0, 2), TABLE[:, 2:]),
    "negative slice": (
        lambda i: tf.convert_to_tensor(tf.IndexedSlices(V[:2], i, [3])),
        i32(2, -1),
        [0, 0, 1],
    ),
    "unused sparse columns": (
        lambda i: tf.sparse.reduce_sum(make_sparse(i), axis=1),
        UNUSED_COLUMN,
        [1, 1],
    ),
    "joined sparse": (
        lambda i: tf.sparse.concat(1, [make_sparse(i), make_sparse(i)]).indices,
        UNUSED_ROW,
        [[0, 0], [0, 3], [2, 1], [2, 4]],
    ),
    "crop": (
        lambda i: tf.image.crop_to_bounding_box(TABLE[..., None], i[0], i[1], 2, 2)[..., 0],
        i32(1, 2),
        TABLE[1:, 2:],
    ),
    "crop or pad": (
        lambda i: tf.image.resize_with_crop_or_pad(TABLE[..., None], i[0], i[1])[..., 0],
        i32(1, 6),
        [[0, 4, 5, 6, 7, 0]],
    ),
    "float zero": (
        lambda d: tf.constant(V) // tf.cast(d, tf.float32),
        i32(0, 1, 2),
        [np.inf, 2, 1],
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_values_in_range_are_not_refused(name):
    f, indices, expected = ALLOWED[name]
    for function in (f, tf.function(f)):
        np.testing.assert_array_equal(np.asarray(function(tf.constant(indices))), expected)


def test_tensor_arrays_raise_in_functions():
    @tf.function
    def read(i):
        return tf.TensorArray(tf.int32, 3, clear_after_read=False).unstack(ROW).read(i)

    @tf.function
    def write(i):
        return tf.TensorArray(tf.int32, 3).unstack(ROW).write(i, 5).stack()

    np.testing.assert_array_equal(write(tf.constant(2)), [10, 20, 5])
    for function, index, action in (
        (read, 3, "access"),
        (write, 3, "modify"),
        (write, -1, "modify"),
    ):
        message = f"Trying to {action} element {index} in a list with 3 elements"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            np.asarray(function(tf.constant(index)))


def test_box_indices_have_tensorflows_error_class():
    images, boxes = tf.zeros([1, 4, 4, 1]), tf.constant([[0.0, 0.0, 1.0, 1.0]])
    crop = lambda i: tf.image.crop_and_resize(images, boxes, i, [2, 2])
    for function in (crop, tf.function(crop)):
        with pytest.raises(
            tf.errors.OutOfRangeError, match=r"box_index has values outside \[0, batch_size\)"
        ):
            np.asarray(function(tf.constant([3])))


@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_sparse_reductions_have_tensorflows_error_class(reduction):
    reduce = lambda i: getattr(tf.sparse, f"reduce_{reduction}")(make_sparse(i), axis=1)
    for function in (reduce, tf.function(reduce)):
        with pytest.raises(tf.errors.InternalError, match=r"write index of 2 which is outside of"):
            np.asarray(function(tf.constant(UNUSED_ROW)))


def test_batch_scatter_updates_slices():
    v = tf.Variable(np.arange(12.0).reshape(2, 3, 2))
    values = np.arange(8.0).reshape(2, 2, 2) + 100

    def update(i):
        return v.batch_scatter_update(tf.IndexedSlices(values, i)).value()

    expected = [
        [[100, 101], [2, 3], [102, 103]],
        [[6, 7], [106, 107], [10, 11]],
    ]
    for function in (update, tf.function(update)):
        np.testing.assert_array_equal(function(tf.constant([[0, 2], [1, 1]])), expected)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"indices\[0,1\] = \[0, 3\] does not index into shape \[2,3,2\]",
        ):
            function(tf.constant([[0, 3], [1, 1]]))
        np.testing.assert_array_equal(v, expected)
    with pytest.raises(TypeError, match="Argument `sparse_delta` must be"):
        v.batch_scatter_update(tf.ones([2]))


@pytest.mark.parametrize("wrap", [lambda o: o, keras.mixed_precision.LossScaleOptimizer])
def test_sparse_updates_raise_before_any_change(wrap):
    v = tf.Variable(tf.ones([3, 2]))
    optimizer = wrap(keras.optimizers.Adam(0.1, weight_decay=0.1, clipnorm=1.0))

    def update(i):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([2, 2]), i, [3, 2]), v)])

    for function in (update, tf.function(update)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 3 is not in"):
            function(tf.constant([0, 3]))
        np.testing.assert_array_equal(v, np.ones((3, 2)))
        assert int(optimizer.iterations) == 0


def test_gradients_of_gathers_are_checked_once():
    table = tf.Variable(tf.ones([5, 2]))
    optimizer = keras.optimizers.Adam()
    optimizer.build([table])

    @tf.function
    def step(i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, i) * tf.nn.embedding_lookup(table, i))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    program = step.get_concrete_function(tf.TensorSpec([3], tf.int32)).closed_jaxpr
    assert str(program).count("bounds_check") == 2


def test_truncated_division_has_tensorflows_error_class():
    for f in (tf.truncatediv, tf.truncatemod):
        for function in (f, tf.function(f)):
            with pytest.raises(
                tf.errors.InternalError, match="Unexpected error in binary operator"
            ):
                np.asarray(function(tf.constant(ROW), tf.constant(i32(0, 1, 2))))


@pytest.mark.parametrize("divisor", [0, i32(1, 0, 2)])
@pytest.mark.parametrize(
    ("f", "error"),
    [
        (tf.math.floordiv, tf.errors.InvalidArgumentError),
        (tf.math.floormod, tf.errors.InvalidArgumentError),
        (tf.truncatediv, tf.errors.InternalError),
        (tf.truncatemod, tf.errors.InternalError),
    ],
)
def test_functions_that_divide_by_a_known_zero_raise(f, error, divisor):
    with pytest.raises(
        error, match=r"Integer division by zero|Unexpected error in binary operator"
    ):
        tf.function(lambda x: f(x, divisor))(tf.constant(ROW))


@pytest.mark.parametrize("kind", ["update", "add", "sub", "max", "min", "mul", "div"])
def test_variable_scatters_raise_before_any_change(kind):
    v = tf.Variable(V)

    def update(i):
        getattr(v, f"scatter_{kind}")(tf.IndexedSlices(np.float32([9]), i))

    for f in (update, tf.function(update)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"indices\[0\] = 3 is not in \[0, 3\)"
        ):
            f(tf.constant([3]))
        np.testing.assert_array_equal(v, V)


def test_scatter_nd_and_reads_of_variables_raise():
    v = tf.Variable(V)
    functions = [
        (
            lambda i: v.scatter_nd_add(i[None], np.float32([9])).value(),
            r"\[3\] does not index into shape \[3\]",
        ),
        (lambda i: v.gather_nd(i[None]), r"\[3\] does not index into param shape \[3\]"),
        (lambda i: v.sparse_read(i), "= 3 is not in"),
        (lambda i: v[i[0]], "slice index 3 of dimension 0 out of bounds"),
        (lambda i: v[i[0]].assign(1.0), "slice index 3 of dimension 0 out of bounds"),
    ]
    for f, message in functions:
        for function in (f, tf.function(f)):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                np.asarray(function(tf.constant([3])))
    np.testing.assert_array_equal(v, V)


def test_indices_without_use_are_not_checked():
    """A traced function fails when it uses an index, not when it is traced."""

    @tf.function
    def pick(x, i, n):
        tf.gather(x, [7])
        tf.gather(x, i)
        return tf.gather(x, [1, 9]) if n > 3 else x

    x, i = tf.constant([1.0, 2.0]), tf.constant([8])
    for _ in range(3):
        assert pick(x, i, tf.constant(1)).numpy().tolist() == [1, 2]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[1\] = 9 is not in \[0, 2\)"
    ):
        pick(x, i, tf.constant(7))


def test_computed_indices_raise_at_their_use():
    """Loops, branches, vectorized maps, and gradients check what they compute."""

    @tf.function
    def add_rows(n):
        total = 0
        for i in tf.range(n):
            total += tf.constant(ROW)[i]
        return total

    assert int(add_rows(tf.constant(3))) == 60
    with pytest.raises(tf.errors.InvalidArgumentError, match="slice index 3 of dimension 0"):
        np.asarray(add_rows(tf.constant(4)))
    branch = tf.function(lambda i: tf.cond(i[0] > 5, lambda: tf.gather(ROW, i), lambda: i))
    np.testing.assert_array_equal(branch(tf.constant([5])), [5])
    with pytest.raises(tf.errors.InvalidArgumentError, match="= 6 is not in"):
        np.asarray(branch(tf.constant([6])))
    rows = tf.function(lambda i: tf.vectorized_map(lambda j: tf.gather(ROW, j), i))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1,0\] = 5 is not in"):
        np.asarray(rows(tf.constant([[0], [5]])))
    w = tf.Variable(V)
    total = tf.function(lambda i: tf.reduce_sum(tf.gather(w, i + 1)))
    with (
        tf.GradientTape() as tape,
        pytest.raises(tf.errors.InvalidArgumentError, match="= 3 is not in"),
    ):
        tape.gradient(total(tf.constant([2])), w)
    with tf.GradientTape() as tape:
        y = total(tf.constant([1, 1]))
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(y, w)), [0, 0, 2])


@needs("CPU kernels")
def test_dataset_maps_produce_elements_before_an_invalid_one():
    elements = iter(
        tf.data.Dataset.from_tensor_slices([0, 1, 5, 1]).map(lambda i: tf.gather(ROW, i))
    )
    assert [int(next(elements)), int(next(elements))] == [10, 20]
    with pytest.raises(tf.errors.InvalidArgumentError, match="5 is not in"):
        next(elements)


def test_steps_that_compute_invalid_indices_raise_after_the_assignment():
    v = tf.Variable(V)

    @tf.function
    def add(i):
        v.assign_add(tf.gather(tf.constant(V), tf.sort(i)))
        return tf.reduce_sum(v)

    add(tf.constant([0, 1, 2]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[2\] = 3 is not in \[0, 3\)"
    ):
        np.asarray(add(tf.constant([0, 1, 3])))
    assert np.isfinite(v).all()
    v.assign(V)
    np.testing.assert_array_equal(add(tf.constant([0, 1, 2])), 12)  # no record remains
    tf.debugging.enable_bounds_check()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[2\] = 3 is not in \[0, 3\)"
    ):
        add(tf.constant([0, 1, 3]))
    np.testing.assert_array_equal(v, 2 * V)


def test_checks_can_be_disabled():
    pick = tf.function(lambda i: tf.gather(V, i))
    with pytest.raises(tf.errors.InvalidArgumentError):
        np.asarray(pick(tf.constant([5])))
    tf.debugging.disable_bounds_check()
    np.testing.assert_array_equal(pick(tf.constant([5])), [np.nan])
    np.testing.assert_array_equal(tf.gather(V, [5]), [np.nan])
    tf.debugging.reset_bounds_check()
    with pytest.raises(tf.errors.InvalidArgumentError):
        np.asarray(pick(tf.constant([5])))


def test_numeric_checks_include_bounds():
    tf.debugging.enable_check_numerics()
    assert BoundsChecking.mode is True
    tf.debugging.disable_check_numerics()
    assert BoundsChecking.mode is None


def make_model(**settings):
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Embedding(5, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", **settings)
    return model


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.top = keras.layers.Embedding(5, 3), keras.layers.Dense(1)

    def call(self, x):
        return self.top(tf.reduce_sum(self.table(x[:, ::-1]), 1))


VALID, INVALID = np.array([[0, 1], [2, 3], [4, 4]]), np.array([[0, 1], [2, 3], [4, 5]])
METHODS = [
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
    "__call__",
]


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_models_refuse_rows_that_an_embedding_lacks(dtype):
    # TensorFlow 2.21 with tf-keras: "indices[2,1] = 5 is not in [0, 5)" in all of these methods.
    model, x, y = make_model(), INVALID.astype(dtype), np.ones((3, 1), np.float32)
    weights = model.get_weights()
    for method in METHODS:
        arguments = (
            (x, y) if method in ("fit", "evaluate", "train_on_batch", "test_on_batch") else (x,)
        )
        settings = {"verbose": 0, "shuffle": False} if method == "fit" else {}
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"indices\[2,1\] = 5 is not in \[0, 5\)"
        ):
            np.asarray(getattr(model, method)(*arguments, **settings))
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    model.fit(VALID.astype(dtype), y, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("settings", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
def test_datasets_and_loops_of_steps_are_checked(settings):
    model = make_model(**settings)
    x, y = np.concatenate([VALID] * 3 + [INVALID]), np.ones((12, 1), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[2,1\] = 5 is not in \[0, 5\)"
    ):
        model.fit(data, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    with pytest.raises(tf.errors.InvalidArgumentError, match="= 5 is not in"):
        model.predict(data, verbose=0)


def test_subclassed_models_and_custom_loops_are_checked():
    model = Subclassed()
    model.compile(keras.optimizers.Adam(), "mse")
    y = np.ones((3, 1), np.float32)
    model.fit(VALID, y, verbose=0)
    weights = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="= 5 is not in"):
        model.fit(INVALID, y, verbose=0)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    with pytest.raises(tf.errors.InvalidArgumentError, match="= 5 is not in"):
        step(tf.constant(INVALID), tf.constant(y))
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.isfinite(step(tf.constant(VALID), tf.constant(y)))


def test_disabled_checks_do_not_affect_fit():
    tf.debugging.disable_bounds_check()
    model = make_model()
    model.fit(INVALID, np.ones((3, 1)), verbose=0)
    assert np.isnan(model.get_weights()[0]).any()


def test_saved_models_compute_the_same_without_checks(tmp_path):
    module = tf.Module()
    module.f = tf.function(
        lambda i: tf.gather(V, i) + tf.cast(ROW // (i + 1), tf.float32),
        input_signature=[tf.TensorSpec([3], tf.int32)],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.f(tf.constant([0, 1, 2])), [11, 12, 13])


@pytest.mark.parametrize(
    ("check", "values", "offset"),
    [
        (BoundsCheck("{position}", (0,), (5,)), np.array([[4, 0], [5, 9]]), "[1,0]"),
        (BoundsCheck("{position}", (0,), (5,)), np.array([0, -1], np.int64), "[1]"),
        (BoundsCheck("{position}", (-2,), (5,)), np.array([-2, -3], np.int8), "[1]"),
        (BoundsCheck("{position}"), np.array([1, 0], np.uint16), "[1]"),
        (
            BoundsCheck("{position} [{value}]", (0, 0), (2, 9)),
            np.array([[1, 8], [1, 9]]),
            "[1] [1, 9]",
        ),
    ],
)
def test_host_and_handler_report_the_same_element(check, values, offset):
    assert str(check.find_failure(values)) == offset
    assert check.find_failure(np.ones((0, 2), np.int32)) is None

    programs = [
        # The program of accelerators, and without the kernels.
        lambda x: bounds_checks._check_by_callback(x, check=check),
    ]
    if CAPABILITIES["CPU kernels"]():
        programs.append(lambda x: bounds_check_p.bind(x, check=check, mode="error"))
    for program in programs:
        with pytest.raises((ValueError, RuntimeError), match="meshflow_bounds") as caught:
            np.asarray(jax.jit(program)(values))
        assert str(bounds_checks.translate_bounds_failure(caught.value)) == offset
        ones = np.ones((3, 2), values.dtype)
        np.testing.assert_array_equal(jax.jit(program)(ones), ones)


def test_early_checks_follow_simple_functions_of_arguments():
    check = BoundsCheck("{position} {value}", (0,), (5,))

    def program(w, x):
        y = (x[:, 1:].astype(np.int32) - 1).reshape(-1)
        return w + bounds_check_p.bind(y, check=check, mode="error").sum()

    x = np.array([[9, 1, 2], [9, 5, 6]], np.float32)
    closed = jax.make_jaxpr(program)(0, x)
    checks = EarlyChecks(closed, 2)
    assert checks and "mode=none" in str(checks.replace_checks(closed))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3\] 5"):
        checks.run([0, x])
    assert not EarlyChecks(closed, 1)  # the second input is a variable
    assert "mode=record" in str(EarlyChecks(closed, 1).replace_checks(closed))


def test_early_checks_of_the_columns_of_an_argument():
    limits = 5, 3, 7
    checks = [BoundsCheck(f"column {n} {{position}} {{value}}", (0,), (n,)) for n in limits]

    def program(x):
        columns = [x[:, i] for i in range(3)]
        pairs = zip(columns, checks, strict=True)
        return [bounds_check_p.bind(c, check=check, mode="error") for c, check in pairs]

    early = EarlyChecks(jax.make_jaxpr(program)(np.zeros((2, 3), np.int32)), 1)
    for valid in ([[0, 1, 2], [2, 2, 2]], [[4, 2, 6], [0, 0, 3]]):
        early.run([np.array(valid)])
    for invalid, message in (([4, -1, 6], r"column 3 \[1\] -1"), ([0, 2, 7], r"column 7 \[1\] 7")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            early.run([np.array([[0, 0, 0], invalid])])


def test_functions_that_read_the_rows_of_two_tensors_of_unknown_size():
    # The two sizes have no smaller one.
    @tf.function
    def read(a, b, ids):
        return tf.gather(a, ids) + tf.gather(b, ids)

    for a, b in ((3, 4), (5, 3), (4, 6)):
        for ids in ([0, 2], [2, 1, 0]):
            total = read(tf.range(a), tf.range(b), tf.constant(ids))
            assert total.numpy().tolist() == [2 * i for i in ids]
    with pytest.raises(tf.errors.InvalidArgumentError, match="5"):
        read(tf.range(7), tf.range(4), tf.constant([5]))
