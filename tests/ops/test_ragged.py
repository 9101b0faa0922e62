"""`tf.RaggedTensor` and `tf.ragged`, with values of TensorFlow 2.21 and tf-keras."""

import pickle
import sys

import jax
import numpy as np
import pytest

import meshflow as tf

K = tf.keras
R = tf.ragged.constant
RT = tf.RaggedTensor
A = R([[1, 2, 3], [], [4, 5]])
B = R([[1.0, 2.0], [3.0]])
C = R([[[1, 2], [3]], [[4]], []])
S = R([["a", "bb"], ["ccc"]])


def to_lists(value):
    if isinstance(value, RT):
        return value.to_list()
    if isinstance(value, (list, tuple)):
        return [to_lists(v) for v in value]
    return np.asarray(value.numpy()).tolist()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: RT.from_row_splits([1, 2, 3], [0, 2, 3]), [[1, 2], [3]]),
        (lambda: RT.from_row_lengths([1, 2, 3], [1, 0, 2]), [[1], [], [2, 3]]),
        (lambda: RT.from_value_rowids([1, 2, 3], [0, 0, 2], nrows=4), [[1, 2], [], [3], []]),
        (lambda: RT.from_row_starts([1, 2, 3], [0, 1]), [[1], [2, 3]]),
        (lambda: RT.from_row_limits([1, 2, 3], [1, 3]), [[1], [2, 3]]),
        (
            lambda: RT.from_nested_row_splits([1, 2, 3], [[0, 1, 2], [0, 2, 3]]),
            [[[1, 2]], [[3]]],
        ),
        (
            lambda: RT.from_nested_row_lengths([1, 2, 3], [[1, 1], [2, 1]]),
            [[[1, 2]], [[3]]],
        ),
        (lambda: RT.from_tensor([[1, 2, 0], [3, 0, 0]], padding=0), [[1, 2], [3]]),
        (lambda: RT.from_tensor([[1, 2, 0], [3, 0, 0]], lengths=[1, 2]), [[1], [3, 0]]),
        (
            lambda: RT.from_sparse(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [1, 2, 3], [3, 4])),
            [[1, 2], [], [3]],
        ),
        (lambda: A.to_tensor(-1), [[1, 2, 3], [-1, -1, -1], [4, 5, -1]]),
        (lambda: A.to_tensor(shape=[None, 2]), [[1, 2], [0, 0], [4, 5]]),
        (lambda: C.to_tensor(), [[[1, 2], [3, 0]], [[4, 0], [0, 0]], [[0, 0], [0, 0]]]),
        (lambda: S.to_tensor(), [[b"a", b"bb"], [b"ccc", b""]]),
        (lambda: tf.sparse.to_dense(B.to_sparse()), [[1, 2], [3, 0]]),
        (lambda: [A[0], A[1:], A[:, :2], A[:, -1:], C[0, 1], A[::2]],
         [[1, 2, 3], [[], [4, 5]], [[1, 2], [], [4, 5]], [[3], [], [5]], [3], [[1, 2, 3], [4, 5]]]),
        (lambda: [A.row_splits, A.value_rowids(), C.bounding_shape(), C.row_lengths(axis=2)],
         [[0, 3, 3, 5], [0, 0, 0, 2, 2], [3, 2, 2], [[2, 1], [1], []]]),
        (lambda: [tf.reduce_sum(A, i) for i in (None, 0, 1)], [15, [5, 7, 3], [6, 0, 9]]),
        (lambda: [tf.reduce_mean(B, 1), tf.reduce_max(B, -1), tf.reduce_prod(A, 1)],
         [[1.5, 3], [2, 3], [6, 1, 20]]),
        (lambda: [tf.reduce_any(A > 2, 1), tf.reduce_all(A > 2, 1)],
         [[True, False, True], [False, True, True]]),
        (lambda: [tf.reduce_sum(C, i) for i in (2, 1, [1, 2])],
         [[[3, 3], [4], []], [[4, 2], [4], []], [6, 4, 0]]),
        (lambda: [A + A, 1 - A, A % 2, -A, A > 2, A == A],
         [[[2, 4, 6], [], [8, 10]], [[0, -1, -2], [], [-3, -4]], [[1, 0, 1], [], [0, 1]],
          [[-1, -2, -3], [], [-4, -5]], [[False, False, True], [], [True, True]],
          [[True] * 3, [], [True] * 2]]),
        (lambda: A + tf.constant([[10], [20], [30]]), [[11, 12, 13], [], [34, 35]]),
        (lambda: [tf.square(B), tf.where(A > 2, A, A * 10), tf.clip_by_value(A, 2, 4)],
         [[[1, 4], [9]], [[10, 20, 3], [], [4, 5]], [[2, 2, 3], [], [4, 4]]]),
        (lambda: tf.one_hot(R([[0, 1], [1]]), 2), [[[1, 0], [0, 1]], [[0, 1]]]),
        (lambda: [tf.strings.length(S), tf.strings.join([S, S]), tf.strings.upper(S)],
         [[[1, 2], [3]], [[b"aa", b"bbbb"], [b"cccccc"]], [[b"A", b"BB"], [b"CCC"]]]),
        (lambda: tf.strings.reduce_join(S, axis=1, separator="-"), [b"a-bb", b"ccc"]),
        (lambda: [tf.concat([A, A], 0), tf.concat([A, tf.constant([[9], [8], [7]])], 1)],
         [[[1, 2, 3], [], [4, 5]] * 2, [[1, 2, 3, 9], [8], [4, 5, 7]]]),
        (lambda: [tf.gather(A, [2, 0]), tf.gather([9, 8, 7, 6, 5, 4], A)],
         [[[4, 5], [1, 2, 3]], [[8, 7, 6], [], [5, 4]]]),
        (lambda: [tf.stack([B, B]), tf.expand_dims(B, 0), tf.expand_dims(B, 2), tf.zeros_like(B)],
         [[[[1, 2], [3]]] * 2, [[[1, 2], [3]]], [[[1], [2]], [[3]]], [[0, 0], [0]]]),
        (lambda: [tf.ragged.boolean_mask(A, A > 1), tf.ragged.boolean_mask(A, [True, False, True])],
         [[[2, 3], [], [4, 5]], [[1, 2, 3], [4, 5]]]),
        (lambda: [tf.ragged.range([2, 0, 3]), tf.ragged.range([1, 2], [3, 5])],
         [[[0, 1], [], [0, 1, 2]], [[1, 2], [2, 3, 4]]]),
        (lambda: [tf.ragged.map_flat_values(tf.add, A, 1), tf.ragged.stack([[1, 2], [3]])],
         [[[2, 3, 4], [], [5, 6]], [[1, 2], [3]]]),
        (lambda: tf.ragged.row_splits_to_segment_ids([0, 2, 3]), [0, 0, 1]),
        (lambda: tf.ragged.segment_ids_to_row_splits([0, 0, 2], 4), [0, 2, 2, 3, 3]),
        (lambda: [tf.ragged.cross([S, S]), tf.ragged.cross_hashed([S, S], num_buckets=10)],
         [[[b"a_X_a", b"a_X_bb", b"bb_X_a", b"bb_X_bb"], [b"ccc_X_ccc"]], [[5, 6, 1, 5], [0]]]),
        (lambda: tf.ragged.stack_dynamic_partitions([1, 2, 3], [1, 0, 1], 2), [[2], [1, 3]]),
        (lambda: tf.map_fn(tf.reduce_sum, A), [6, 0, 9]),
        (lambda: tf.map_fn(lambda r: r * 2, A, fn_output_signature=tf.RaggedTensorSpec([None], tf.int32)),
         [[2, 4, 6], [], [8, 10]]),
        (lambda: tf.strings.split(["a b", "c"]), [[b"a", b"b"], [b"c"]]),
        (lambda: tf.strings.split([["a b", "c"], ["d", ""]]), [[[b"a", b"b"], [b"c"]], [[b"d"], []]]),
        (lambda: tf.strings.split(R([["a b"], ["c", "d e"]])), [[[b"a", b"b"]], [[b"c"], [b"d", b"e"]]]),
        (lambda: [tf.strings.bytes_split(["ab", "c"]), tf.strings.unicode_decode(["ab", "c"], "UTF-8")],
         [[[b"a", b"b"], [b"c"]], [[97, 98], [99]]]),
        (lambda: tf.strings.ngrams(R([["a", "b", "c"], ["d"]]), 2), [[b"a b", b"b c"], []]),
        (lambda: tf.strings.ngrams(R([[["a", "b"], ["c"]], [[]]]), [1, 2], "", ("<", ">"), 1),
         [[[b"a", b"b", b"<a", b"ab", b"b>"], [b"c", b"<c", b"c>"]], [[b"<>"]]]),
        (lambda: tf.strings.ngrams([[["a", "b"], ["c", "d"]]], [1, 2]),
         [[[b"a", b"b", b"a b"], [b"c", b"d", b"c d"]]]),
        (lambda: tf.strings.ngrams(RT.from_row_lengths([["a"], ["b"]], [2, 0]), 1), [[[b"a"], [b"b"]], []]),
        (lambda: tf.strings.ngrams(["a"], [4, 5], "", "-", 1, preserve_short_sequences=True), [b"-a-"]),
        (lambda: tf.strings.ngrams(tf.zeros([2, 0], tf.string), 2, pad_values="-"), [[], []]),
        (lambda: tf.one_hot(R([[0], []]), 2, 1, 0, -1, tf.int32), [[[1, 0]], []]),
        # Dense tensors become rows unless the last axis is joined.
        (lambda: tf.ragged.stack([tf.ones([1, 2], tf.int32), tf.ones([2, 1], tf.int32)]),
         [[[1, 1]], [[1], [1]]]),
        (lambda: tf.ragged.stack([tf.constant([[1, 2]]), tf.constant([[3, 4]])], 1), [[[1, 2], [3, 4]]]),
        # The innermost indices of a row form a matrix.
        (lambda: tf.gather(A, RT.from_row_lengths([[0, 1], [1, 0]], [1, 0, 1]), batch_dims=1),
         [[[1, 2]], [], [[5, 4]]]),
        (lambda: tf.compat.v1.batch_gather(C, R([[[1, 0], [0]], [[0]], []])), [[[2, 1], [3]], [[4]], []]),
        (lambda: tf.compat.v1.where([True, False], B, R([[7.0], [8.0, 9.0]])), [[1, 2], [8, 9]]),
        (lambda: [tf.math.reduce_variance(R([[1, 2], [3]]), 1), tf.math.reduce_std(R([[0.1] * 3]), 1)],
         [[0.25, 0], [0]]),
        (lambda: tf.matmul(tf.ones([2, 1, 2]), RT.from_row_lengths(tf.ones([4, 3]), [2, 2])),
         [[[2] * 3]] * 2),
        (lambda: tf.strings.reduce_join(S, 1, separator=b"-", keepdims=True), [[b"a-bb"], [b"ccc"]]),
        (lambda: tf.strings.ngrams(S, 2, b"+", pad_values=b"."),
         [[b".+a", b"a+bb", b"bb+."], [b".+ccc", b"ccc+."]]),
        (lambda: tf.strings.unicode_encode(RT.from_row_lengths([[[97], [98]]], [1]), "UTF-8"),
         [[[b"a", b"b"]]]),
    ],
)  # fmt: skip
def test_values(make, expected):
    assert to_lists(make()) == expected


def test_splits_of_different_dtypes_are_refused():
    other = A.with_row_splits_dtype(tf.int32)
    for function in (
        lambda: A + other,
        lambda: tf.concat([A, other], 0),
        lambda: tf.ragged.boolean_mask(A, other > 1),
        lambda: tf.ragged.map_flat_values(tf.add, A, other),
    ):
        with pytest.raises(ValueError, match="int32 and int64"):
            function()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tf.gather(A, [0, 3]), r"indices\[1\] = 3 is not in \[0, 3\)"),
        (lambda: tf.gather(A, 0, batch_dims=-1), "batch_dims=-1 out of bounds: expected 0<=batch_dims<0"),
        (lambda: tf.ragged.constant([1, 2], ragged_rank=1), "requires scalar value depth greater than 1"),
        (lambda: tf.ragged.constant(A), "may not be a RaggedTensor"),
        (lambda: A.to_tensor(shape=[1, 1, 1]), "rt_input.rank = 2 but shape.rank = 3"),
        (lambda: C.to_tensor([1, 2]), "default_value.rank = 1"),
        (lambda: tf.ragged.map_flat_values(tf.add, A, C), "must have the same ragged_rank"),
        (lambda: tf.ragged.map_flat_values(tf.add, B, R([[1.0], [2.0, 3.0]])), "incompatible row_splits"),
        (lambda: tf.ragged.stack_dynamic_partitions([1], [-1], 2), "must be non-negative"),
        (lambda: tf.image.resize(A, [2, 2]), "rank must be 4"),
        (lambda: tf.map_fn(lambda r: r, A, fn_output_signature=tf.RaggedTensorSpec([None, None])),
         "Expected `fn` to return"),
    ],
)  # fmt: skip
def test_errors_have_the_words_of_tensorflow(call, message):
    with pytest.raises((ValueError, TypeError, tf.errors.InvalidArgumentError), match=message):
        call()


def test_images_of_different_sizes_are_resized():
    images = tf.ragged.stack([tf.ones([2, 3, 1]), tf.zeros([4, 2, 1])])
    resized = tf.image.resize(images, [2, 2])
    assert resized.shape == [2, 2, 2, 1]
    assert resized.numpy().sum((1, 2, 3)).tolist() == [4, 0]
    assert tf.compat.v1.image.resize_images(images[:0], [2, 2]).shape == [0, 2, 2, 1]


def test_values_as_arrays():
    value = tf.compat.v1.ragged.constant_value([[1, 2], [3]])
    assert value.to_list() == [[1, 2], [3]] and value.dtype == np.int64
    assert (value.shape, value.ragged_rank) == ((2, None), 1)
    assert tf.reduce_sum(value, 1).numpy().tolist() == [3, 3]
    assert (
        tf.ragged.boolean_mask(A[:2], tf.compat.v1.ragged.constant_value([[True] * 3, []]))[0][2]
        == 3
    )
    nested = tf.compat.v1.ragged.constant_value([[["a"], []]])
    assert nested.flat_values.tolist() == ["a"] and len(nested.nested_row_splits) == 2
    with pytest.raises(TypeError, match="row_splits must be a 1D"):
        tf.compat.v1.ragged.RaggedTensorValue(np.ones(2), [0, 2])


def test_specs_of_shapes_and_partitions():
    spec = tf.experimental.DynamicRaggedShape.Spec.from_value(C)
    assert (spec.rank, spec.num_row_partitions, spec.inner_rank) == (3, 2, 1)
    assert spec.with_dtype(tf.int32).dtype is tf.int32
    rows = tf.type_spec_from_value(tf.experimental.RowPartition.from_row_lengths([1, 2]))
    make = type(rows)
    assert (make(5, None, 8).nvals, make(None, 20, 4).nrows) == (40, 5)
    assert not make(nvals=5).is_compatible_with(make(uniform_row_length=3))
    assert make(8, 3).most_specific_compatible_type(make(8, 4)) == make(8)
    with pytest.raises(ValueError, match="not compatible"):
        make(0, 5)


def test_functions_and_gradients():
    assert tf.function(lambda r: r * 2)(A).to_list() == [[2, 4, 6], [], [8, 10]]
    make = tf.function(lambda x: RT.from_row_lengths(x, [1, 2]))
    assert make(tf.constant([1.0, 2.0, 3.0])).to_list() == [[1], [2, 3]]
    select = tf.function(lambda a, b: tf.ragged.boolean_mask(a, b))
    assert select(B, B > 1.5).to_list() == [[2], [3]]
    split = tf.function(lambda t: tf.strings.split(t).to_tensor())
    assert split(tf.constant(["a b", "c"])).numpy().tolist() == [[b"a", b"b"], [b"c", b""]]
    v = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        rows = RT.from_row_lengths(v, [1, 2])
        y = tf.reduce_sum(tf.reduce_sum(rows**2, 1) * [1.0, 2.0])
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(y, v)), [2, 8, 12])


@pytest.mark.parametrize(
    "function",
    [
        lambda r, q: r[2],
        lambda r, q: r[-1:],
        lambda r, q: r[::-2],
        lambda r, q: r[:, 1:],
        lambda r, q: r + q * 2,
        lambda r, q: tf.expand_dims(r, 2) * q.with_values(tf.stack([q.values, q.values], 1)),
        lambda r, q: tf.gather(r, [2, 0]),
        lambda r, q: tf.tile(r, [1, 2]),
        lambda r, q: tf.reverse(r, [1]),
        lambda r, q: tf.reduce_sum(r, 0),
        lambda r, q: tf.ragged.boolean_mask(r, q > 2),
        lambda r, q: tf.ragged.boolean_mask(r, q.row_lengths() > 1),
        lambda r, q: tf.ragged.range(r.row_lengths()),
        lambda r, q: RT.from_tensor(r.to_tensor(), padding=0),
        lambda r, q: RT.from_tensor(r.to_tensor(), q.row_lengths()),
        lambda r, q: RT.from_value_rowids(r.values, q.value_rowids()),
    ],
)
def test_traced_rows(function, caplog):
    """Sizes that depend on traced rows do not make a function run as Python."""
    traces = []

    @tf.function
    def traced(r, q):
        if isinstance(r.values.array, jax.core.Tracer):
            traces.append(1)
        return function(r, q)

    splits = (
        [0, 2, 2, 5, 8],
        [0, 0, 1, 3, 8],
        [0, 3, 3, 5, 9],
        [0, 1, 3, 9, 11, 14],
        [0, 6, 6, 8, 11],
    )
    for s in splits:
        values = tf.range(1.0, s[-1] + 1.0)
        pair = [RT.from_row_splits(values, tf.constant(s)) for _ in range(2)]
        assert to_lists(traced(*pair)) == to_lists(function(*pair)), s
    # For the sizes of the first call, for any number of values, and for any number of rows.
    assert len(traces) <= 3
    assert not caplog.records


def test_traces_with_other_decisions(caplog):
    """A function with ragged arguments is traced again if a computed size needs another decision."""
    add = tf.function(lambda r: r[0] + r[1])
    for s in [0, 2, 4, 6], [0, 1, 4, 6], [0, 3, 4, 6]:
        rows = RT.from_row_splits(tf.range(6.0), tf.constant(s))
        assert add(rows).numpy().tolist() == (rows[0] + rows[1]).numpy().tolist(), s
    outer = tf.function(lambda r: add(r) * 2)
    assert outer(rows).numpy().tolist() == (add(rows) * 2).numpy().tolist()
    assert not caplog.records


def test_traced_rows_gradients():
    @tf.function
    def differentiate(x, splits, others):
        with tf.GradientTape() as tape:
            tape.watch(x)
            r, q = RT.from_row_splits(x, splits), RT.from_row_splits(x, others)
            y = tf.reduce_sum((r * q)[1:, :2].flat_values)
        return tape.gradient(y, x)

    x, splits = tf.constant([1.0, 2, 3, 4, 5]), tf.constant([0, 1, 4, 5])
    assert differentiate(x, splits, splits + 0).numpy().tolist() == [0, 4, 6, 0, 10]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Unable to broadcast"):
        differentiate(x, splits, tf.constant([0, 2, 4, 5]))


def test_datasets():
    rows = tf.data.Dataset.from_tensor_slices(A)
    assert to_lists(list(rows)) == [[1, 2, 3], [], [4, 5]]
    assert to_lists(list(rows.batch(2))) == [[[1, 2, 3], []], [[4, 5]]]
    assert to_lists(list(rows.map(tf.reduce_sum))) == [6, 0, 9]
    assert to_lists(list(rows.batch(2).map(lambda r: r * 2))) == [[[2, 4, 6], []], [[8, 10]]]
    nested = tf.data.Dataset.from_tensor_slices(C).batch(2)
    assert to_lists(list(nested)) == [[[[1, 2], [3]], [[4]]], [[]]]
    words = tf.data.Dataset.from_tensor_slices(["a b", "c"]).batch(2).map(tf.strings.split)
    assert to_lists(list(words)) == [[[b"a", b"b"], [b"c"]]]
    ranges = tf.data.Dataset.range(3).map(tf.range).ragged_batch(2)
    assert to_lists(list(ranges)) == [[[], [0]], [[0, 1]]]
    spec = "RaggedTensorSpec(TensorShape([None, None]), tf.int32, 1, tf.int64)"
    assert str(rows.batch(2).element_spec) == spec


X = RT.from_row_lengths(tf.reshape(tf.range(10.0), [10, 1]) / 10, [3, 2, 4, 1])
Y = np.arange(4, dtype="float32")[:, None]


def make_model(**options):
    inputs = K.Input((None, 1), ragged=True)
    options = {"kernel_initializer": "ones", "recurrent_initializer": "zeros", **options}
    hidden = K.layers.LSTM(2, **options)(inputs)
    model = K.Model(inputs, K.layers.Dense(1, kernel_initializer="ones")(hidden))
    model.compile(K.optimizers.SGD(0.1), "mse")
    return model


def test_models():
    expected = [[0.1623643], [0.41515332], [1.1627051], [0.66738516]]
    np.testing.assert_allclose(make_model().predict(X, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(make_model()(X), expected, rtol=1e-5)
    history = make_model().fit(X, Y, batch_size=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], [1.5283235], rtol=1e-5)
    np.testing.assert_allclose(make_model().evaluate(X, Y, verbose=0), 1.6276407, rtol=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    history = make_model().fit(dataset, verbose=0).history
    np.testing.assert_allclose(history["loss"], [1.5283235], rtol=1e-5)
    sequences = make_model(return_sequences=True)(X)
    assert isinstance(sequences, RT) and sequences.row_lengths().numpy().tolist() == [3, 2, 4, 1]
    assert make_model().get_config()["layers"][0]["config"]["ragged"] is True


def test_layers():
    assert K.layers.Embedding(9, 2, embeddings_initializer="ones")(A).shape == [3, None, 2]
    assert K.layers.StringLookup(vocabulary=["a", "bb"])(S).to_list() == [[1, 2], [0]]
    assert K.layers.Hashing(5)(S).to_list() == [[4, 2], [0]]
    words = K.layers.TextVectorization(vocabulary=["a", "b"], ragged=True)
    assert words(["a b", "b"]).to_list() == [[2, 3], [3]]
    initializer = tf.lookup.KeyValueTensorInitializer(["a", "bb"], [1, 2])
    assert tf.lookup.StaticHashTable(initializer, -1).lookup(S).to_list() == [[1, 2], [-1]]


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda: RT([1], [0, 1]), ValueError, "no public constructor"),
        (
            lambda: RT.from_row_splits([1, 2], [0, 1]),
            tf.errors.InvalidArgumentError,
            "valid Ragged",
        ),
        (lambda: A + R([[1], [2], [3]]), tf.errors.InvalidArgumentError, "mismatch"),
        (lambda: A[5], IndexError, "out of bounds"),
        (lambda: A[:, 0], ValueError, "inner ragged dimension"),
        (lambda: tf.convert_to_tensor(A), TypeError, "to_tensor"),
        (lambda: tf.sort(A), ValueError, "convert it with to_tensor"),
    ],
)
def test_errors(use, error, match):
    with pytest.raises(error, match=match):
        use()


BIG = RT.from_row_lengths(tf.ones([5000]), np.full(100, 50))
GROWTH = [tf.TensorShape([]), tf.RaggedTensorSpec([None, None])]


@tf.function
def grow(rows):
    return tf.while_loop(
        lambda i, r: i < 3,
        lambda i, r: (i + 1, tf.concat([r, r], 0)),
        [tf.constant(0), rows],
        GROWTH,
    )[1]


@tf.function
def add_rows(rows):
    total = 0.0
    for row in rows:
        total += tf.reduce_sum(row)
    return total


@tf.function
def double_thrice(rows):
    for _ in tf.range(3):
        rows = rows * 2
    return rows


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: grow(B), [[1, 2], [3]] * 8),
        (lambda: add_rows(B), 6),
        (lambda: double_thrice(B), [[8, 16], [24]]),
        (lambda: tf.function(lambda a, b: a + b)(B, B * 2), [[3, 6], [9]]),
        (lambda: tf.function(lambda d: {"y": d["x"] * 2})({"x": B})["y"], [[2, 4], [6]]),
        (lambda: tf.reduce_sum(tf.function(lambda x: tf.reduce_sum(BIG * x, 1))(tf.constant(2.0))), 10000),
        (lambda: tf.function(lambda a: tf.function(lambda b: b * 2)(a) + 1)(B), [[3, 5], [7]]),
        (lambda: tf.function(lambda a: tf.reduce_sum(a, 1), jit_compile=True)(B), [3, 3]),
        (lambda: tf.function(lambda p: tf.cond(p, lambda: B, lambda: R([[1.0]])))(tf.constant(False)), [[1]]),
        (lambda: tf.function(lambda s: tf.strings.upper(s), [tf.RaggedTensorSpec([None, None], tf.string)])(S),
         [[b"A", b"BB"], [b"CCC"]]),
        (lambda: tf.nn.embedding_lookup_sparse(tf.ones([6, 2]), R([[1, 2], [3]]), None, combiner="sum"), [[2, 2], [1, 1]]),
        (lambda: tf.strings.format("{}|{}", [B, S]), b"[[1.000000, 2.000000], [3.000000]]|[['a', 'bb'], ['ccc']]"),
        (lambda: pickle.loads(pickle.dumps(B)), [[1, 2], [3]]),
    ],
)  # fmt: skip
def test_programs(make, expected):
    assert to_lists(make()) == expected


def test_one_trace_for_all_sizes():
    traces = []

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.float32)])
    def average(rows):
        traces.append(rows)
        return tf.reduce_mean(tf.concat([rows * 2, rows], 1), 1)

    for lengths in ([1, 2], [3, 1], [4, 4, 1], [2] * 9, [5, 7, 1]):
        rows = RT.from_row_lengths(tf.range(float(sum(lengths))), lengths)
        expected = [1.5 * np.mean(row) for row in rows.to_list()]
        np.testing.assert_allclose(average(rows), expected, rtol=1e-6)
    # A trace for a symbol that two sizes share, one for two symbols, and both calls exactly.
    assert len(traces) <= 4


def test_printing(capsys):
    tf.print("rows", B, [S], output_stream=sys.stdout)
    tf.function(lambda r: tf.print(r, output_stream=sys.stdout))(B)
    lines = capsys.readouterr().out.splitlines()
    rows = "[[1.000000, 2.000000], [3.000000]]"
    assert lines == [f"rows {rows} [[['a', 'bb'], ['ccc']]]", rows]


SPEC = tf.RaggedTensorSpec([None, None], tf.float32)
NESTED_SPEC = tf.RaggedTensorSpec([None, None, None], tf.float32)
INDICES_SPEC = tf.TensorSpec([None], tf.int32)
INDEX_SPEC = tf.TensorSpec([], tf.int32)
ROWS = tf.ragged.constant([[3.0, 1.0, 2.0], [], [4.0, 5.0]])
NESTED = tf.ragged.constant([[[1.0, 2.0], [3.0]], [], [[4.0], [], [5.0, 6.0]]])
IDS = tf.ragged.constant([[0, 1, 0], [], [1, 1]], dtype=tf.int32)
MATRICES = tf.ragged.constant([[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]], ragged_rank=1)
SPARSE = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [1.0, 2.0, 3.0], [3, 2])
SPLITS_SPEC, LONG_SPEC = tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)


@pytest.mark.parametrize(
    ("function", "specs", "arguments"),
    [
        (tf.RaggedTensor.from_sparse, [tf.SparseTensorSpec([None, None])], [SPARSE]),
        (
            lambda ids, count: tf.RaggedTensor.from_value_rowids(ids, ids, count),
            [SPLITS_SPEC, LONG_SPEC],
            [tf.constant([0, 2, 2], tf.int64), tf.constant(5, tf.int64)],
        ),
        (
            tf.RaggedTensor.from_uniform_row_length,
            [SPLITS_SPEC, LONG_SPEC],
            [tf.constant([1, 2, 3, 4], tf.int64), tf.constant(2, tf.int64)],
        ),
        (
            tf.ragged.row_splits_to_segment_ids,
            [SPLITS_SPEC],
            [tf.constant([0, 2, 3], tf.int64)],
        ),
        (
            lambda x, k: tf.ragged.stack_dynamic_partitions(x, x, k),
            [INDICES_SPEC, INDEX_SPEC],
            [tf.constant([2, 0, 2]), tf.constant(4)],
        ),
        (tf.gather, [SPEC, INDICES_SPEC], [ROWS, tf.constant([2, 0, 0])]),
        (tf.gather, [SPEC, INDEX_SPEC], [ROWS, tf.constant(2)]),
        (
            tf.gather,
            [SPEC, tf.TensorSpec([None, None], tf.int32)],
            [ROWS, tf.constant([[2, 0], [1, 1]])],
        ),
        (tf.gather, [SPEC, tf.RaggedTensorSpec([None, None], tf.int32)], [ROWS, IDS]),
        (
            lambda x, k: tf.gather(x, k, axis=1),
            [tf.RaggedTensorSpec([None, None, 2], ragged_rank=1), INDICES_SPEC],
            [MATRICES[2:], tf.constant([0])],
        ),
        (
            tf.gather_nd,
            [SPEC, tf.TensorSpec([None, 2], tf.int32)],
            [ROWS, tf.constant([[2, 1], [0, 2]])],
        ),
        (lambda x, k: x[k], [SPEC, INDEX_SPEC], [ROWS, tf.constant(-1)]),
        (lambda x, k: x[:k], [SPEC, INDEX_SPEC], [ROWS, tf.constant(2)]),
        (lambda x, k: x[:, k::-1], [SPEC, INDEX_SPEC], [ROWS, tf.constant(1)]),
        (tf.tile, [SPEC, tf.TensorSpec([2], tf.int32)], [ROWS, tf.constant([2, 3])]),
        (lambda x: tf.reduce_max(x, 0), [NESTED_SPEC], [NESTED]),
        (lambda x: tf.reduce_mean(x, [0, 1]), [NESTED_SPEC], [NESTED]),
        (lambda x: tf.math.reduce_variance(x, 0), [NESTED_SPEC], [NESTED]),
        (lambda x: tf.where(x > 2.0), [SPEC], [ROWS]),
        (
            lambda x, i: tf.dynamic_partition(x, i, 2),
            [SPEC, tf.RaggedTensorSpec([None, None], tf.int32)],
            [ROWS, IDS],
        ),
        (
            lambda x, i: tf.math.unsorted_segment_sum(x, i, 2),
            [SPEC, tf.RaggedTensorSpec([None, None], tf.int32)],
            [ROWS, IDS],
        ),
        (
            lambda x: tf.matmul(x, x, transpose_b=True),
            [tf.RaggedTensorSpec([3, None, 2], ragged_rank=1)],
            [MATRICES],
        ),
        (
            lambda i: tf.math.bincount(i, axis=-1),
            [tf.RaggedTensorSpec([None, None], tf.int32)],
            [IDS],
        ),
    ],
)
def test_functions_trace_ops(function, specs, arguments, caplog):
    results = function(*arguments), tf.function(function, input_signature=specs)(*arguments)
    expected, found = (tf.nest.flatten(r, expand_composites=True) for r in results)
    assert [x.numpy().tolist() for x in found] == [x.numpy().tolist() for x in expected]
    assert "op by op" not in caplog.text


def test_products_of_rows_and_counts():
    products = tf.matmul(MATRICES, MATRICES, transpose_b=True)
    assert products.to_list() == [[[5.0, 11.0], [11.0, 25.0]], [], [[61.0]]]
    assert tf.math.bincount(IDS, axis=-1).numpy().tolist() == [[2, 1], [0, 0], [0, 2]]
    assert tf.math.bincount(IDS).numpy().tolist() == [2, 3]
    counts = tf.math.bincount(IDS, axis=-1, maxlength=1, binary_output=True)
    assert counts.numpy().tolist() == [[1], [0], [0]]


def test_traced_indices_out_of_range():
    take = tf.function(tf.gather, input_signature=[SPEC, INDICES_SPEC])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 3\)"):
        take(ROWS, tf.constant([3]))


def test_one_hot_axes():
    assert tf.one_hot(IDS, 3, axis=2).shape.as_list() == [3, None, 3]
    inner = tf.ragged.constant([[[1, 2], [0, 1]], []], ragged_rank=1)
    assert tf.one_hot(inner, 3, axis=2).shape.as_list() == [2, None, 3, 2]
    with pytest.raises(ValueError, match="greater than indices"):
        tf.one_hot(IDS, 3, axis=1)


def test_assertions_and_moments():
    rows = tf.ragged.constant([[1.0, 2.0, 3.0], [4.0, 5.0]])
    tf.debugging.assert_equal(rows, rows)
    tf.debugging.assert_less(rows, 9.0)
    for check, other in (
        (tf.debugging.assert_equal, rows + 1),
        (tf.debugging.assert_near, rows[::-1]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            check(rows, other)
    mean, variance = tf.nn.moments(rows, [1])
    np.testing.assert_allclose(mean.numpy(), [2.0, 4.5])
    np.testing.assert_allclose(variance.numpy(), [2 / 3, 0.25], rtol=1e-5)
    np.testing.assert_allclose(tf.keras.backend.mean(rows, axis=1).numpy(), [2.0, 4.5])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("sum", [5.0, 7.0, 3.0]), ("mean", [2.5, 3.5, 3.0]), ("max", [4.0, 5.0, 3.0])],
)
def test_traced_rows_with_constant_ids(kind, expected):
    rows = tf.ragged.constant([[1.0, 2.0, 3.0], [], [4.0, 5.0]])
    reduce = getattr(tf.math, f"unsorted_segment_{kind}")
    assert tf.function(lambda x: reduce(x, [1, 0, 1], 2))(rows).to_list() == [[], expected]


def test_traced_values_with_constant_rows():
    def double(values):
        return (
            tf.sparse.to_dense(tf.RaggedTensor.from_row_lengths(values, [2, 0, 1]).to_sparse()) * 2
        )

    result = tf.function(double)(tf.constant([1.0, 2.0, 3.0]))
    assert result.numpy().tolist() == [[2, 4], [0, 0], [6, 0]]


def test_results_of_tensorflow():
    characters, offsets = tf.strings.unicode_split_with_offsets(S, "UTF-8")
    assert characters.to_list() == [[[b"a"], [b"b", b"b"]], [[b"c", b"c", b"c"]]]
    assert offsets.to_list() == [[[0], [0, 1]], [[0, 1, 2]]]
    assert tf.strings.unicode_decode_with_offsets(S, "UTF-8")[1].to_list() == offsets.to_list()
    assert tf.reduce_any(A, 1).numpy().tolist() == [True, False, True]
    assert tf.gather_nd(A, [0, 1]).shape == []
    assert tf.gather_nd(A, [2]).to_list() == [[4, 5]]
    assert tf.ragged.range([1.0, 2.0]).dtype == tf.float32
    assert tf.ragged.range(tf.constant([2], tf.int64)).dtype == tf.int64
    splits = tf.ragged.segment_ids_to_row_splits([0, 3], num_segments=2)
    assert splits.numpy().tolist() == [0, 1, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="multiples"):
        tf.tile(A, [1, -1])


def test_complex_rows_have_no_variance():
    with pytest.raises(ValueError, match="complex dtypes"):
        tf.math.reduce_variance(tf.ragged.constant([[1 + 1j, 2], [3]]), axis=1)


def test_counts_check_the_rows_of_weights():
    ids = tf.ragged.constant([[1, 2], [3]])
    assert tf.sparse.bincount(ids, axis=None).values.numpy().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="must be a RaggedTensor"):
        tf.sparse.bincount(ids, [1.0, 2.0, 3.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="lengths of their rows differ"):
        tf.math.bincount(ids, tf.ragged.constant([[1.0], [2.0, 3.0]]), axis=-1)


def test_slices_keep_uniform_rows():
    make = tf.RaggedTensor.from_uniform_row_length
    rows = tf.RaggedTensor.from_row_lengths(make(make(tf.range(8), 1), 2), [1, 3])
    calls = [lambda r: r[:1], lambda r: r[tf.constant(1) :], lambda r: r[0], lambda r: r[::2]]
    expected = [[1, None, 2, 1], [1, None, 2, 1], [1, 2, 1], [1, None, None, None]]
    for call, shape in zip(calls, expected, strict=True):
        for function in (call, tf.function(call)):
            assert function(rows).shape.as_list() == shape


def test_rows_of_strings_without_elements():
    splits = tf.constant([0], tf.int64)
    make = tf.RaggedTensor.from_row_splits
    rows = make(make(tf.zeros([0, 2], tf.string), splits), splits)
    for call in (
        lambda r: tf.reverse(r, [1]),
        lambda r: r[:, :1],
        lambda r: tf.tile(r, [1, 2, 1, 1]),
    ):
        assert tf.function(call)(rows).shape.as_list() == [0, None, None, 2]


def test_products_are_traced_for_all_sizes(caplog):
    count = 0

    @tf.function(reduce_retracing=True)
    def multiply(a, b):
        nonlocal count
        count += 1
        return tf.matmul(a, b, transpose_b=True)

    for rows in ([2, 3], [1, 4, 2], [5, 1, 1, 2]):
        a = tf.RaggedTensor.from_row_lengths(tf.reshape(tf.range(2.0 * sum(rows)), [-1, 2]), rows)
        b = tf.RaggedTensor.from_row_lengths(a.values + 1.0, rows[::-1])
        expected = [(x.numpy() @ y.numpy().T).tolist() for x, y in zip(a, b, strict=True)]
        product = multiply(a, b)
        assert product.to_list() == expected and product.ragged_rank == 2
    assert count == 2 and not caplog.records
    with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible"):
        tf.function(lambda a, b: tf.matmul(a, b))(a, b)


def test_hashed_crosses_of_no_inputs_are_empty():
    crosses = tf.ragged.cross_hashed([], num_buckets=100)
    assert crosses.dtype == tf.int64
    assert crosses.to_list() == []
