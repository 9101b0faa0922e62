"""Helpers for equations that contain programs."""

from __future__ import annotations

from typing import TypeAlias

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ClosedJaxpr, Jaxpr, JaxprEqn

AnyJaxpr: TypeAlias = Jaxpr | ClosedJaxpr

# Calls that are replaced by the equations of the called program.
INLINED = frozenset(
    ["jit", "pjit", "closed_call", "core_call", "call", "checkpoint", "remat2", "remat"]
    + ["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "eval_jaxpr"]
)


def find_inner_jaxprs(equation: JaxprEqn) -> list[AnyJaxpr]:
    """Return the jaxprs in an equation's parameters, open or closed."""
    found: list[AnyJaxpr] = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
                found.append(item)
    return found


def to_open_jaxpr(jaxpr: AnyJaxpr) -> Jaxpr:
    """Return a jaxpr without the values of its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr
