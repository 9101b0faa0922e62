"""Test that losses absorb the conversions around them, and only those."""

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.ops.nn.cross_entropy import _compute_negative_log
from meshflow.passes.convert_folding import fold_converts

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 9)), jnp.bfloat16)
INDEX = jnp.asarray([0, 8, 3, 3], jnp.int32)


def find_folded_equations(function, *args):
    return [e for e in fold_converts(jax.make_jaxpr(function)(*args)).jaxpr.eqns]


def types(eqns, name):
    (eqn,) = (e for e in eqns if e.primitive.name == name)
    return eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype


def loss(x):
    return _compute_negative_log(x.astype(jnp.float32), INDEX).sum()


def test_logits_and_their_gradient_remain_in_16_bits():
    eqns = find_folded_equations(jax.value_and_grad(loss), X)
    assert types(eqns, "cross_entropy") == (jnp.bfloat16, jnp.float32)
    assert types(eqns, "cross_entropy_gradient") == (jnp.bfloat16, jnp.bfloat16)


def test_gradient_read_in_float32_is_unchanged():
    def both(x):
        slope = jax.grad(lambda x: _compute_negative_log(x, INDEX).sum())(x.astype(jnp.float32))
        return slope, slope.astype(jnp.bfloat16)

    assert types(find_folded_equations(both, X), "cross_entropy_gradient") == (
        jnp.bfloat16,
        jnp.float32,
    )


def test_float32_programs_and_other_conversions_are_unchanged():
    for x in (X.astype(jnp.float32), X.astype(jnp.float16)):
        closed = jax.make_jaxpr(jax.grad(loss))(x)
        assert fold_converts(closed) is closed
