"""Helpers that read, split and rewrite jaxprs."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax

from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshflow.passes.sub_jaxprs import CALLS


def get_aval(atom: Atom) -> jax.core.ShapedArray:
    """Return the shape and dtype of a variable or literal."""
    return cast(jax.core.ShapedArray, atom.aval)


def select_variables(atoms: Iterable[Atom]) -> list[Any]:
    """Return the atoms that are not literals."""
    return [a for a in atoms if not isinstance(a, jex_core.Literal)]


def map_producers(eqns: Sequence[JaxprEqn]) -> dict[Atom, JaxprEqn]:
    """Map each variable to the equation that computes it."""
    return {variable: eqn for eqn in eqns for variable in eqn.outvars}


def map_consumers(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn]) -> dict[Atom, list[int]]:
    """Map each variable to the indices of the equations that read it.

    Reads by outputs of the jaxpr have the index `len(eqns)`.
    """
    consumers: dict[Atom, list[int]] = {}
    for i, atoms in enumerate([*[eqn.invars for eqn in eqns], jaxpr.outvars]):
        for atom in atoms:
            if not isinstance(atom, jex_core.Literal):
                consumers.setdefault(atom, []).append(i)
    return consumers


def find_output_dependencies(equation: JaxprEqn) -> list[set[int]]:
    """Return for each output of an equation the indices of the inputs on which it depends.

    Calls and branches are examined; for other equations every output depends on every input.
    """
    all_inputs = set(range(len(equation.invars)))
    full = [all_inputs for _ in equation.outvars]
    inner = [to_open_jaxpr(jaxpr) for jaxpr in find_inner_jaxprs(equation)]
    # The first input of a branch selects it, so it is not passed on, and all outputs depend on it.
    num_selectors = int(equation.primitive.name == "cond")
    is_call = num_selectors or equation.primitive.name in CALLS
    if (
        not is_call
        or not inner
        or any(len(j.invars) + num_selectors != len(all_inputs) for j in inner)
    ):
        return full
    dependencies: list[set[int]] = [set(range(num_selectors)) for _ in equation.outvars]
    for jaxpr in inner:
        env: dict[Atom, set[int]] = {v: {num_selectors + i} for i, v in enumerate(jaxpr.invars)}
        for eqn in jaxpr.eqns:
            reads = [_read_dependencies(env, a) for a in eqn.invars]
            for v, indices in zip(eqn.outvars, find_output_dependencies(eqn), strict=True):
                env[v] = set().union(*(reads[n] for n in indices))
        for indices, atom in zip(dependencies, jaxpr.outvars, strict=True):
            indices |= _read_dependencies(env, atom)
    return dependencies


def _read_dependencies(env: dict[Atom, set[int]], atom: Atom) -> set[int]:
    return set() if isinstance(atom, jex_core.Literal) else env.get(atom, set())


def bind_equation(equation: JaxprEqn, operands: Sequence[Array]) -> list[Any]:
    """Return the results of an equation for other operands."""
    results = equation.primitive.bind(
        *operands, **equation.primitive.get_bind_params(equation.params)
    )
    return list(results) if equation.primitive.multiple_results else [results]


def select_needed_equations(
    jaxpr: Jaxpr, outputs: Iterable[Atom]
) -> tuple[list[JaxprEqn], set[Atom]]:
    """Return the equations on which outputs depend, and the variables that these equations and the outputs read."""
    read: set[Atom] = set(select_variables(outputs))
    needed = []
    for eqn in reversed(jaxpr.eqns):
        if not read.isdisjoint(eqn.outvars):
            read.update(select_variables(eqn.invars))
            needed.append(eqn)
    return needed[::-1], read


def extract_program(
    closed: ClosedJaxpr, inputs: Sequence[Var], outputs: Sequence[Atom], eqns: Sequence[JaxprEqn]
) -> ClosedJaxpr:
    """Extract some equations of a program, and the constants they read, as a program."""
    read = set(select_variables(itertools.chain(*(e.invars for e in eqns), outputs)))
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


def is_plain_call(equation: JaxprEqn) -> bool:
    """Check whether an equation only calls a program."""
    return equation.primitive.name in ("jit", "pjit", "closed_call")


def inline_calls(
    closed: ClosedJaxpr,
    is_call: Callable[[JaxprEqn], bool] = is_plain_call,
    axes: Sequence[tuple[str, int]] = (),
) -> ClosedJaxpr:
    """Replace the calls in a program by the equations of the called programs.

    Args:
      closed: The program.
      is_call: Selects the equations to replace, each of which has one program.
      axes: Names and sizes of the axes over which collectives inside reduce.
    """

    def run(jaxpr: Jaxpr, constants: Sequence[Array], operands: Sequence[Array]) -> list[Array]:
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *operands], strict=True))

        def read(atom: Atom) -> Array:
            return atom.val if isinstance(atom, jex_core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            values = [read(a) for a in eqn.invars]
            if is_call(eqn):
                (inner,) = find_inner_jaxprs(eqn)
                results = run(to_open_jaxpr(inner), getattr(inner, "consts", ()), values)
            else:
                results = bind_equation(eqn, values)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
    return jax.make_jaxpr(
        lambda *arrays: run(closed.jaxpr, closed.consts, arrays), axis_env=list(axes) or None
    )(*specs)


def trace_atoms(function: Callable[..., Any], atoms: Sequence[Atom]) -> ClosedJaxpr:
    """Trace a function of arrays with the shapes and dtypes of some atoms."""
    specs = [jax.ShapeDtypeStruct(get_aval(a).shape, get_aval(a).dtype) for a in atoms]
    return jax.make_jaxpr(function)(*specs)


def splice_program(
    program: ClosedJaxpr, atoms: Sequence[Atom], outputs: Sequence[Var]
) -> list[JaxprEqn]:
    """Return the equations of a program without constants for other operands.

    Args:
      program: The program.
      atoms: Its operands.
      outputs: Variables of its first results.
    """
    jaxpr = program.jaxpr
    names: dict[Any, Any] = dict(zip(jaxpr.invars, atoms, strict=True))
    names |= zip(jaxpr.outvars, outputs, strict=False)
    read = lambda a: a if isinstance(a, jex_core.Literal) else names.get(a, a)
    return [
        eqn.replace(invars=list(map(read, eqn.invars)), outvars=list(map(read, eqn.outvars)))
        for eqn in jaxpr.eqns
    ]


class JaxprSummary(NamedTuple):
    """Summary of the equations of a jaxpr.

    Attributes:
      primitives: Names of all primitives, including those of inner programs.
      nested: Indices of the equations with inner programs.
    """

    primitives: frozenset[str]
    nested: tuple[int, ...]


_summaries: weakref.WeakKeyDictionary[Jaxpr, JaxprSummary] = weakref.WeakKeyDictionary()


def summarize_jaxpr(jaxpr: Jaxpr) -> JaxprSummary:
    """Return the summary of an open jaxpr, cached because jaxprs are immutable."""
    summary = _summaries.get(jaxpr)
    if summary is None:
        names, nested = set(), []
        for i, eqn in enumerate(jaxpr.eqns):
            names.add(eqn.primitive.name)
            inside = find_inner_jaxprs(eqn)
            if inside:
                nested.append(i)
            for inner in inside:
                names |= summarize_jaxpr(to_open_jaxpr(inner)).primitives
        summary = _summaries[jaxpr] = JaxprSummary(frozenset(names), tuple(nested))
    return summary


def rewrite_equations(
    closed: ClosedJaxpr,
    rewrite: Callable[[Jaxpr, list[JaxprEqn]], list[JaxprEqn]],
    primitives: Collection[str] | None = None,
) -> ClosedJaxpr:
    """Rewrite all equations of a program; return the same object if none change."""

    def rewrite_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
        summary = summarize_jaxpr(jaxpr)
        if primitives is not None and summary.primitives.isdisjoint(primitives):
            return jaxpr
        eqns = list(jaxpr.eqns)
        for i in summary.nested:
            eqns[i] = rewrite_inner_jaxprs(eqns[i], rewrite_jaxpr)
        changed = rewrite(jaxpr, eqns)
        return jaxpr if are_same_objects(changed, jaxpr.eqns) else jaxpr.replace(eqns=changed)

    jaxpr = rewrite_jaxpr(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else jex_core.ClosedJaxpr(jaxpr, closed.consts)


def rewrite_inner_jaxprs(eqn: JaxprEqn, rewrite: Callable[[Jaxpr], Jaxpr]) -> JaxprEqn:
    """Rewrite the jaxprs in an equation's parameters; return the same object if none change."""

    def rewrite_item(item: object) -> object:
        if isinstance(item, jex_core.ClosedJaxpr):
            jaxpr = rewrite(item.jaxpr)
            return item if jaxpr is item.jaxpr else jex_core.ClosedJaxpr(jaxpr, item.consts)
        return rewrite(item) if isinstance(item, jex_core.Jaxpr) else item

    def rebuild(value: object, items: list[object]) -> object:
        if not isinstance(value, (tuple, list)):
            return items[0]
        # Named tuples take their fields as separate arguments.
        return getattr(value, "_make", type(value))(items)

    changed = {}
    for name, value in eqn.params.items():
        items = value if isinstance(value, (tuple, list)) else (value,)
        new = [rewrite_item(item) for item in items]
        if not are_same_objects(new, items):
            changed[name] = rebuild(value, new)
    return eqn.replace(params={**eqn.params, **changed}) if changed else eqn


def are_same_objects(some: Sequence[object], others: Sequence[object]) -> bool:
    """Check whether two sequences consist of the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
