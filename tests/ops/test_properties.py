"""Values and gradients of ops against NumPy in float64 and its differences, for odd sizes and with NaN."""

import numpy as np
import pytest
import scipy.special as sp

import meshflow as tf
from helpers import rounds

pytestmark = pytest.mark.nan_expected

REAL, POSITIVE, UNIT, INSIDE, ABOVE = (-2.5, 2.5), (0.3, 3.0), (0.1, 0.9), (-0.9, 0.9), (1.2, 4.0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    return x - sp.logsumexp(x, axis=-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def windows(x, combine):
    """[batch, rows, columns] in windows of 2 x 2 that tile it, without the rest."""
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    return combine(x.reshape(x.shape[0], x.shape[1] // 2, 2, -1, 2), axis=(2, 4))


def convolve(x, w):
    rows, columns = x.shape[0] - w.shape[0] + 1, x.shape[1] - w.shape[1] + 1
    shifts = [(i, j) for i in range(w.shape[0]) for j in range(w.shape[1])]
    return sum(x[i : i + rows, j : j + columns] * w[i, j] for i, j in shifts)


def gelu(x):
    return x * sp.ndtr(x)


SELU = 1.0507009873554805, 1.6732632423543772
nn, m = tf.nn, tf.math

# Op, NumPy's, and the range of the numbers.
OF_ONE = {
    "exp": (tf.exp, np.exp, REAL),
    "expm1": (m.expm1, np.expm1, REAL),
    "log": (m.log, np.log, POSITIVE),
    "log1p": (m.log1p, np.log1p, POSITIVE),
    "sqrt": (tf.sqrt, np.sqrt, POSITIVE),
    "rsqrt": (m.rsqrt, lambda x: x**-0.5, POSITIVE),
    "square": (tf.square, np.square, REAL),
    "reciprocal": (m.reciprocal, np.reciprocal, POSITIVE),
    "negative": (tf.negative, np.negative, REAL),
    "abs": (tf.abs, np.abs, POSITIVE),
    "sin": (tf.sin, np.sin, REAL),
    "cos": (tf.cos, np.cos, REAL),
    "tan": (tf.tan, np.tan, INSIDE),
    "asin": (tf.asin, np.arcsin, INSIDE),
    "acos": (tf.acos, np.arccos, INSIDE),
    "atan": (tf.atan, np.arctan, REAL),
    "sinh": (tf.sinh, np.sinh, REAL),
    "cosh": (tf.cosh, np.cosh, REAL),
    "tanh": (tf.tanh, np.tanh, REAL),
    "asinh": (tf.asinh, np.arcsinh, REAL),
    "acosh": (tf.acosh, np.arccosh, ABOVE),
    "atanh": (tf.atanh, np.arctanh, INSIDE),
    "erf": (m.erf, sp.erf, REAL),
    "erfc": (m.erfc, sp.erfc, REAL),
    "erfinv": (m.erfinv, sp.erfinv, INSIDE),
    "ndtri": (m.ndtri, sp.ndtri, UNIT),
    "lgamma": (m.lgamma, sp.gammaln, POSITIVE),
    "digamma": (m.digamma, sp.digamma, POSITIVE),
    "bessel_i0e": (m.bessel_i0e, sp.i0e, REAL),
    "bessel_i1e": (m.bessel_i1e, sp.i1e, REAL),
    "sigmoid": (tf.sigmoid, sigmoid, REAL),
    "log_sigmoid": (m.log_sigmoid, lambda x: np.log(sigmoid(x)), REAL),
    "softplus": (m.softplus, lambda x: np.log1p(np.exp(x)), REAL),
    "softsign": (m.softsign, lambda x: x / (1 + np.abs(x)), REAL),
    "relu": (nn.relu, lambda x: np.maximum(x, 0), REAL),
    "relu6": (nn.relu6, lambda x: np.clip(x, 0, 6), (0.5, 9.0)),
    "leaky_relu": (nn.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x), REAL),
    "elu": (nn.elu, lambda x: np.where(x > 0, x, np.expm1(x)), REAL),
    "selu": (nn.selu, lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * np.expm1(x)), REAL),
    "gelu": (nn.gelu, gelu, REAL),
    "silu": (nn.silu, lambda x: x * sigmoid(x), REAL),
    "reduce_sum": (lambda x: tf.reduce_sum(x, 0), lambda x: x.sum(0), REAL),
    "reduce_mean": (lambda x: tf.reduce_mean(x, 1), lambda x: x.mean(1), REAL),
    "reduce_prod": (lambda x: tf.reduce_prod(x, 1), lambda x: x.prod(1), REAL),
    "reduce_max": (lambda x: tf.reduce_max(x, 1), lambda x: x.max(1), REAL),
    "reduce_min": (tf.reduce_min, np.min, REAL),
    "reduce_variance": (lambda x: m.reduce_variance(x, 1), lambda x: x.var(1), REAL),
    "reduce_std": (m.reduce_std, np.std, REAL),
    "reduce_logsumexp": (
        lambda x: tf.reduce_logsumexp(x, 1),
        lambda x: sp.logsumexp(x, axis=1),
        REAL,
    ),
    "euclidean_norm": (
        lambda x: m.reduce_euclidean_norm(x, 0),
        lambda x: (x**2).sum(0) ** 0.5,
        REAL,
    ),
    "cumsum": (lambda x: tf.cumsum(x, 1), lambda x: x.cumsum(1), REAL),
    "cumprod": (lambda x: m.cumprod(x, 1), lambda x: x.cumprod(1), REAL),
    "softmax": (nn.softmax, softmax, REAL),
    "log_softmax": (nn.log_softmax, log_softmax, REAL),
    "l2_normalize": (
        lambda x: m.l2_normalize(x, 1),
        lambda x: x / (x**2).sum(1, keepdims=True) ** 0.5,
        POSITIVE,
    ),
    "transpose": (tf.transpose, np.transpose, REAL),
    "reshape": (lambda x: tf.reshape(x, [-1]), np.ravel, REAL),
    "pad": (lambda x: tf.pad(x, [[1, 0], [2, 3]]), lambda x: np.pad(x, [[1, 0], [2, 3]]), REAL),
    "reflected": (
        lambda x: tf.pad(x, [[1, 1], [2, 0]], "REFLECT"),
        lambda x: np.pad(x, [[1, 1], [2, 0]], "reflect"),
        REAL,
    ),
    "tile": (lambda x: tf.tile(x, [2, 3]), lambda x: np.tile(x, [2, 3]), REAL),
    "roll": (lambda x: tf.roll(x, 2, 1), lambda x: np.roll(x, 2, 1), REAL),
    "reverse": (lambda x: tf.reverse(x, [1]), lambda x: x[:, ::-1], REAL),
    "strided_slice": (lambda x: x[1:, ::-2], lambda x: x[1:, ::-2], REAL),
    "gather": (lambda x: tf.gather(x, [2, 0, 2], axis=1), lambda x: x[:, [2, 0, 2]], REAL),
    "sort": (lambda x: tf.sort(x, 1), lambda x: np.sort(x, 1), REAL),
    "top_k": (lambda x: m.top_k(x, 2)[0], lambda x: -np.sort(-x, 1)[:, :2], REAL),
    "max_pool": (
        lambda x: nn.max_pool2d(x[None, :, :, None], 2, 2, "VALID")[..., 0],
        lambda x: windows(x[None], np.max),
        REAL,
    ),
    "avg_pool": (
        lambda x: nn.avg_pool2d(x[None, :, :, None], 2, 2, "VALID")[..., 0],
        lambda x: windows(x[None], np.mean),
        REAL,
    ),
}
OF_TWO = {
    "add": (tf.add, np.add, REAL),
    "subtract": (tf.subtract, np.subtract, REAL),
    "multiply": (tf.multiply, np.multiply, REAL),
    "divide": (tf.divide, np.divide, POSITIVE),
    "divide_no_nan": (m.divide_no_nan, np.divide, POSITIVE),
    "maximum": (tf.maximum, np.maximum, REAL),
    "minimum": (tf.minimum, np.minimum, REAL),
    "pow": (tf.pow, np.power, POSITIVE),
    "atan2": (m.atan2, np.arctan2, POSITIVE),
    "squared_difference": (m.squared_difference, lambda x, y: (x - y) ** 2, REAL),
    "xlogy": (m.xlogy, sp.xlogy, POSITIVE),
    "concat": (
        lambda x, y: tf.concat([x, y[None]], 0),
        lambda x, y: np.concatenate([x, y[None]]),
        REAL,
    ),
    "matvec": (tf.linalg.matvec, lambda x, y: x @ y, REAL),
    "einsum": (
        lambda x, y: tf.einsum("ij,j->ij", x, y),
        lambda x, y: np.einsum("ij,j->ij", x, y),
        REAL,
    ),
    "conv2d": (
        lambda x, y: nn.conv2d(x[None, :, :, None], y[:2, None, None, None], 1, "VALID")[
            0, :, :, 0
        ],
        lambda x, y: convolve(x, y[:2, None]),
        REAL,
    ),
}
# Where TensorFlow passes over NaN, or puts it where no other library does.
ORDERING = ("sort", "top_k", "max_pool", "erfinv", "ndtri")
STEP = 1e-5


def shapes(count):
    """Of one or two operands: odd sizes, and in long runs others."""
    sizes = [(3, 7), (5, 3), (4, 9), (2, 5), (7, 4), (3, 17)][: rounds(1, 6)]
    return [[size, size[1:]][:count] for size in sizes]


def check(op, reference, span, given, seed):
    draws = np.random.default_rng(seed)
    # Numbers with distances from each other and from 0, so that no maximum and no kink is within a
    # step.
    values = []
    for shape in given:
        steps = draws.permutation(int(np.prod(shape))) + 0.37
        values.append((span[0] + (span[1] - span[0]) * steps / np.prod(shape)).reshape(shape))
    if len(values) == 2:
        values[1] = values[1] + 0.0113 * (span[1] - span[0])
    tensors = [tf.constant(v, tf.float32) for v in values]
    exact = [t.numpy().astype(np.float64) for t in tensors]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = op(*tensors)
    expected = reference(*exact)
    assert result.dtype == tf.float32 and tuple(result.shape) == np.shape(expected)
    np.testing.assert_allclose(result.numpy(), expected, rtol=3e-5, atol=3e-5)

    weights = draws.uniform(0.5, 1.5, np.shape(expected))
    directions = [draws.normal(size=v.shape) for v in values]
    found = tape.gradient(result, tensors, tf.constant(weights, tf.float32))
    parts = [
        np.sum(g.numpy().astype(np.float64) * d) for g, d in zip(found, directions, strict=True)
    ]

    def moved(by):
        return np.sum(
            weights * reference(*(v + by * d for v, d in zip(exact, directions, strict=True)))
        )

    difference = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    scale = sum(np.sum(np.abs(g.numpy() * d)) for g, d in zip(found, directions, strict=True))
    assert abs(sum(parts) - difference) <= 2e-4 * max(scale, 1), (sum(parts), difference)
    return tensors


def check_nan(op, reference, tensors):
    """NaN is in the result where NumPy has it."""
    values = tensors[0].numpy()
    values[1, 1] = np.nan
    others = [t.numpy() for t in tensors[1:]]
    with np.errstate(all="ignore"):
        expected = reference(*(v.astype(np.float64) for v in (values, *others)))
    found = op(tf.constant(values), *tensors[1:]).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize("name", OF_ONE)
def test_unary_op(name):
    op, reference, span = OF_ONE[name]
    for seed, given in enumerate(shapes(1)):
        tensors = check(op, reference, span, given, seed)
        if name not in ORDERING:
            check_nan(op, reference, tensors)


@pytest.mark.parametrize("name", OF_TWO)
def test_op_of_two(name):
    op, reference, span = OF_TWO[name]
    for seed, given in enumerate(shapes(2)):
        check_nan(op, reference, check(op, reference, span, given, seed))
