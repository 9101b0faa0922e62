"""Pattern matching: the equations of a known function in a program that it was traced into."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from meshflow.environment.types import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshflow.passes.jaxprs import get_aval


def match_gelu(
    value: Var, eqns: list[Any], uses: dict[Atom, list[int]]
) -> tuple[str, list[int], Var] | None:
    """Find a Gaussian error linear unit of a variable that no other equation reads.

    Args:
      value: The variable.
      eqns: Equations; None for removed ones.
      uses: Indices of the equations that read each variable.

    Returns:
      The name of the step in `kernels.descriptors`, the indices of its equations and its result, or
      None.
    """
    dtype = get_aval(value).dtype.name
    if len(uses.get(value, [])) < 2 or dtype not in ("float32", "bfloat16", "float16"):
        return None
    for name in ("gelu", "gelu_tanh"):
        body = _trace_gelu(get_aval(value).shape, dtype, name == "gelu_tanh")
        match = _match_jaxpr(body, value, eqns, uses)
        if match is not None:
            return name, *match
    return None


@functools.lru_cache(256)
def _trace_gelu(shape: tuple[int, ...], dtype: str, approximate: bool) -> Jaxpr:
    call = functools.partial(jax.nn.gelu, approximate=approximate)
    return jax.make_jaxpr(call)(jax.ShapeDtypeStruct(shape, np.dtype(dtype))).jaxpr


def _match_jaxpr(
    body: Jaxpr, value: Var, eqns: list[Any], uses: dict[Atom, list[int]]
) -> tuple[list[int], Var] | None:
    """Return the indices and the result of equations that match a one-operand jaxpr, or None."""
    env: dict[Atom, Any] = {body.invars[0]: value}
    indices: list[int] = []

    def is_same(old: Atom, new: Atom) -> bool:
        if isinstance(old, Literal):
            return isinstance(new, Literal) and old.val == new.val and old.aval == new.aval
        return not isinstance(new, Literal) and env[old] is new

    def matches(old: JaxprEqn, new: JaxprEqn | None) -> bool:
        if new is None or new.primitive is not old.primitive or new.params != old.params:
            return False
        return all(map(is_same, old.invars, new.invars))

    for old in body.eqns:
        first = next(env[v] for v in old.invars if not isinstance(v, Literal))
        readers = (i for i in uses.get(first, []) if i < len(eqns) and i not in indices)
        index = next((i for i in readers if matches(old, eqns[i])), None)
        if index is None:
            return None
        indices.append(index)
        env |= zip(old.outvars, eqns[index].outvars, strict=True)
    result = env[body.outvars[0]]
    intermediates = (v for v in env.values() if v is not result)
    is_private = all(set(uses.get(v, [])) <= set(indices) for v in intermediates)
    return (indices, result) if is_private else None
