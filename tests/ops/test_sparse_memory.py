"""Sparse ops on shapes with a dense form of 480 MB, with the sums that TensorFlow 2.21 computes."""

import resource

import numpy as np
import pytest

import meshflow as tf

T = tf.sparse
ROWS, COLUMNS, COUNT = 300, 400_000, 900
MAX_MB = 120


def make_elements():
    r = np.random.RandomState(0)

    def draw():
        pairs = np.stack([r.randint(0, ROWS, COUNT), r.randint(0, COLUMNS, COUNT)], 1)
        return np.unique(pairs, axis=0).astype(np.int64)

    first = draw()
    values = r.randn(len(first)).astype("float32")
    right = r.rand(COLUMNS, 4).astype("float32")
    left = r.rand(ROWS, 4).astype("float32")
    second = np.unique(np.concatenate([draw(), first[:50]]), axis=0)
    other = tf.SparseTensor(second, r.randn(len(second)).astype("float32"), [ROWS, COLUMNS])
    return first, values, right, left, other


INDICES, VALUES, RIGHT, LEFT, OTHER = make_elements()


def make_sparse(values=VALUES):
    return tf.SparseTensor(INDICES, values, [ROWS, COLUMNS])


def matmul(**options):
    def apply(s):
        wide = RIGHT if options.get("adjoint_a", False) is False else LEFT
        wide = wide.T if options.get("adjoint_b") else wide
        return T.sparse_dense_matmul(s, wide, **options)

    return apply


# Each op with the sum of the magnitudes of its result, and the number of elements if it is sparse.
OPS = {
    "matmul": (matmul(), 840.575, None),
    "matmul a": (matmul(adjoint_a=True), 1508.758, None),
    "matmul b": (matmul(adjoint_b=True), 840.575, None),
    "matmul ab": (matmul(adjoint_a=True, adjoint_b=True), 1508.758, None),
    "dense matmul": (lambda s: T.sparse_dense_matmul(LEFT.T, s), 1508.758, None),
    "sum": (T.reduce_sum, 35.1978, None),
    "sum 0": (lambda s: T.reduce_sum(s, 0), 727.142, None),
    "sum 1": (lambda s: T.reduce_sum(s, [-1], keepdims=True), 374.808, None),
    "sparse sum": (lambda s: T.reduce_sum(s, 1, output_is_sparse=True), 374.808, 287),
    "max 0": (lambda s: T.reduce_max(s, 0), 727.418, None),
    "max 1": (lambda s: T.reduce_max(s, 1), 290.055, None),
    "sparse max": (lambda s: T.reduce_max(s, 1, True, True), 290.055, 287),
    "add": (lambda s: T.add(s, OTHER), 1455.978, 1800),
    "add threshold": (lambda s: T.add(s, OTHER, threshold=0.5), 1451.137, 1781),
    "concat 0": (lambda s: T.concat(0, [s, OTHER]), 1484.668, 1850),
    "concat 1": (lambda s: T.concat(-1, [s, OTHER]), 1484.668, 1850),
    "slice": (lambda s: T.slice(s, [10, 1000], [100, 200_000]), 121.73, 144),
    "split": (lambda s: T.split(s, 3, 1)[0], 241.407, 298),
    "transpose": (T.transpose, 728.681, 900),
    "reorder": (T.reorder, 728.681, 900),
    "reshape": (lambda s: T.reshape(s, [600, -1]), 728.681, 900),
    "expand_dims": (lambda s: T.expand_dims(s, 0), 728.681, 900),
    "retain": (lambda s: T.retain(s, s.values > 0), 381.939, 458),
    "fill_empty_rows": (lambda s: T.fill_empty_rows(s, 7.0)[0], 819.681, 913),
    "softmax": (T.softmax, 287.0, 900),
    "minimum": (lambda s: T.minimum(s, OTHER), 746.594, 1800),
    "maximum": (lambda s: T.maximum(s, OTHER), 738.074, 1800),
    "map_values": (lambda s: T.map_values(tf.multiply, s, s), 934.193, 900),
    "reset_shape": (T.reset_shape, 728.681, 900),
    "square": (tf.square, 934.193, 900),
    "cast": (lambda s: tf.cast(s, tf.float64), 728.681, 900),
    "multiply rows": (lambda s: s * LEFT[:, :1], 358.613, 900),
    "multiply columns": (lambda s: s * RIGHT[:, 0], 361.041, 900),
    "divide": (lambda s: s / (LEFT[:, :1] + 1), 507.75, 900),
    "identity": (tf.identity, 728.681, 900),
    "shape": (tf.shape, 400_300, None),
}


def get_peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("name", OPS)
def test_ops_without_the_dense_matrix(name, traced):
    function, expected, count = OPS[name]
    before = get_peak()
    result = (tf.function(function) if traced else function)(make_sparse())
    assert get_peak() - before < MAX_MB
    if count is not None:
        assert isinstance(result, tf.SparseTensor) and result.values.shape == [count]
        positions = result.indices.numpy()
        assert np.array_equal(np.lexsort(positions.T[::-1]), np.arange(count))  # In order.
        result = result.values
    np.testing.assert_allclose(np.abs(result.numpy()).sum(dtype=float), expected, rtol=1e-5)


# Each function of a sparse and a dense operand, with the sums of the gradients' magnitudes.
GRADIENTS = {
    "matmul": (lambda s, w: T.sparse_dense_matmul(s, w), RIGHT),
    "matmul a": (lambda s, w: T.sparse_dense_matmul(s, w, adjoint_a=True), LEFT),
    "multiply": (lambda s, w: (s * w[:, :1]).values, LEFT),
    "divide": (lambda s, w: (s / (w[:, :1] + 2)).values, LEFT),
    "sum": (lambda s, w: T.reduce_sum(s, 1) * w[:, 0], LEFT),
    "transpose": (lambda s, w: T.sparse_dense_matmul(T.transpose(s), w), LEFT),
    "softmax": (lambda s, w: T.softmax(s).values * w[0, 0], LEFT),
    "slice": (lambda s, w: T.reduce_sum(T.slice(s, [9, 9], [99, 199_999]), 1) * w[0, 0], LEFT),
}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_without_the_dense_matrix(name, traced):
    """Compare with differences along a random direction."""
    function, start = GRADIENTS[name]

    def loss(values, w):
        return tf.reduce_sum(tf.square(function(make_sparse(values), w)))

    def gradients(values, w):
        with tf.GradientTape() as tape:
            tape.watch([values, w])
            total = loss(values, w)
        return tape.gradient(total, [values, w])

    point = [tf.constant(VALUES, tf.float64), tf.constant(start, tf.float64)]
    before = get_peak()
    found = (tf.function(gradients) if traced else gradients)(*point)
    assert get_peak() - before < MAX_MB
    r = np.random.RandomState(1)
    for k, gradient in enumerate(found):
        step = np.zeros_like(point[k])
        step[r.randint(0, len(step), 200)] = 1e-6
        plus, minus = (
            loss(*[p + s * step if k == i else p for i, p in enumerate(point)]) for s in (1, -1)
        )
        slope = float(tf.reduce_sum(tf.convert_to_tensor(gradient) * step))
        np.testing.assert_allclose(slope, float(plus - minus) / 2, rtol=1e-4, atol=1e-9)


def test_functions_are_traced_once_for_all_indices():
    traces = []

    @tf.function
    def multiply(s, w):
        traces.append(s.shape)
        return T.sparse_dense_matmul(s, w), T.transpose(s)

    for column in range(3):
        sparse = tf.SparseTensor([[0, column], [1, 2]], [2.0, 3.0], [2, 4])
        product, transposed = multiply(sparse, tf.eye(4))
        np.testing.assert_array_equal(product, T.to_dense(sparse))
        np.testing.assert_array_equal(T.to_dense(transposed), np.transpose(product))
    assert len(traces) == 1


def test_loops_and_branches_carry_sparse_tensors():
    @tf.function
    def power(s, n):
        for _ in tf.range(n):
            s = s.with_values(s.values * 2.0)
        if n > 2:
            s = s.with_values(-s.values)
        return s

    sparse = tf.SparseTensor([[0, 1]], [1.0], [1, 3])
    assert T.to_dense(power(sparse, tf.constant(3))).numpy().tolist() == [[0, -8, 0]]
    assert T.to_dense(power(sparse, tf.constant(2))).numpy().tolist() == [[0, 4, 0]]


def test_errors():
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of bounds"):
        T.sparse_dense_matmul(tf.SparseTensor([[0, 9]], [1.0], [2, 3]), tf.ones([3, 1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not broadcast"):
        tf.SparseTensor([[0, 1]], [1.0], [2, 3]) * tf.ones([2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not match"):
        T.add(tf.SparseTensor([[0, 1]], [1.0], [2, 3]), tf.ones([3]))
