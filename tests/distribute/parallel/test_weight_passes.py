"""Test backward passes in two parts: no repeated computation, and little memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow.distribute.parallel.stage_programs import count_bytes, estimate_operations
from meshflow.distribute.parallel.weight_passes import split_backward

ROWS, WIDTH, HIDDEN = 32, 8, 16


def network(weights, x, mask):
    """Products, a table that is looked up in, a scale, a loop, and one kernel that is used twice."""
    first, bias, scale, second, table, turned, shared = weights
    x = x * mask + table[jnp.arange(ROWS) % 4]
    hidden = jax.nn.gelu(x @ first + bias)
    hidden = hidden / jnp.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-3) * scale
    x = x + jax.jit(lambda h, w: h @ w)(hidden, second)
    x, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ turned), None), x, None, length=3)
    return jnp.tanh(x @ shared) @ shared


def backward(x, given, mask, *weights):
    values, pull = jax.vjp(lambda w, x: network(w, x, mask), weights, x)
    of_weights, of_x = pull(given)
    return [values.sum(), of_x, *of_weights]


@pytest.fixture
def operands(rng):
    shapes = [(ROWS, WIDTH)] * 3 + [(WIDTH, HIDDEN), (HIDDEN,), (HIDDEN,), (HIDDEN, WIDTH)]
    shapes += [(4, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)]
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def test_weights_without_consumers():
    """Test weights with zero gradients, which need no storage."""
    x, kernel, other = jnp.ones((4, 8)), jnp.ones((8, 8)), jnp.ones((8, 3))

    def both(x, kernel, other):
        values, pull = jax.vjp(lambda k, _: jnp.tanh(x @ k).sum(), kernel, other)
        return [values, *pull(1.0)]

    halves = split_backward(both, [x, kernel, other], [False, True, True], 1)
    _, early, kept = halves.run_first([x, kernel, other])
    found = {**early, **halves.run_second([x, kernel, other], kept)}
    np.testing.assert_allclose(found[0], both(x, kernel, other)[1])
    assert found[1].shape == (8, 3) and not found[1].any()
    assert {k.shape for k in kept} <= {(4, 8), (8, 4), (8, 8)}


def products(closed):
    return sum(
        estimate_operations(e)
        for e in closed.jaxpr.eqns
        if e.primitive.name in ("dot_general", "scan")
    )


def test_both_parts_together_are_the_backward_pass(operands):
    halves = split_backward(backward, operands, [False, False, *[True] * 8], 2)
    waited, early, kept = halves.run_first(operands)
    # The received value is overwritten before the second part runs.
    gone = [jnp.full_like(v, np.nan) for v in operands[:2]]
    late = halves.run_second([*gone, *operands[2:]], kept)
    expected = backward(*operands)
    found = [*waited, *(v for _, v in sorted({**early, **late}.items()))]
    assert sorted({**early, **late}) == list(range(7))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_nothing_is_computed_twice(operands):
    halves = split_backward(backward, operands, [False, False, *[True] * 8], 2)
    whole = jax.make_jaxpr(backward)(*operands)
    again = sum(
        estimate_operations(e)
        for e in whole.jaxpr.eqns
        if e.primitive.name in ("dot_general", "jit", "scan")
    )
    assert products(halves.first) + products(halves.second) == pytest.approx(again, rel=0.01)
    # The second part is three weights' products: two kernels and one that is used twice.
    assert products(halves.second) == 2 * ROWS * WIDTH * (2 * HIDDEN + 2 * WIDTH)
    # A table that is looked up in has its gradient at once, and a loop its weight's.
    assert halves.early == (4, 5)
    # Inputs and output gradients of four products, each once, and small values.
    activations = ROWS * (2 * WIDTH + 2 * HIDDEN + 4 * WIDTH) * 4
    small = 2 * HIDDEN * 4
    assert sum(map(count_bytes, halves.residuals)) <= activations + small
