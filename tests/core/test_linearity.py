"""Test the recognition of linear programs."""

import jax
import jax.numpy as jnp
import pytest

from meshflow.core.gradients.linearity import is_linear

X = jnp.ones([3, 4])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, g: -g, True),
        (lambda x, g: g - jnp.mean(g, 0), True),
        (lambda x, g: jnp.where(x > 0, x * g, 0.0), True),
        (lambda x, g: (x @ x.T) @ g / jnp.sum(x), True),
        (lambda x, g: jnp.zeros_like(x), True),
        (lambda x, g: jax.jit(lambda v: jnp.tanh(x) * v)(g).T.astype(jnp.bfloat16), True),
        (lambda x, g: jnp.concatenate([g, jnp.zeros([1, 4])]), True),
        (lambda x, g: g + x, False),
        (lambda x, g: x, False),
        (lambda x, g: g * g, False),
        (lambda x, g: x / g, False),
        (lambda x, g: jnp.clip(g, -1.0, 1.0), False),
        (lambda x, g: jnp.where(g > 0, g, 0.0), False),
        (lambda x, g: jnp.where(x > 0, g, 1.0), False),
        (lambda x, g: g.astype(jnp.int32), False),
        (lambda x, g: jax.jit(jnp.sin)(g), False),
        (lambda x, g: jax.jit(lambda v, w: v + w)(g, x), False),
        (lambda x, g: g / jnp.linalg.norm(g), False),
    ],
)
def test_results_are_proportional_to_an_argument(function, expected):
    assert is_linear(jax.make_jaxpr(function)(X, X).jaxpr, [1]) is expected
