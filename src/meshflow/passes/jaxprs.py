"""Helpers for walking jaxprs: what is inside an equation, and calls put in place."""

from __future__ import annotations

from typing import Any

from jax.extend import core as jex_core

# Called in place: their equations are seen together with those around them.
INLINED = ("jit", "pjit", "closed_call", "core_call")


def inner_jaxprs(equation: Any) -> list[Any]:
    """The jaxprs inside an equation's parameters, open or closed."""
    found: list[Any] = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
                found.append(item)
    return found


def opened(jaxpr: Any) -> Any:
    """A jaxpr without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr


def flattened(jaxpr: Any) -> tuple[list[Any], list[Any], dict[Any, Any]]:
    """Equations with those of inner calls in place of the calls.

    Args:
      jaxpr: a jaxpr, open or closed.

    Returns:
      Equations, variables of the results, and values of constants by variable.
    """
    constants: dict[Any, Any] = {}
    if isinstance(jaxpr, jex_core.ClosedJaxpr):
        constants.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    renamed: dict[Any, Any] = {}
    equations: list[Any] = []

    def atom(variable: Any) -> Any:
        return (
            variable if isinstance(variable, jex_core.Literal) else renamed.get(variable, variable)
        )

    def copy(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            sources = [atom(v) for v in equation.invars]
            inner = inner_jaxprs(equation)
            if equation.primitive.name not in INLINED or len(inner) != 1:
                made = [fresh_variable(v) for v in equation.outvars]
                renamed.update(zip(equation.outvars, made, strict=True))
                equations.append(equation.replace(invars=sources, outvars=made))
                continue
            body = inner[0]
            outer = {v: renamed[v] for v in opened(body).invars if v in renamed}
            renamed.update(zip(opened(body).invars, sources, strict=True))
            if isinstance(body, jex_core.ClosedJaxpr):
                for variable, value in zip(body.jaxpr.constvars, body.consts, strict=True):
                    constants[variable] = value
            copy(opened(body))
            results = [atom(v) for v in opened(body).outvars]
            # The same body may be called again with other arguments.
            renamed.update(outer)
            renamed.update(zip(equation.outvars, results, strict=True))

    copy(opened(jaxpr))
    return equations, [atom(v) for v in opened(jaxpr).outvars], constants


def fresh_variable(variable: Any) -> Any:
    """A new variable like another."""
    return jex_core.Var(variable.aval)
