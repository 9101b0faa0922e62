"""Folding of conversions into cross-entropy losses, for 16-bit logits and gradients.

The kernels still compute in float32 and convert while they read or write memory. A separate
conversion would read and write the largest arrays of a language model once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from meshflow.kernels.cross_entropy import gradient_p, loss_p
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers, rewrite_equations

_CONVERT = "convert_element_type"


def fold_converts(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Remove conversions around losses; return the same object if there are none."""
    return rewrite_equations(closed, _fold_in_jaxpr, (loss_p.name, gradient_p.name))


def _fold_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    producers, consumers = map_producers(eqns), map_consumers(jaxpr, eqns)
    folded: list[Any] = list(eqns)
    for i, eqn in enumerate(eqns):
        if eqn.primitive not in (loss_p, gradient_p):
            continue
        logits, *rest = eqn.invars
        source = find_narrow_source(logits, producers)
        if source is not logits:
            folded[i] = eqn.replace(invars=[source, *rest])
        indices = consumers.get(eqn.outvars[0], [])
        consumer = eqns[indices[0]] if len(indices) == 1 and indices[0] < len(eqns) else None
        if eqn.primitive is gradient_p and consumer is not None and _rounds_to_bfloat16(consumer):
            (result,) = consumer.outvars
            parameters = {**eqn.params, "result": get_aval(result).dtype}
            folded[i] = folded[i].replace(outvars=[result], params=parameters)
            folded[indices[0]] = None
    return [eqn for eqn in folded if eqn is not None]


def _rounds_to_bfloat16(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == _CONVERT and get_aval(eqn.outvars[0]).dtype.name == "bfloat16"


def find_narrow_source(atom: Atom, producers: dict[Atom, JaxprEqn]) -> Atom:
    """Return the bfloat16 value from which a float32 value was widened, or the value itself."""
    producer = None if isinstance(atom, Literal) else producers.get(atom)
    if (
        producer is None
        or producer.primitive.name != _CONVERT
        or get_aval(atom).dtype != np.float32
    ):
        return atom
    source = producer.invars[0]
    is_narrow = not isinstance(source, Literal) and get_aval(source).dtype.name == "bfloat16"
    return source if is_narrow else atom
