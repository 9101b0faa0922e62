"""Equal layers, one after the other, as one loop over their stacked weights.

Made for layers that are computed again in the backward pass: each is one equation of the program. A loop is compiled
once for all of them, and nothing of a later turn can be brought forward, such as gathers of weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import bound, users

__all__ = ["Run", "equal_runs", "stacked"]

_UNITS = ("custom_vjp_call", "checkpoint", "remat2")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Constants up to this size are compared by value.
_SMALL = 1 << 12


class Run(NamedTuple):
    """Equations with equal programs of which each takes what the one before gives.

    Attributes:
      places: their numbers in the program.
      carried: (result, operand) pairs: which result of one is which operand of the next.
    """

    places: list[int]
    carried: list[tuple[int, int]]


def stacked(closed: jex_core.ClosedJaxpr, least: int = 4) -> Callable[..., list[Any]]:
    """A program in which runs of equal layers are loops, as a function of arrays.

    Args:
      closed: the program.
      least: how many layers a loop must have at least.

    Returns:
      A function with the program's operands and results.
    """
    jaxpr = closed.jaxpr
    runs = equal_runs(jaxpr, least)
    if not runs:
        return jex_core.jaxpr_as_fun(closed)
    order = _ordered(jaxpr, runs)
    if order is None:
        return jex_core.jaxpr_as_fun(closed)
    read_by = users(jaxpr, jaxpr.eqns)

    def program(*operands: Any) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(jaxpr.invars, operands, strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, jex_core.Literal) else known[atom]

        for step in order:
            if isinstance(step, Run):
                _loop([jaxpr.eqns[i] for i in step.places], step, read_by, known, value)
                continue
            eqn = jaxpr.eqns[step]
            known.update(zip(eqn.outvars, bound(eqn, [value(v) for v in eqn.invars]), strict=True))
        return [value(v) for v in jaxpr.outvars]

    return program


def equal_runs(jaxpr: Any, least: int = 4) -> list[Run]:
    """The runs of equal equations in a program.

    Args:
      jaxpr: the program.
      least: how many equations a run must have at least.
    """
    keys = {i: _key(eqn) for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in _UNITS}
    found: list[Run] = []
    taken: set[int] = set()
    for first in keys:
        if first in taken:
            continue
        run = _longest(jaxpr.eqns, keys, first)
        if len(run.places) >= least:
            found.append(run)
            taken.update(run.places)
    return found


def _longest(eqns: Sequence[Any], keys: dict[int, Any], first: int) -> Run:
    run = Run([first], [])
    # What depends on the run otherwise than along it, which none of its operands may.
    after: set[Any] = set()
    for i in range(first + 1, len(eqns)):
        last = eqns[run.places[-1]]
        inputs = [v for v in eqns[i].invars if not isinstance(v, jex_core.Literal)]
        if i in keys and keys[i] == keys[first]:
            along = _links(last, eqns[i])
            others = {v for k, v in enumerate(eqns[i].invars) if k not in {at for _, at in along}}
            free = not any(v in after for v in others if not isinstance(v, jex_core.Literal))
            given = {v for place in run.places for v in eqns[place].outvars}
            alone = not any(v in given for v in others if not isinstance(v, jex_core.Literal))
            same = not run.carried or along == run.carried
            if along and same and free and alone and _stack(eqns, [*run.places, i], along):
                run = Run([*run.places, i], along)
                continue
        given = {v for place in run.places for v in eqns[place].outvars}
        if any(v in after or v in given for v in inputs):
            after.update(eqns[i].outvars)
    return run


def _links(eqn: Any, following: Any) -> list[tuple[int, int]]:
    """Which results of an equation are which operands of another."""
    places = {v: k for k, v in enumerate(eqn.outvars)}
    return [
        (places[v], k)
        for k, v in enumerate(following.invars)
        if not isinstance(v, jex_core.Literal) and v in places
    ]


def _stack(eqns: Sequence[Any], places: list[int], carried: list[tuple[int, int]]) -> bool:
    """Whether operands that are not carried are the same, or arrays that can be stacked; and carried ones alike."""
    fixed = {at for _, at in carried}
    for k in range(len(eqns[places[0]].invars)):
        column = [eqns[i].invars[k] for i in places]
        literal = [isinstance(v, jex_core.Literal) for v in column]
        if any(literal) and (k in fixed or not all(literal) or len({str(v) for v in column}) > 1):
            return False
    first = eqns[places[0]]
    return all(first.invars[at].aval == first.outvars[out].aval for out, at in carried)


def _key(eqn: Any) -> Any:
    """What two equations have in common that compute the same of operands of the same shapes."""
    program = eqn.params.get("call_jaxpr", eqn.params.get("jaxpr"))
    text = _ADDRESS.sub("", str(program))
    constants = [_identity(c) for c in getattr(program, "consts", ())]
    shapes = [str(v.aval) for v in eqn.invars]
    policy = eqn.params.get("policy")
    return eqn.primitive.name, text, tuple(constants), tuple(shapes), id(policy)


def _identity(constant: Any) -> Any:
    if isinstance(constant, (np.ndarray, np.generic)) and constant.nbytes <= _SMALL:
        return constant.shape, str(constant.dtype), constant.tobytes()
    return id(constant)


def _ordered(jaxpr: Any, runs: list[Run]) -> list[Any] | None:
    """Numbers of equations and runs, each behind what it needs; None where two runs need each other."""
    of = {i: run for run in runs for i in run.places}
    makes = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    order: list[Any] = []
    done: set[int] = set()
    begun: set[int] = set()

    def needs(places: Sequence[int]) -> set[int]:
        wanted = {
            makes[v]
            for i in places
            for v in jaxpr.eqns[i].invars
            if not isinstance(v, jex_core.Literal) and v in makes
        }
        return wanted - set(places) - done

    def visit(i: int) -> bool:
        if i in done:
            return True
        places = of[i].places if i in of else [i]
        if i in begun:
            return False
        begun.update(places)
        if not all(visit(before) for before in sorted(needs(places))):
            return False
        done.update(places)
        order.append(of.get(i, i))
        return True

    return order if all(visit(i) for i in range(len(jaxpr.eqns))) else None


def _loop(
    eqns: list[Any],
    run: Run,
    read_by: dict[Any, list[int]],
    known: dict[Any, Any],
    value: Callable[[Any], Any],
) -> None:
    """Runs the equations of a run as one loop; what others read of them becomes known."""
    first = eqns[0]
    carried_at = {at: n for n, (_, at) in enumerate(run.carried)}
    columns = [[eqn.invars[k] for eqn in eqns] for k in range(len(first.invars))]
    own = [
        k
        for k, column in enumerate(columns)
        if k not in carried_at
        and any(v is not column[0] for v in column)
        and not isinstance(column[0], jex_core.Literal)
    ]
    fixed = {
        k: value(column[0])
        for k, column in enumerate(columns)
        if k not in carried_at and k not in own
    }
    inside = set(run.places)
    wanted = [
        k
        for k in range(len(first.outvars))
        if any(set(read_by.get(eqn.outvars[k], ())) - inside for eqn in eqns)
    ]

    def turn(carry: list[Any], rows: list[Any]) -> Any:
        operands = {**fixed, **dict(zip(own, rows, strict=True))}
        operands |= {at: carry[n] for at, n in carried_at.items()}
        results = bound(first, [operands[k] for k in range(len(columns))])
        return [results[out] for out, _ in run.carried], [results[k] for k in wanted]

    start = [value(first.invars[at]) for _, at in run.carried]
    stacks = [jax.numpy.stack([value(v) for v in columns[k]]) for k in own]
    _, rows = jax.lax.scan(turn, start, stacks)
    for k, row in zip(wanted, rows, strict=True):
        for n, eqn in enumerate(eqns):
            known[eqn.outvars[k]] = row[n]
