"""Fusion of products and squares into the sums over leading axes that read them.

The handler of such sums is a boundary of XLA's fusion: without the pass, the terms of the statistics and
gradients of batch normalization would be written to memory and read again.
"""

from __future__ import annotations

import numpy as np

from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from meshflow.kernels.column_sums import choose_handler, column_sums_p
from meshflow.passes.convert_folding import find_narrow_source
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers, rewrite_equations

__all__ = ["fuse_column_sums"]


def fuse_column_sums(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Fuse terms of sums over leading axes; return the same object if there are none."""
    return rewrite_equations(closed, _fuse_in_jaxpr, ("reduce_sum",))


def _fuse_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    producers, consumers = map_producers(eqns), map_consumers(jaxpr, eqns)
    return [_fuse_terms(eqn, producers, consumers) or eqn for eqn in eqns]


def _fuse_terms(
    total: JaxprEqn, producers: dict[Atom, JaxprEqn], consumers: dict[Atom, list[int]]
) -> JaxprEqn | None:
    """Return a sum fused with its terms; None if it has other operands or no handler."""
    if total.primitive.name != "reduce_sum":
        return None
    axes, result = tuple(total.params["axes"]), get_aval(total.outvars[0])
    terms = None if isinstance(total.invars[0], Literal) else producers.get(total.invars[0])
    if terms is None or axes != tuple(range(len(axes))):
        return None
    kind, operands, shape = "products", terms.invars, get_aval(total.invars[0]).shape
    shapes = [shape, shape]
    if find_narrow_source(total.invars[0], producers) is not total.invars[0]:
        kind, shapes = "elements", [shape]
    elif len(consumers[total.invars[0]]) > 1:
        return None
    elif terms.primitive.name == "square":
        difference = None if isinstance(operands[0], Literal) else producers.get(operands[0])
        if difference is None or difference.primitive.name != "sub":
            return None
        kind, operands = "squares", difference.invars
        shapes[1] = ((1,) * len(axes)) + shape[len(axes) :]
    elif terms.primitive.name != "mul":
        return None
    if any(isinstance(v, Literal) for v in operands):
        return None
    if [get_aval(v).shape for v in operands] != shapes:
        return None
    # Vectors must be float32.
    count = 1 if kind == "squares" else len(operands)
    operands = [*(find_narrow_source(v, producers) for v in operands[:count]), *operands[count:]]
    parameters = {"terms": kind, "count": len(axes)}
    avals = [get_aval(v) for v in operands]
    if result.dtype != np.float32 or choose_handler(avals, [result], parameters) is None:
        return None
    return total.replace(primitive=column_sums_p, invars=operands, params=parameters)
