"""Loops over stacked weights in place of equal consecutive layers.

The pass is meant for layers that are rematerialized in the backward pass: each is one equation of
the program. A loop is compiled once for all layers, and XLA cannot start work of a later iteration
early, such as gathers of weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Array, Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from meshflow.passes.jaxprs import bind_equation, map_consumers
from meshflow.passes.sub_jaxprs import find_call_body

_LAYER_PRIMITIVES = ("custom_vjp_call", "checkpoint", "remat2")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Bytes up to which constants are compared by value.
_MAX_COMPARED_BYTES = 1 << 12


class EqualRun(NamedTuple):
    """Equations with equal programs, each of which reads results of the previous one.

    Attributes:
      indices: Their indices in the program.
      carried: Pairs (result, operand): a result's index, and the index of the operand of the next
        equation.
    """

    indices: list[int]
    carried: list[tuple[int, int]]


def stack_layers(closed: ClosedJaxpr, min_layers: int = 4) -> Callable[..., list[Any]]:
    """Convert runs of equal layers to loops; return the program as a function of arrays.

    Only runs of at least `min_layers` layers are converted.
    """
    jaxpr = closed.jaxpr
    runs = find_equal_runs(jaxpr, min_layers)
    if not runs:
        return jex_core.jaxpr_as_fun(closed)
    order = _sort_equations(jaxpr, runs)
    if order is None:
        return jex_core.jaxpr_as_fun(closed)
    consumers = map_consumers(jaxpr, jaxpr.eqns)

    def program(*operands: Any) -> list[Any]:
        env: dict[Atom, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Atom) -> Array:
            return atom.val if isinstance(atom, Literal) else env[atom]

        for step in order:
            if isinstance(step, EqualRun):
                _run_loop([jaxpr.eqns[i] for i in step.indices], step, consumers, env, read)
                continue
            eqn = jaxpr.eqns[step]
            env.update(
                zip(eqn.outvars, bind_equation(eqn, [read(v) for v in eqn.invars]), strict=True)
            )
        return [read(v) for v in jaxpr.outvars]

    return program


def find_equal_runs(jaxpr: Jaxpr, min_length: int = 4) -> list[EqualRun]:
    """Find the runs of equal equations in a program."""
    keys = {
        i: _make_equation_key(eqn)
        for i, eqn in enumerate(jaxpr.eqns)
        if eqn.primitive.name in _LAYER_PRIMITIVES
    }
    runs: list[EqualRun] = []
    covered: set[int] = set()
    for first in keys:
        if first in covered:
            continue
        run = _find_longest_run(jaxpr.eqns, keys, first)
        if len(run.indices) >= min_length:
            runs.append(run)
            covered.update(run.indices)
    return runs


def _find_longest_run(eqns: Sequence[JaxprEqn], keys: dict[int, Hashable], first: int) -> EqualRun:
    run = EqualRun([first], [])
    # Values that depend on the run by other ways than its carried values; its operands may not be
    # among them.
    after: set[Atom] = set()
    for i in range(first + 1, len(eqns)):
        last = eqns[run.indices[-1]]
        inputs = [v for v in eqns[i].invars if not isinstance(v, Literal)]
        computed = {v for index in run.indices for v in eqns[index].outvars}
        if i in keys and keys[i] == keys[first]:
            links = _find_links(last, eqns[i])
            others = {v for k, v in enumerate(eqns[i].invars) if k not in {k for _, k in links}}
            is_free = not any(
                v in after or v in computed for v in others if not isinstance(v, Literal)
            )
            is_same = not run.carried or links == run.carried
            if links and is_same and is_free and _can_stack(eqns, [*run.indices, i], links):
                run = EqualRun([*run.indices, i], links)
                continue
        if any(v in after or v in computed for v in inputs):
            after.update(eqns[i].outvars)
    return run


def _find_links(eqn: JaxprEqn, next_eqn: JaxprEqn) -> list[tuple[int, int]]:
    """Return (result, operand) index pairs of the values that `next_eqn` reads from `eqn`."""
    positions = {v: k for k, v in enumerate(eqn.outvars)}
    return [
        (positions[v], k)
        for k, v in enumerate(next_eqn.invars)
        if not isinstance(v, Literal) and v in positions
    ]


def _can_stack(
    eqns: Sequence[JaxprEqn], indices: list[int], carried: list[tuple[int, int]]
) -> bool:
    """Check whether carried operands keep their type, and all others are equal or can be stacked."""
    carried_operands = {operand for _, operand in carried}
    for k in range(len(eqns[indices[0]].invars)):
        column = [eqns[i].invars[k] for i in indices]
        is_literal = [isinstance(v, Literal) for v in column]
        is_constant = all(is_literal) and len({str(v) for v in column}) == 1
        if any(is_literal) and (k in carried_operands or not is_constant):
            return False
    first = eqns[indices[0]]
    return all(first.invars[k].aval == first.outvars[out].aval for out, k in carried)


def _make_equation_key(eqn: JaxprEqn) -> Hashable:
    """Return a key that is equal for equations with equal programs, constants and operand shapes."""
    program = find_call_body(eqn)
    text = _ADDRESS.sub("", str(program))
    constants = [_make_constant_key(c) for c in getattr(program, "consts", ())]
    shapes = [str(v.aval) for v in eqn.invars]
    policy = eqn.params.get("policy")
    return eqn.primitive.name, text, tuple(constants), tuple(shapes), id(policy)


def _make_constant_key(constant: Array) -> Hashable:
    if isinstance(constant, (np.ndarray, np.generic)) and constant.nbytes <= _MAX_COMPARED_BYTES:
        return constant.shape, str(constant.dtype), constant.tobytes()
    return id(constant)


def _sort_equations(jaxpr: Jaxpr, runs: list[EqualRun]) -> list[Any] | None:
    """Sort indices of equations and runs topologically; return None if two runs form a cycle."""
    run_by_index = {i: run for run in runs for i in run.indices}
    producers = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    order: list[Any] = []
    done: set[int] = set()
    started: set[int] = set()

    def find_pending(indices: Sequence[int]) -> set[int]:
        needed = {
            producers[v]
            for i in indices
            for v in jaxpr.eqns[i].invars
            if not isinstance(v, Literal) and v in producers
        }
        return needed - set(indices) - done

    def visit(i: int) -> bool:
        if i in done:
            return True
        indices = run_by_index[i].indices if i in run_by_index else [i]
        if i in started:
            return False
        started.update(indices)
        if not all(visit(j) for j in sorted(find_pending(indices))):
            return False
        done.update(indices)
        order.append(run_by_index.get(i, i))
        return True

    return order if all(visit(i) for i in range(len(jaxpr.eqns))) else None


def _run_loop(
    eqns: list[JaxprEqn],
    run: EqualRun,
    consumers: dict[Atom, list[int]],
    env: dict[Atom, Any],
    read: Callable[[Atom], Array],
) -> None:
    """Run the equations of a run as one loop and add the results that others read to `env`."""
    first = eqns[0]
    carry_index = {operand: n for n, (_, operand) in enumerate(run.carried)}
    columns = [[eqn.invars[k] for eqn in eqns] for k in range(len(first.invars))]
    stacked = [
        k
        for k, column in enumerate(columns)
        if k not in carry_index
        and any(v is not column[0] for v in column)
        and not isinstance(column[0], Literal)
    ]
    fixed = {
        k: read(column[0])
        for k, column in enumerate(columns)
        if k not in carry_index and k not in stacked
    }
    inside = set(run.indices)
    read_results = [
        k
        for k in range(len(first.outvars))
        if any(set(consumers.get(eqn.outvars[k], ())) - inside for eqn in eqns)
    ]

    def step(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        operands = {**fixed, **dict(zip(stacked, rows, strict=True))}
        operands |= {operand: carry[n] for operand, n in carry_index.items()}
        results = bind_equation(first, [operands[k] for k in range(len(columns))])
        return [results[out] for out, _ in run.carried], [results[k] for k in read_results]

    start = [read(first.invars[operand]) for _, operand in run.carried]
    stacks = [jax.numpy.stack([read(v) for v in columns[k]]) for k in stacked]
    _, rows = jax.lax.scan(step, start, stacks)
    for k, row in zip(read_results, rows, strict=True):
        for n, eqn in enumerate(eqns):
            env[eqn.outvars[k]] = row[n]
