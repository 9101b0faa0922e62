"""Test that primitives of newer JAX versions are expanded into those of the oldest version;
versions without them need nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow.deployment import newer_primitives
from meshflow.environment.jax_internals import count_scan_operands, jex_core

X = np.float32([[0.5, 1.5, 2.0], [0.25, 3.0, 1.0]])
FUNCTIONS = {
    "log2": jnp.log2,
    "one_minus_square": jax.grad(lambda x: jnp.tanh(x).sum()),
    "unstack": lambda x: list(x),
    "unstack of columns": lambda x: jnp.unstack(x, axis=1),
    "searchsorted": lambda x: jnp.searchsorted(x[0], x[1]),
}


def expand(jaxpr, constants, operands, counts):
    """Evaluate a jaxpr with expanded equations, and count these."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *operands], strict=True))

    def read(atom):
        return atom.val if isinstance(atom, jex_core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        expansion = newer_primitives.find_expansion(eqn)
        if expansion is not None:
            counts.append(eqn.primitive.name)
            results = expansion(*inputs)
            results = results if isinstance(results, (list, tuple)) else [results]
        elif eqn.primitive.name in ("jit", "pjit"):
            inner = eqn.params["jaxpr"]
            results = expand(inner.jaxpr, inner.consts, inputs, counts)
        else:
            results = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_expanded_functions_compute_the_same(name):
    closed = jax.make_jaxpr(FUNCTIONS[name])(X)
    counts = []
    found = expand(closed.jaxpr, closed.consts, [X], counts)
    for value, expected in zip(found, jax.tree.leaves(FUNCTIONS[name](X)), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    first = (0, 12) if name == "searchsorted" else (0, 11)
    assert counts or version < first


def test_polynomials():
    coefficients = [np.float32(1), np.float32(-2), np.float32(3)]
    found = newer_primitives.polynomial(X, *coefficients)
    np.testing.assert_allclose(found, 1 - 2 * X + 3 * X**2, rtol=1e-6)


def test_operands_of_scan_are_counted():
    def run(weights, first, second, rows):
        def step(state, row):
            return (state[0] * weights + row, state[1] + 1), row

        return jax.lax.scan(step, (first, second), rows)

    eqns = jax.make_jaxpr(run)(X, X, 0.0, np.stack([X, X])).eqns
    (scan,) = [e for e in eqns if e.primitive.name == "scan"]
    assert count_scan_operands(scan.params) == (1, 2)
