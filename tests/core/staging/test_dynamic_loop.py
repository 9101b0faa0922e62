"""The while loop with gradients, on arrays, against unrolled loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from helpers import combine
from meshflow.core.staging import dynamic_loop


def run_loop(x, a, n, limit=None):
    return dynamic_loop.while_loop(
        lambda carry, consts: carry[0] < consts[1],
        lambda carry, consts: [carry[0] + 1, jnp.sin(carry[1] * consts[0]) + 0.5 * carry[1]],
        [jnp.int32(0), x],
        [a, n],
        limit,
    )[1]


def run_unrolled(x, a, n):
    for _ in range(n):
        x = jnp.sin(x * a) + 0.5 * x
    return x


@pytest.mark.parametrize(
    ("n", "checkpoints"), combine([0, 1, 2, 3, 4, 9, 10, 27], [1, 2, 3, 5, 64])
)
def test_gradients_for_any_number_of_iterations(monkeypatch, checkpoints, n):
    monkeypatch.setattr(dynamic_loop, "NUM_CHECKPOINTS", checkpoints)
    x, a = jnp.float64(0.7), jnp.float64(0.9)
    value, gradient = jax.jit(jax.value_and_grad(run_loop, (0, 1)))(x, a, jnp.int32(n))
    expected_value, expected = jax.value_and_grad(run_unrolled, (0, 1))(x, a, n)
    np.testing.assert_allclose(value, expected_value, rtol=1e-14)
    np.testing.assert_allclose(gradient, expected, rtol=1e-13)


def test_second_and_third_order():
    x, a = jnp.float64(0.4), jnp.float64(1.1)
    second = jax.jit(jax.grad(jax.grad(run_loop)))(x, a, jnp.int32(5))
    np.testing.assert_allclose(
        second, jax.grad(jax.grad(lambda x: run_unrolled(x, a, 5)))(x), rtol=1e-12
    )
    expected = jax.grad(jax.grad(jax.grad(lambda x: run_unrolled(x, a, 3))))(x)
    for limit in (None, 4):
        third = jax.jit(jax.grad(jax.grad(jax.grad(lambda x: run_loop(x, a, jnp.int32(3), limit)))))
        np.testing.assert_allclose(third(x), expected, rtol=1e-12)


def test_no_state_is_recomputed_while_all_fit(monkeypatch):
    calls = []

    def step(carry, consts):
        jax.debug.callback(lambda: calls.append(1))
        return [carry[0] + 1, jnp.sin(carry[1])]

    def loop(x, n):
        run = dynamic_loop.while_loop
        return run(lambda carry, consts: carry[0] < consts[0], step, [jnp.int32(0), x], [n])[1]

    counts = []
    for checkpoints in (8, 4):
        monkeypatch.setattr(dynamic_loop, "NUM_CHECKPOINTS", checkpoints)
        calls.clear()
        jax.block_until_ready(jax.jit(jax.grad(loop))(jnp.float64(0.3), jnp.int32(9)))
        jax.effects_barrier()
        counts.append(len(calls))
    # 9 steps forwards, 8 to the last state, and 9 within the gradients of steps.
    assert counts[0] == 26 < counts[1] <= 35


def test_limit_ends_the_loop():
    x, a = jnp.float64(0.4), jnp.float64(1.1)
    np.testing.assert_allclose(run_loop(x, a, jnp.int32(100), 3), run_unrolled(x, a, 3))
    gradient = jax.grad(lambda x: run_loop(x, a, jnp.int32(100), 3))(x)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: run_unrolled(x, a, 3))(x), rtol=1e-13)


def test_vmap_of_gradients():
    xs = jnp.linspace(0.1, 0.9, 4)
    ns = jnp.arange(4, dtype=jnp.int32)
    got = jax.vmap(lambda x, n: jax.grad(run_loop)(x, jnp.float64(0.9), n))(xs, ns)
    expected = [jax.grad(run_unrolled)(x, 0.9, n) for n, x in enumerate(xs)]
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_gradients_beside_integers_of_unknown_size():
    def double(rows, indices):
        body = lambda k, v: (k + 1, tf.sparse.map_values(tf.multiply, v, 2))
        start = [0, tf.SparseTensor(indices, rows, [9])]
        return tf.while_loop(lambda k, v: k < 3, body, start)[1].values

    specs = [tf.TensorSpec([None]), tf.TensorSpec([None, 1], tf.int64)]
    function = tf.function(double, input_signature=specs)
    for size in (2, 3):
        rows = tf.ones([size])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            total = tf.reduce_sum(function(rows, tf.range(size, dtype=tf.int64)[:, None]))
        np.testing.assert_array_equal(tape.gradient(total, rows), np.full(size, 8.0))
