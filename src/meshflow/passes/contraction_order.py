"""Products over several dimensions name those of their second operand in order.

What they compute does not depend on it, but TensorFlow's converter for TensorFlow Lite takes the second operand's
dimensions in ascending order whatever is written, where sizes are unknown: its files then gave wrong numbers.
"""

from __future__ import annotations

from typing import Any

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import everywhere

__all__ = ["order_contractions"]

_DOT = "dot_general"


def order_contractions(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with every product's contracted dimensions ascending in its second operand.

    Args:
      closed: a `ClosedJaxpr`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from meshflow.passes.contraction_order import order_contractions
      >>> product = lambda x, w: jax.lax.dot_general(x, w, (((2, 1), (1, 0)), ((), ())))
      >>> closed = jax.make_jaxpr(product)(jnp.ones((5, 2, 4)), jnp.ones((2, 4, 3)))
      >>> order_contractions(closed).eqns[0].params["dimension_numbers"]
      (((1, 2), (0, 1)), ((), ()))
    """
    return everywhere(closed, lambda _, eqns: [_ordered(eqn) for eqn in eqns], (_DOT,))


def _ordered(eqn: Any) -> Any:
    if eqn.primitive.name != _DOT:
        return eqn
    (left, right), batch = eqn.params["dimension_numbers"]
    pairs = sorted(zip(right, left, strict=True))
    if [r for r, _ in pairs] == list(right):
        return eqn
    ordered = (tuple(l for _, l in pairs), tuple(r for r, _ in pairs))
    return eqn.replace(params={**eqn.params, "dimension_numbers": (ordered, batch)})
