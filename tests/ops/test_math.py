import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import meshflow as tf
from helpers import assert_close, check_gradients

UNARY = {
    "abs": np.abs,
    "negative": np.negative,
    "square": np.square,
    "exp": np.exp,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "log_sigmoid": scipy.special.log_expit,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "sinc": np.sinc,
    "bessel_i0": scipy.special.i0,
    "bessel_i1": scipy.special.i1,
}
POSITIVE = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "log": np.log,
    "log1p": np.log1p,
    "reciprocal": lambda x: 1 / x,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
    "acosh": lambda x: np.arccosh(x + 1),
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions_and_their_gradients(name, rng):
    x = rng.normal(size=(2, 3)) + 0.1
    assert_close(getattr(tf.math, name)(tf.constant(x)), UNARY[name](x), 1e-7)
    check_gradients(getattr(tf.math, name), x, rtol=1e-4)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name, rng):
    x = rng.uniform(0.5, 2, size=(2, 3))
    shifted = x + 1 if name == "acosh" else x
    assert_close(getattr(tf.math, name)(tf.constant(shifted)), POSITIVE[name](x), 1e-6)
    check_gradients(getattr(tf.math, name), shifted, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(np.float64, (2, 3), elements=st.floats(-4, 4, allow_subnormal=False)),
    hnp.arrays(np.float64, (3,), elements=st.floats(0.5, 4)),
)
def test_binary_functions_broadcast_like_numpy(a, b):
    for name, reference in [
        ("add", np.add),
        ("subtract", np.subtract),
        ("multiply", np.multiply),
        ("divide", np.divide),
        ("maximum", np.maximum),
        ("minimum", np.minimum),
        ("floordiv", np.floor_divide),
        ("floormod", np.mod),
        ("squared_difference", lambda x, y: (x - y) ** 2),
    ]:
        assert_close(getattr(tf.math, name)(a, b), reference(a, b), 1e-9, 1e-9)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, [0, 2], [1]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(axis, keepdims, rng):
    x = rng.normal(size=(2, 3, 4))
    where = tuple(axis) if isinstance(axis, list) else axis
    for name, reference in [
        ("sum", np.sum),
        ("mean", np.mean),
        ("max", np.max),
        ("min", np.min),
        ("prod", np.prod),
        ("std", np.std),
        ("variance", np.var),
    ]:
        assert_close(
            getattr(tf.math, f"reduce_{name}")(x, axis, keepdims),
            reference(x, axis=where, keepdims=keepdims),
            1e-6,
        )
    assert_close(
        tf.reduce_logsumexp(x, axis, keepdims),
        scipy.special.logsumexp(x, axis=where, keepdims=keepdims),
    )
    np.testing.assert_array_equal(
        tf.reduce_any(x > 1, axis, keepdims).numpy(), np.any(x > 1, axis=where, keepdims=keepdims)
    )


@pytest.mark.parametrize("shape", [(3,), (1, 1, 3), (1, 1, 1, 3)])
def test_rows_broadcast_to_the_larger_rank(shape):
    x, row = tf.ones([10, 40, 3]), tf.zeros(shape)
    expected = np.broadcast_shapes(x.shape, shape)
    for result in (x + row, row < x, tf.maximum(row, x)):
        assert result.shape == expected


def test_integer_rules():
    assert tf.reduce_mean([1, 2]).numpy() == 1 and tf.reduce_mean([1, 2]).dtype == tf.int32
    assert (tf.constant(7) / 2).dtype == tf.float64
    assert int(tf.constant(-7) // 2) == -4 and int(tf.constant(-7) % 3) == 2
    assert tf.reduce_sum(tf.constant([200, 100], tf.uint8)).dtype == tf.uint8
    with pytest.raises(tf.errors.InvalidArgumentError, match="int32"):
        tf.sqrt(4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="reduction dimension"):
        tf.reduce_sum([1.0], axis=3)


def test_rounding_is_to_even():
    assert_close(tf.round([0.5, 1.5, 2.5, -0.5]), [0, 2, 2, 0])


def test_safe_functions_and_their_gradients_at_zero():
    assert_close(tf.math.divide_no_nan([1.0, 2.0], [0.0, 4.0]), [0, 0.5])
    assert_close(tf.math.multiply_no_nan([np.inf, 2.0], [0.0, 4.0]), [0, 8])
    assert_close(tf.math.xlogy([0.0, 2.0], [0.0, np.e]), [0, 2])
    x = tf.constant(0.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.math.divide_no_nan(tf.constant(3.0), x)
    assert float(tape.gradient(y, x)) == 0


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(exclusive, reverse, rng):
    x = rng.normal(size=(2, 4))
    y = x[:, ::-1] if reverse else x
    expected = np.cumsum(y, 1)
    expected = np.concatenate([np.zeros((2, 1)), expected[:, :-1]], 1) if exclusive else expected
    assert_close(tf.cumsum(x, 1, exclusive, reverse), expected[:, ::-1] if reverse else expected)
    check_gradients(lambda t: tf.cumsum(t, 1, exclusive, reverse) ** 2, x)


def test_clipping():
    assert_close(tf.clip_by_norm([3.0, 4.0], 1.0), [0.6, 0.8])
    assert_close(tf.clip_by_norm([0.3, 0.4], 1.0), [0.3, 0.4])
    clipped, norm = tf.clip_by_global_norm([tf.constant([3.0]), None, tf.constant([4.0])], 2.5)
    assert float(norm) == 5 and clipped[1] is None
    assert_close(clipped[0], [1.5])


def test_segments():
    x = np.arange(8.0).reshape(4, 2)
    assert_close(tf.math.segment_sum(x, [0, 0, 2, 2]), [[2, 4], [0, 0], [10, 12]])
    assert_close(tf.math.segment_mean(x, [0, 0, 1, 1]), [[1, 2], [5, 6]])
    means = tf.math.segment_mean([1, 2, 4], [0, 0, 0])
    assert means.dtype == tf.int32 and means.numpy().tolist() == [2]
    assert_close(tf.math.unsorted_segment_max(x, [1, 0, 1, -1], 2), [[2, 3], [4, 5]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="increasing"):
        tf.math.segment_sum(x, [1, 0, 0, 0])


def test_counting():
    np.testing.assert_array_equal(tf.math.bincount([1, 1, 3]).numpy(), [0, 2, 0, 1])
    np.testing.assert_array_equal(
        tf.math.confusion_matrix([0, 1, 1], [0, 0, 1]).numpy(), [[1, 0], [1, 1]]
    )
    values, indices = tf.math.top_k([1.0, 5.0, 3.0], 2)
    assert_close(values, [5, 3])
    np.testing.assert_array_equal(indices.numpy(), [1, 2])
    np.testing.assert_array_equal(
        tf.math.in_top_k([0, 2, 7], [[1.0, 2.0, 3.0]] * 3, 1).numpy(), [False, True, False]
    )


def test_matmul_transpositions_and_errors(rng):
    a, b = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    assert_close(tf.matmul(a, b, transpose_b=True), a @ b.swapaxes(1, 2))
    assert_close(
        tf.matmul(a.swapaxes(1, 2), b, transpose_a=True, transpose_b=True), a @ b.swapaxes(1, 2)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2, 3, 4\]"):
        tf.matmul(a, b)
    check_gradients(lambda x, y: tf.matmul(x, y, transpose_b=True), a[0], b[0])


LINALG = {
    "inv": np.linalg.inv,
    "det": np.linalg.det,
    "trace": np.trace,
    "pinv": np.linalg.pinv,
    "matrix_transpose": np.transpose,
}


@pytest.mark.parametrize("name", LINALG)
def test_linalg(name, rng):
    x = rng.normal(size=(3, 3)) + 3 * np.eye(3)
    assert_close(getattr(tf.linalg, name)(x), LINALG[name](x), 1e-6)
    check_gradients(getattr(tf.linalg, name), x, rtol=1e-4)


def test_factorizations(rng):
    x = rng.normal(size=(4, 3))
    s, u, v = tf.linalg.svd(x)
    assert_close(u.numpy() * s.numpy() @ v.numpy().T, x)
    q, r = tf.linalg.qr(x)
    assert_close(q.numpy() @ r.numpy(), x)
    gram = x.T @ x
    low = tf.linalg.cholesky(gram).numpy()
    assert_close(low @ low.T, gram)
    assert_close(tf.linalg.solve(gram, x.T), np.linalg.solve(gram, x.T))
    values, vectors = tf.linalg.eigh(gram)
    assert_close(vectors.numpy() * values.numpy() @ vectors.numpy().T, gram)
    assert_close(tf.norm(x, ord=1, axis=0), np.abs(x).sum(0))
    assert_close(
        tf.linalg.band_part(np.ones((3, 3)), 0, 1),
        np.triu(np.ones((3, 3))) - np.triu(np.ones((3, 3)), 2),
    )


def test_integers_have_norms_of_order_1_and_infinity():
    x = tf.constant([[3, -4], [1, 2]])
    assert tf.norm(x, ord=1).numpy() == 10 and tf.norm(x, ord=1).dtype is tf.int32
    assert tf.norm(x, ord=float("inf"), axis=1).numpy().tolist() == [4, 2]
    assert tf.norm(x, ord=float("inf"), axis=(0, 1)).numpy() == 7
    with pytest.raises(tf.errors.InvalidArgumentError, match="ord='euclidean'"):
        tf.norm(x)


@pytest.mark.parametrize(
    ("function", "operands", "expected"),
    [
        (tf.maximum, ([1.0, 0.0, 2.0], [1.0, 1.0, 1.0]), ([1, 0, 1], [0, 1, 0])),
        (tf.minimum, ([1.0, 0.0, 2.0], [1.0, 1.0, 1.0]), ([1, 1, 0], [0, 0, 1])),
        (tf.clip_by_value, ([0.0, 1.0, -1.0, 2.0, 0.5], 0.0, 1.0), ([1, 1, 0, 0, 1], 1, 1)),
        (tf.abs, ([0.0, -2.0, 2.0],), ([0, -1, 1],)),
        (tf.sign, ([0.0, -2.0],), ([0, 0],)),
        (tf.math.xlogy, ([0.0, 1.0], [0.0, 2.0]), ([0, np.log(2)], [0, 0.5])),
        (tf.math.xlog1py, ([0.0], [-1.0]), ([0], [0])),
        (tf.keras.losses.mae, ([[1.0, 2.0]], [[1.0, 3.0]]), ([[0, -0.5]], [[0, 0.5]])),
        (tf.keras.losses.hinge, ([[1.0, -1.0]], [[1.0, -1.0]]), ([[-0.5, 0.5]], [[-0.5, 0.5]])),
        (lambda x: tf.keras.activations.hard_sigmoid(x), ([-2.5, 2.5],), ([0.2, 0.2],)),
        (lambda x: tf.keras.activations.relu(x, 0.1, 1.0, 0.2), ([0.0, 0.2, 1.0],), ([0.1, 0, 1],)),
    ],
)
def test_gradients_at_kinks(function, operands, expected):
    tensors = [tf.constant(o) for o in operands]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    for gradient, wanted in zip(tape.gradient(y, tensors), expected, strict=True):
        assert_close(gradient, wanted)


def test_approximately_smallest_elements_are_exact_on_cpus():
    values, places = tf.math.approx_min_k([[3.0, 1.0, 2.0], [0.0, 9.0, 5.0]], 2)
    np.testing.assert_array_equal(values.numpy(), [[1, 2], [0, 5]])
    np.testing.assert_array_equal(places.numpy(), [[1, 2], [0, 2]])
    values, _ = tf.math.approx_min_k([[3.0, 1.0], [0.0, 9.0]], 1, reduction_dimension=0)
    np.testing.assert_array_equal(values.numpy(), [[0, 1]])


@pytest.mark.parametrize("order", [0, -np.inf, -1, "nuc", "fro"])
def test_invalid_vector_norms_are_refused(order):
    with pytest.raises(ValueError, match=f"must be a supported vector norm, got {order}"):
        tf.linalg.norm([3.0, 4.0], order)


@pytest.mark.parametrize("order", [0, -np.inf, 3, "nuc"])
def test_invalid_matrix_norms_are_refused(order):
    with pytest.raises(
        ValueError, match=r"supported matrix norm in \['euclidean', 'fro', 1, 2, inf\]"
    ):
        tf.linalg.norm([[3.0, 4.0]], order, axis=[0, 1])


@pytest.mark.parametrize("axis", [(1,), (0, 0), [0, 1, 2]])
def test_norms_are_along_one_or_two_dimensions(axis):
    with pytest.raises(ValueError, match="'axis' must be None, an integer, or a tuple of 2"):
        tf.norm([[3.0, 4.0]], axis=axis)


def test_clip_by_global_norm_of_python_values():
    clipped, norm = tf.clip_by_global_norm([3.0, None, [0.0, 4.0]], 1.0)
    assert float(norm) == 5 and clipped[1] is None
    assert_close(clipped[0], 0.6)
    assert_close(clipped[2], [0.0, 0.8])


def test_eigenvalues_of_hermitian_matrices_have_their_dtype():
    matrix = tf.constant([[1 + 0j, 2j], [-2j, 3 + 0j]])
    values, vectors = tf.linalg.eigh(matrix)
    assert values.dtype == tf.linalg.eigvalsh(matrix).dtype == tf.complex128
    np.testing.assert_allclose((vectors * values) @ tf.linalg.adjoint(vectors), matrix, atol=1e-12)
    operator = tf.linalg.LinearOperatorFullMatrix(matrix, is_self_adjoint=True)
    assert operator.eigvals().dtype == tf.complex128
    with pytest.raises(tf.errors.InvalidArgumentError, match="positive definite"):
        operator.assert_positive_definite()


def test_approximate_equality_needs_equal_shapes():
    assert tf.math.approximate_equal([1.0], [1.05], 0.1).numpy().tolist() == [True]
    with pytest.raises(tf.errors.InvalidArgumentError, match="of the same shape"):
        tf.math.approximate_equal([1.0, 2.0], 1.0)


def test_products_of_small_integers_are_added_in_the_output_type():
    x = tf.constant([[100, 2], [3, 4]], tf.int8)
    product = tf.matmul(x, x, output_type=tf.int32)
    assert product.dtype is tf.int32 and product.numpy().tolist() == [[10006, 208], [312, 22]]


def test_derivatives_outside_of_domains():
    # TensorFlow 2.15.1
    for function, points, expected in (
        (tf.math.acosh, [0.5, -2.0, 2.0], [np.nan, np.nan, 0.57735026]),
        (tf.math.ndtri, [0.0, 1.0, 0.5], [np.inf, np.inf, 2.5066283]),
        (tf.math.erfcinv, [0.0, 2.0, 1.0], [-np.inf, -np.inf, -0.8862269]),
    ):
        x = tf.constant(points)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-5)
