"""Sorting of contracted dimensions: products list those of their second operand in ascending order.

The order does not change the result, but TensorFlow's converter for TensorFlow Lite assumes
ascending dimensions in the second operand if sizes are unknown; otherwise, its files would compute
wrong values.
"""

from __future__ import annotations

from meshflow.environment.types import ClosedJaxpr, JaxprEqn
from meshflow.passes.jaxprs import rewrite_equations

_DOT = "dot_general"


def order_contractions(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Sort the contracted dimensions of every product by those of its second operand.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from meshflow.passes.contraction_order import order_contractions
      >>> product = lambda x, w: jax.lax.dot_general(x, w, (((2, 1), (1, 0)), ((), ())))
      >>> closed = jax.make_jaxpr(product)(jnp.ones((5, 2, 4)), jnp.ones((2, 4, 3)))
      >>> order_contractions(closed).eqns[0].params["dimension_numbers"]
      (((1, 2), (0, 1)), ((), ()))
    """
    return rewrite_equations(
        closed, lambda _, eqns: [_sort_contraction(eqn) for eqn in eqns], (_DOT,)
    )


def _sort_contraction(eqn: JaxprEqn) -> JaxprEqn:
    if eqn.primitive.name != _DOT:
        return eqn
    (left, right), batch = eqn.params["dimension_numbers"]
    pairs = sorted(zip(right, left, strict=True))
    if [r for r, _ in pairs] == list(right):
        return eqn
    contracted = (tuple(l for _, l in pairs), tuple(r for r, _ in pairs))
    return eqn.replace(params={**eqn.params, "dimension_numbers": (contracted, batch)})
