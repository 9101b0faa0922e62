"""The equations of a function, found again in a program that they were traced into."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core

__all__ = ["gelu"]


def gelu(value: Any, eqns: list[Any], uses: dict[Any, list[int]]) -> Any:
    """The Gaussian error linear unit of a variable that is read by nothing else.

    Args:
      value: a variable.
      eqns: equations, None for those that are gone.
      uses: the numbers of the equations that read each variable.

    Returns:
      The name of the step in `kernels.descriptors`, the numbers of the equations and the result; None where
      there is none.
    """
    if len(uses.get(value, [])) < 2 or value.aval.dtype.name not in (
        "float32",
        "bfloat16",
        "float16",
    ):
        return None
    for name in ("gelu", "gelu_tanh"):
        body = _gelu(value.aval.shape, value.aval.dtype.name, name == "gelu_tanh")
        found = _again(body, value, eqns, uses)
        if found is not None:
            return name, *found
    return None


@functools.lru_cache(256)
def _gelu(shape: tuple[int, ...], dtype: str, approximate: bool) -> Any:
    """The jaxpr of the function."""
    call = functools.partial(jax.nn.gelu, approximate=approximate)
    return jax.make_jaxpr(call)(jax.ShapeDtypeStruct(shape, np.dtype(dtype))).jaxpr


def _again(body: Any, value: Any, eqns: list[Any], uses: dict[Any, list[int]]) -> Any:
    """The equations that a jaxpr of one operand was traced to, and its result; None where there are none."""
    known = {body.invars[0]: value}
    found: list[int] = []

    def same(old: Any, new: Any) -> bool:
        if isinstance(old, jex_core.Literal):
            return isinstance(new, jex_core.Literal) and old.val == new.val and old.aval == new.aval
        return not isinstance(new, jex_core.Literal) and known[old] is new

    def fits(old: Any, new: Any) -> bool:
        alike = new is not None and new.primitive is old.primitive and new.params == old.params
        return alike and all(map(same, old.invars, new.invars))

    for old in body.eqns:
        first = next(known[v] for v in old.invars if not isinstance(v, jex_core.Literal))
        readers = (i for i in uses.get(first, []) if i < len(eqns) and i not in found)
        at = next((i for i in readers if fits(old, eqns[i])), None)
        if at is None:
            return None
        found.append(at)
        known |= zip(old.outvars, eqns[at].outvars, strict=True)
    result = known[body.outvars[0]]
    between = (v for v in known.values() if v is not result)
    alone = all(set(uses.get(v, [])) <= set(found) for v in between)
    return (found, result) if alone else None
