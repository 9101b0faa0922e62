"""Test runs of equal layers as loops: equal values and gradients, and programs without runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow.passes.stacking import find_equal_runs, stack_layers


def layer(function=jnp.tanh):
    """Define a recomputed layer: its input, its weights, and operands shared by all layers."""
    return jax.checkpoint(lambda x, w, s: (function(x @ w) * s, jnp.sum(x)))


def chain(x, weights, s, layers=None):
    sums = []
    for one, w in zip(layers or [layer()] * len(weights), weights, strict=True):
        x, total = one(x, w, s)
        sums.append(total)
    return x, sums[1], sums[-1]


@pytest.fixture
def operands(rng):
    weights = [jnp.asarray(rng.normal(size=(4, 4)), jnp.float32) for _ in range(5)]
    return jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), weights, jnp.float32(0.5)


def loops(program, operands):
    made = jax.make_jaxpr(program)(*jax.tree.leaves(operands))
    return sum(eqn.primitive.name == "scan" for eqn in made.eqns)


def test_a_run_is_a_loop_with_the_same_values_and_gradients(operands):
    closed = jax.make_jaxpr(chain)(*operands)
    (run,) = find_equal_runs(closed.jaxpr)
    assert len(run.indices) == 5 and run.carried == [(0, 0)]
    program = stack_layers(closed)
    assert loops(program, operands) == 1
    leaves = jax.tree.leaves(operands)
    np.testing.assert_allclose(program(*leaves)[0], chain(*operands)[0], rtol=1e-6, atol=1e-7)
    for got, wanted in zip(program(*leaves)[1:], chain(*operands)[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)

    def loss(run):
        return lambda *flat: sum(jnp.sum(v**2) for v in run(*flat))

    tree = jax.tree.structure(operands)
    plain = jax.grad(loss(lambda *flat: chain(*jax.tree.unflatten(tree, flat))), range(7))(*leaves)
    for got, wanted in zip(jax.grad(loss(program), range(7))(*leaves), plain, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_different_or_few_layers_are_not_stacked(operands):
    x, weights, s = operands
    mixed = [layer(), layer(), layer(jnp.sin), layer(), layer()]
    closed = jax.make_jaxpr(lambda *a: chain(*a, layers=mixed))(*operands)
    assert [len(run.indices) for run in find_equal_runs(closed.jaxpr, 2)] == [2, 2]
    assert loops(stack_layers(closed), operands) == 0
    two = jax.make_jaxpr(chain)(x, weights[:2], s)
    assert loops(stack_layers(two), (x, weights[:2], s)) == 0


def test_layer_that_reads_an_earlier_layer_ends_a_run(operands):
    x, weights, s = operands

    def skipping(x, weights, s):
        one, given = layer(), []
        for number, w in enumerate(weights):
            # The weights of the fourth layer depend on the second layer's result.
            x, _ = one(x, w + jnp.mean(given[1]) if number == 3 else w, s)
            given.append(x)
        return x

    closed = jax.make_jaxpr(skipping)(*operands)
    assert [len(run.indices) for run in find_equal_runs(closed.jaxpr, 2)] == [3, 2]
    np.testing.assert_allclose(
        stack_layers(closed, 2)(*jax.tree.leaves(operands))[0],
        skipping(x, weights, s),
        rtol=1e-6,
        atol=1e-7,
    )
