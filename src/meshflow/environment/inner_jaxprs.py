"""The programs that equations contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ClosedJaxpr, Jaxpr

AnyJaxpr: TypeAlias = Jaxpr | ClosedJaxpr


class _Parametrized(Protocol):
    @property
    def params(self) -> Mapping[str, Any]: ...


def find_inner_jaxprs(equation: _Parametrized) -> list[AnyJaxpr]:
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
