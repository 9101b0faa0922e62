"""Helpers for walking jaxprs: what is inside an equation of any kind."""

from __future__ import annotations

from typing import Any

from jax.extend import core as jex_core


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
