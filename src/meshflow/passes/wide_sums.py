"""Sums of 16-bit floating-point numbers that GPUs accumulate in float32.

The gradient of a bias is a sum over all positions of a batch. XLA's GPU compiler accumulates it in the dtype of its
operand, where bfloat16 loses most of the small terms and float16 overflows. Conversions around the sum become part of
the same kernel, so that the wider sum costs no time.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Jaxpr, JaxprEqn
from meshflow.passes.jaxprs import get_aval, rewrite_equations

_NARROW = ("bfloat16", "float16")


def widen_sums(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """Rewrite sums of bfloat16 and float16 arrays to accumulate in float32.

    Args:
      closed: A closed jaxpr that will not be differentiated.

    Returns:
      The rewritten jaxpr, or the same object when it has no such sum.
    """
    return rewrite_equations(closed, _widen_equations, ("reduce_sum",))


def _widen_equations(_: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    widened: list[JaxprEqn] = []
    for eqn in eqns:
        if eqn.primitive.name != "reduce_sum" or get_aval(eqn.outvars[0]).dtype.name not in _NARROW:
            widened.append(eqn)
            continue
        (operand,), (result,) = eqn.invars, eqn.outvars
        wide_operand, wide_result = (
            jex_core.Var(get_aval(atom).update(dtype=np.dtype(np.float32)))
            for atom in (operand, result)
        )
        widened += [
            _convert(eqn, operand, wide_operand),
            eqn.replace(invars=[wide_operand], outvars=[wide_result]),
            _convert(eqn, wide_result, result),
        ]
    return widened


def _convert(near: JaxprEqn, operand: Any, result: Any) -> JaxprEqn:
    """Return an equation that converts an operand to the dtype of a result, with the source of a nearby equation."""
    params = {"new_dtype": result.aval.dtype, "weak_type": False, "sharding": None}
    return near.replace(
        primitive=jax.lax.convert_element_type_p, invars=[operand], outvars=[result], params=params
    )
