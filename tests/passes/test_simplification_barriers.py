"""Test that compiled functions equal their operations run one by one, also for overflow and
wrap-around."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.simplification_barriers import insert_simplification_barriers

pytestmark = [pytest.mark.nan_expected, pytest.mark.optimized]
F = np.float32
INF = np.inf
VALUES = np.array(
    [
        0.0,
        1,
        -1,
        2,
        -3,
        0.5,
        89,
        -200,
        1e30,
        -1e30,
        1e-30,
        8e37,
        INF,
        -INF,
        np.nan,
        4,
        0.1,
        16777217,
    ],
    F,
)
OPS = {
    "exp": tf.exp,
    "log": tf.math.log,
    "sqrt": tf.sqrt,
    "rsqrt": tf.math.rsqrt,
    "square": lambda x: x * x,
    "tf.square": tf.square,
    "pow2": lambda x: tf.pow(x, 2.0),
    "pow.5": lambda x: tf.pow(x, 0.5),
    "pow-1": lambda x: tf.pow(x, -1.0),
    "times": lambda x: x * 1e30,
    "by": lambda x: x / 1e30,
    "tiny": lambda x: x * 1e-30,
    "inverse": lambda x: 1.0 / x,
    "plus": lambda x: x + 1e8,
    "minus": lambda x: x - 1e8,
    "from": lambda x: 1.0 - x,
    "zero": lambda x: x * 0.0,
    "itself": lambda x: x / x,
    "abs": tf.abs,
    "sign": tf.sign,
    "negative": lambda x: tf.cast(x < 0, tf.float32),
    "positive": lambda x: tf.cast(tf.abs(x) >= 0, tf.float32),
    "twice": lambda x: x + x,
    "int": lambda x: tf.cast(tf.cast(x, tf.int32), tf.float32),
    "half": lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32),
    "mean": lambda x: tf.reduce_mean(tf.broadcast_to(x[:, None], [x.shape[0], 8]), 1),
    "sum": lambda x: tf.reduce_sum(x[:, None], 1),
    "column": lambda x: tf.matmul(x[:, None], tf.ones([1, 1]))[:, 0],
}
# XLA rounds a product and a sum once, TensorFlow twice.
ROUNDED = 3e-7


def assert_same(got, expected):
    got, expected = np.asarray(got), np.asarray(expected)
    # Processors flush subnormal numbers in some instructions only.
    got, expected = (np.where(np.abs(a) < 1e-37, 0, a) for a in (got, expected))
    np.testing.assert_allclose(got, expected, rtol=4e-6, atol=ROUNDED)


@pytest.mark.parametrize("first", OPS)
def test_pairs_of_operations_equal_separate_operations(first):
    x = tf.constant(VALUES)
    middle = OPS[first](x)

    @tf.function
    def run_pairs(x):
        return {name: second(OPS[first](x)) for name, second in OPS.items()}

    for name, result in run_pairs(x).items():
        expected = OPS[name](middle)
        if (first, name) in {("times", "from"), ("tiny", "from"), ("by", "from")}:
            continue  # a fused product and sum
        try:
            assert_same(result, expected)
        except AssertionError as error:
            raise AssertionError(f"{name}({first}(x)): {error}") from None


TWO_OPERANDS = {
    "exp * exp": lambda a, b: tf.exp(a) * tf.exp(b),
    "exp / exp": lambda a, b: tf.exp(a) / tf.exp(b),
    "pow pow": lambda a, b: tf.pow(tf.pow(a, b), a),
    "log pow": lambda a, b: tf.math.log(tf.pow(a, b)),
    "pow exp": lambda a, b: tf.pow(tf.exp(a), b),
    "a / exp": lambda a, b: a / tf.exp(b),
    "a / pow": lambda a, b: a / tf.pow(b, a),
    "a / (b / a)": lambda a, b: a / (b / a),
    "a / b / b": lambda a, b: a / b / b,
    "(a / b) / (b / a)": lambda a, b: (a / b) / (b / a),
    "a * b / b": lambda a, b: a * b / b,
    "a + b - a": lambda a, b: a + b - a,
    "a - (a - b)": lambda a, b: a - (a - b),
    "outer product": lambda a, b: tf.sqrt(tf.matmul(a[:, None], a[None, :])[0]),
    "select": lambda a, b: tf.where(a * a < 0, a, -(a * a)),
    "scalar": lambda a, b: a * b[0] / b[0],
    "two scalars": lambda a, b: (a * b[0]) * (a * b[0]),
    "root of sum": lambda a, b: tf.sqrt(tf.reduce_sum(a[:, None] * a[:, None], 1)),
    "minus infinity": lambda a, b: tf.maximum(a * 0.0, b) - b,
}


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_operations_on_two_operands_equal_separate_operations(name):
    # The first element of the second operand is a large scale.
    a, b = np.array(list(itertools.product(VALUES, [1e30, 0.7, 3e38, INF, 0.0, -2.0])), F).T
    a, b = tf.constant(a), tf.constant(b)
    assert_same(tf.function(TWO_OPERANDS[name])(a, b), TWO_OPERANDS[name](a, b))


INTEGERS = {
    "square": lambda a: tf.where(a * a < 0, tf.abs(a * a), a * a),
    "tf.square": lambda a: tf.abs(tf.square(a)),
    "abs < 0": lambda a: tf.abs(a) < 0,
    "abs >= 0": lambda a: tf.where(tf.abs(a) >= 0, a, a // 2),
    "abs abs": lambda a: tf.abs(tf.abs(a)),
    "sign": lambda a: tf.sign(a * a),
    "double": lambda a: tf.where(a + a < 0, tf.abs(a + a), a + a),
    "larger": lambda a: a + 1 > a,
    "scale": lambda a: tf.truncatediv(a * 3, 3),
    "shift": lambda a: tf.truncatediv(a * 2, 2),
    "chain": lambda a: a // 3 // 5,
    "maximum": lambda a: tf.maximum(a * a, 0),
    "clip": lambda a: tf.clip_by_value(a * a, 0, 100),
    "float": lambda a: tf.sqrt(tf.cast(a * a, tf.float32)),
    "float and back": lambda a: tf.cast(tf.cast(a, tf.float32), a.dtype),
    "sum": lambda a: tf.reduce_sum(a * a) < 0,
    "negate": lambda a: -tf.abs(a) < 0,
}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_wrap_around_in_functions(dtype):
    limits = np.iinfo(dtype)
    a = tf.constant([0, 1, -1, 7, 12, 15, 20, limits.max, limits.min, limits.max // 2 + 1], dtype)
    results = tf.function(lambda a: {name: f(a) for name, f in INTEGERS.items()})(a)
    for name, f in INTEGERS.items():
        # A conversion of a float that is out of range is undefined.
        count = 7 if name == "float and back" else 10
        got, expected = np.atleast_1d(results[name]), np.atleast_1d(f(a))
        np.testing.assert_array_equal(got[:count], expected[:count], name)


# XLA of JAX 0.12 simplifies only one of the examples below.
IS_EXACT = math.isinf(jax.jit(lambda x: jnp.log(jnp.exp(x)))(F(89)))
# Values of TensorFlow 2.21: of a function without and with `jit_compile`.
TENSORFLOW = {
    "log(exp)": (lambda a: tf.math.log(tf.exp(a)), 89.0, INF, 89.0),
    "sqrt(square)": (lambda a: tf.sqrt(a * a), F(1e30), INF, F(1e30)),
    "mean": (lambda a: tf.reduce_mean(tf.broadcast_to(a, [10])), F(3e38), INF, F(3e38)),
    "log(pow)": (lambda a: tf.math.log(tf.pow(a, 0.5)), -1.0, np.nan, 0.0),
    "exp * exp": (lambda a: tf.exp(a) * tf.exp(-a), 100.0, np.nan, 1.0),
    "exp / exp": (lambda a: tf.exp(a) / tf.exp(a), 100.0, np.nan, 1.0),
    "pow(pow)": (lambda a: tf.pow(tf.pow(a, 2.0), 0.5), F(1e30), INF, F(1e30)),
}


@pytest.mark.parametrize("name", TENSORFLOW)
def test_only_jit_compile_simplifies(name, compile_tier):
    f, value, expected, simplified = TENSORFLOW[name]
    x = tf.constant(value, tf.float32)
    np.testing.assert_equal(tf.function(f)(x).numpy(), F(expected))
    compiled = tf.function(f, jit_compile=True)(x).numpy()
    is_exact = IS_EXACT and name != "log(pow)"
    np.testing.assert_equal(compiled, F(expected if is_exact else simplified))


@pytest.mark.parametrize(
    ("jit_compile", "expected"), [(None, INF), (True, INF if IS_EXACT else 89.0)]
)
def test_only_jit_compile_simplifies_in_fit(jit_compile, expected):
    class Model(tf.keras.Model):
        def call(self, x):
            return tf.math.log(tf.exp(x))

    model = Model()
    model.compile(jit_compile=jit_compile)
    np.testing.assert_equal(model.predict(np.array([[89.0]], F), verbose=0), [[F(expected)]])


def test_gradients_of_functions_use_the_same_values():
    # TensorFlow 2.21: the gradient is exp(x) / exp(x).
    f = tf.function(lambda x: tf.math.log(tf.exp(x)))
    x = tf.Variable([1.0, 89.0])
    with tf.GradientTape() as tape:
        y = f(x)
    np.testing.assert_allclose(y, [1.0, INF], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x), [1.0, np.nan], rtol=1e-6)


def test_barriers_follow_values_through_calls_and_loops():
    inner = jax.jit(jnp.log)

    def f(x):
        return jax.lax.fori_loop(0, 2, lambda _, y: inner(jnp.exp(y)), x)

    closed = insert_simplification_barriers(jax.make_jaxpr(f)(F(89)))
    assert "optimization_barrier" in str(closed)
    np.testing.assert_equal(np.asarray(jax.jit(jex_core.jaxpr_as_fun(closed))(F(89.0))[0]), INF)


def test_accelerators_use_a_conversion_to_the_same_precision(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    closed = insert_simplification_barriers(jax.make_jaxpr(lambda x: jnp.log(jnp.exp(x)))(F(89)))
    assert "reduce_precision" in str(closed) and "optimization_barrier" not in str(closed)
    monkeypatch.undo()
    np.testing.assert_equal(np.asarray(jax.jit(jex_core.jaxpr_as_fun(closed))(F(89))[0]), INF)


def test_programs_without_pairs_are_not_changed():
    def layer(x, w, b):
        y = x @ w + b
        return jnp.tanh(y * 0.5) + jnp.maximum(y, 0) - jnp.exp(-y) / (1 + jnp.sum(y))

    closed = jax.make_jaxpr(layer)(np.ones((2, 3), F), np.ones((3, 4), F), np.ones(4, F))
    assert insert_simplification_barriers(closed) is closed
