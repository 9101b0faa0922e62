"""Test that products list contracted dimensions in the order of their second operand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshflow.passes.contraction_order import order_contractions

X, W = jnp.arange(2 * 3 * 4.0).reshape(2, 3, 4), jnp.arange(3 * 4 * 5.0).reshape(3, 4, 5)


def product(left, right):
    return lambda x, w: jax.lax.dot_general(x, w, ((left, right), ((), ())))


@pytest.mark.parametrize("left,right", [((2, 1), (1, 0)), ((1, 2), (0, 1))])
def test_the_same_is_computed(left, right):
    closed = jax.make_jaxpr(product(left, right))(X, W)
    ordered = order_contractions(closed)
    assert ordered.eqns[0].params["dimension_numbers"][0] == ((1, 2), (0, 1))
    assert (ordered is closed) == (right == (0, 1))
    (found,) = jax.core.eval_jaxpr(ordered.jaxpr, ordered.consts, X, W)
    np.testing.assert_array_equal(found, product(left, right)(X, W))


def test_programs_inside_are_ordered_too():
    def repeated(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, y: y + product((2, 1), (1, 0))(x, w), x[:, :1, 0] * w[0, 0])  # fmt: skip

    text = str(order_contractions(jax.make_jaxpr(repeated)(X, W)))
    assert "([1, 2], [0, 1])" in text and "([2, 1], [1, 0])" not in text
