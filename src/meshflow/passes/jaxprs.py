"""Helpers for walking jaxprs: what is inside an equation of any kind, who makes and reads a value."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from meshflow.environment.jax_internals import jex_core


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


def variables(atoms: Iterable[Any]) -> list[Any]:
    """What is no literal."""
    return [a for a in atoms if not isinstance(a, jex_core.Literal)]


def makers(eqns: list[Any]) -> dict[Any, Any]:
    """The equation that makes each variable."""
    return {variable: eqn for eqn in eqns for variable in eqn.outvars}


def users(jaxpr: Any, eqns: list[Any]) -> dict[Any, list[int]]:
    """The numbers of the equations that read each variable.

    Args:
      jaxpr: with the outputs, which an equation that does not exist reads: number `len(eqns)`.
      eqns: its equations.
    """
    found: dict[Any, list[int]] = {}
    for i, atoms in enumerate([*[eqn.invars for eqn in eqns], jaxpr.outvars]):
        for atom in atoms:
            if not isinstance(atom, jex_core.Literal):
                found.setdefault(atom, []).append(i)
    return found


def reads_of_outputs(equation: Any) -> list[set[int]]:
    """For each output of an equation the numbers of the inputs that it depends on; looks into calls and branches."""
    every = set(range(len(equation.invars)))
    whole = [every for _ in equation.outvars]
    inner = [opened(jaxpr) for jaxpr in inner_jaxprs(equation)]
    # A branch has all inputs but the first, which says the branch, and which all outputs depend on.
    first = int(equation.primitive.name == "cond")
    called = first or equation.primitive.name in _CALLS
    if not called or not inner or any(len(j.invars) + first != len(every) for j in inner):
        return whole
    found: list[set[int]] = [set(range(first)) for _ in equation.outvars]
    for jaxpr in inner:
        behind: dict[Any, set[int]] = {v: {first + i} for i, v in enumerate(jaxpr.invars)}
        for eqn in jaxpr.eqns:
            reads = [_behind(behind, a) for a in eqn.invars]
            for v, numbers in zip(eqn.outvars, reads_of_outputs(eqn), strict=True):
                behind[v] = set().union(*(reads[n] for n in numbers))
        for numbers, atom in zip(found, jaxpr.outvars, strict=True):
            numbers |= _behind(behind, atom)
    return found


_CALLS = frozenset(
    ["jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"]
)


def _behind(behind: dict[Any, set[int]], atom: Any) -> set[int]:
    return set() if isinstance(atom, jex_core.Literal) else behind.get(atom, set())


def bound(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation of other operands."""
    results = equation.primitive.bind(
        *operands, **equation.primitive.get_bind_params(equation.params)
    )
    return list(results) if equation.primitive.multiple_results else [results]


def part(
    closed: jex_core.ClosedJaxpr, inputs: Sequence[Any], outputs: Sequence[Any], eqns: Sequence[Any]
) -> jex_core.ClosedJaxpr:
    """Some equations of a program as one of their own, with the constants that they read.

    Args:
      closed: the program.
      inputs: the variables that become arguments.
      outputs: variables and literals that become results.
      eqns: the equations, in order.
    """
    read = set(variables(itertools.chain(*(e.invars for e in eqns), outputs)))
    pairs = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    constants = [(v, c) for v, c in pairs if v in read]
    jaxpr = closed.jaxpr.replace(
        constvars=[v for v, _ in constants],
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(eqns),
        effects={effect for eqn in eqns for effect in eqn.effects},
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return jex_core.ClosedJaxpr(jaxpr, [c for _, c in constants])


def without_calls(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """A program with the equations of what it calls in place of the calls."""

    def run(jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *operands], strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, jex_core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            values = [value(a) for a in eqn.invars]
            if eqn.primitive.name in ("jit", "pjit", "closed_call"):
                (inner,) = inner_jaxprs(eqn)
                results = run(opened(inner), getattr(inner, "consts", ()), values)
            else:
                results = bound(eqn, values)
            known.update(zip(eqn.outvars, results, strict=True))
        return [value(a) for a in jaxpr.outvars]

    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
    return jax.make_jaxpr(lambda *arrays: run(closed.jaxpr, closed.consts, arrays))(*specs)


class Contents(NamedTuple):
    """What is in a jaxpr.

    Attributes:
      primitives: names of the primitives of its equations, and of those in the programs inside.
      nested: the numbers of the equations with programs inside.
    """

    primitives: frozenset[str]
    nested: tuple[int, ...]


_contents: weakref.WeakKeyDictionary[Any, Contents] = weakref.WeakKeyDictionary()


def contents(jaxpr: Any) -> Contents:
    """What is in an open jaxpr; looked for once, as jaxprs do not change."""
    found = _contents.get(jaxpr)
    if found is None:
        names, nested = set(), []
        for i, eqn in enumerate(jaxpr.eqns):
            names.add(eqn.primitive.name)
            inside = inner_jaxprs(eqn)
            if inside:
                nested.append(i)
            for inner in inside:
                names |= contents(opened(inner)).primitives
        found = _contents[jaxpr] = Contents(frozenset(names), tuple(nested))
    return found


def everywhere(
    closed: jex_core.ClosedJaxpr,
    rewrite: Callable[[Any, list[Any]], list[Any]],
    of: Collection[str] | None = None,
) -> jex_core.ClosedJaxpr:
    """A program with other equations, also in the programs inside; the same object when none changed.

    Args:
      closed: a `ClosedJaxpr`.
      rewrite: gives the equations of an open jaxpr, given those with rewritten programs inside.
      of: names of primitives without any of which a jaxpr stays as it is; default all are rewritten.
    """

    def of_jaxpr(jaxpr: Any) -> Any:
        inside = contents(jaxpr)
        if of is not None and inside.primitives.isdisjoint(of):
            return jaxpr
        eqns = list(jaxpr.eqns)
        for i in inside.nested:
            eqns[i] = of_equation(eqns[i])
        found = rewrite(jaxpr, eqns)
        return jaxpr if _same(found, jaxpr.eqns) else jaxpr.replace(eqns=found)

    def of_item(item: Any) -> Any:
        if isinstance(item, jex_core.ClosedJaxpr):
            return everywhere(item, rewrite, of)
        return of_jaxpr(item) if isinstance(item, jex_core.Jaxpr) else item

    def like(value: Any, items: list[Any]) -> Any:
        if not isinstance(value, (tuple, list)):
            return items[0]
        # Tuples with named parts are made of parts.
        return getattr(value, "_make", type(value))(items)

    def of_equation(eqn: Any) -> Any:
        changed = {}
        for name, value in eqn.params.items():
            items = value if isinstance(value, (tuple, list)) else (value,)
            new = [of_item(item) for item in items]
            if not _same(new, items):
                changed[name] = like(value, new)
        return eqn.replace(params={**eqn.params, **changed}) if changed else eqn

    jaxpr = of_jaxpr(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else jex_core.ClosedJaxpr(jaxpr, closed.consts)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two lists hold the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
