"""Which equations of a jaxpr are computed in the low precision, and why.

The rules are those of TensorFlow's graph rewrite: equations on the allow list are painted; what is
on the deny list, and what follows it as far as another such equation, is not; of the rest, what
lies between painted equations is painted, and so are free equations next to painted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core as jex_core

from meshflow.passes.jaxprs import flattened, inner_jaxprs, opened
from meshflow.passes.precision_lists import PrecisionLists


class Colour(NamedTuple):
    """What was decided for an equation."""

    low: bool
    kind: str
    reason: str


def wide(variable: Any) -> bool:
    """Whether a variable or literal is float32, what the pass may narrow."""
    return getattr(variable.aval, "dtype", None) == np.float32


def gains(jaxpr: Any, lists: PrecisionLists) -> bool:
    """Whether there is anything to paint: an allowed equation on float32, however deep."""
    return any(
        (lists.of(e.primitive.name) == "allow" and all(map(wide, e.outvars)))
        or any(gains(inner, lists) for inner in inner_jaxprs(e))
        for e in opened(jaxpr).eqns
    )


def kind_of(equation: Any, lists: PrecisionLists) -> str:
    """The list an equation belongs to; one that holds others (a custom derivative) is judged by them."""
    if not any(map(wide, (*equation.invars, *equation.outvars))):
        return "other"
    name = equation.primitive.name
    inside = inner_jaxprs(equation)
    if not inside:
        if name == "convert_element_type":
            return "other"
        return lists.of(name)
    if name not in ("custom_jvp_call", "custom_vjp_call"):
        return "other"
    kinds = {
        kind_of(e, lists)
        for jaxpr in inside
        for e in flattened(jaxpr)[0]
        if any(map(wide, (*e.invars, *e.outvars)))
    }
    if kinds <= {"clear"}:
        return "clear"
    if kinds <= {"clear", "infer"}:
        return "infer"
    return "deny" if kinds & {"deny"} else "other"


def colour(equations: Sequence[Any], lists: PrecisionLists) -> list[Colour]:
    """Colours of equations, in their order."""
    kinds = [kind_of(e, lists) for e in equations]
    made_by = {v: i for i, e in enumerate(equations) for v in e.outvars if wide(v)}
    before: list[list[int]] = [
        sorted({made_by[v] for v in e.invars if not _literal(v) and v in made_by})
        for e in equations
    ]
    after: list[list[int]] = [[] for _ in equations]
    for i, sources in enumerate(before):
        for j in sources:
            after[j].append(i)

    def at(*names: str) -> set[int]:
        return {i for i, kind in enumerate(kinds) if kind in names}

    allowed, free = at("allow"), at("infer", "clear")
    follows = reach(at("deny"), after, free.__contains__)
    ends = {i for i in follows if kinds[i] == "infer"} | {
        i for i in follows if any(kinds[j] == "deny" for j in after[i])
    }
    denied = ends | (reach(ends, before, follows.__contains__) & follows)
    candidates = free - denied
    between = reach(allowed, after, candidates.__contains__) & reach(
        allowed, before, candidates.__contains__
    )
    painted = allowed | between
    clear = at("clear") - denied
    near = reach(painted, after, clear.__contains__) | reach(painted, before, clear.__contains__)
    painted |= near
    found = []
    for i, kind in enumerate(kinds):
        if kind == "allow":
            reason = "always low"
        elif i in between:
            reason = "between low ones"
        elif i in painted:
            reason = "next to a low one"
        elif kind == "deny":
            reason = "always float32"
        elif i in denied:
            reason = "follows one that is always float32"
        elif kind == "other":
            reason = "on no list"
        else:
            reason = "not between low ones"
        found.append(Colour(i in painted, kind, reason))
    return found


def reach(start: Iterable[int], edges: list[list[int]], enter: Callable[[int], bool]) -> set[int]:
    """What can be reached along edges through equations that may be entered."""
    found: set[int] = set()
    waiting = list(start)
    while waiting:
        for j in edges[waiting.pop()]:
            if j not in found and enter(j):
                found.add(j)
                waiting.append(j)
    return found


def _literal(variable: Any) -> bool:
    return isinstance(variable, jex_core.Literal)
