"""A recorded function divided into parts: what a program computes before the host's calls, between them, and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.export import is_symbolic_dim

from meshflow.core.tracing.trace import Slot, Traced
from meshflow.core.values import nest
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import dce_jaxpr, jex_core
from meshflow.lookup.mutable import MutableHashTable
from meshflow.ops.deferred_host_values import Unrecordable
from meshflow.saved_model.host_calls import Value
from meshflow.saved_model.steps import HostStep, ProgramStep, Recorded

__all__ = ["Cut", "Noted", "divided"]


class Cut:
    """What a program captures in the place of a value of the host."""

    def __init__(self, number: int, shape: Any, dtype: Any) -> None:
        self.number, self.shape, self.dtype = number, shape, dtype


@dataclasses.dataclass
class Noted:
    """What was noted while a function was traced.

    Attributes:
      steps: calls of the host, in their order.
      count: how many values there are: arguments, what the host makes, what it takes.
      demands: values that a program makes and the host takes, with their tensors.
    """

    steps: list[HostStep]
    count: int
    demands: list[tuple[int, Tensor]]


class _Divided:
    """A traced function, of which parts are taken.

    Args:
      traced: the function.
      numbers: which arguments its inputs are.
    """

    def __init__(self, traced: Traced, numbers: list[int]) -> None:
        self._traced = traced
        self._jaxpr = traced.closed.jaxpr
        # The value that each input is; captures are themselves.
        self._sources: list[Any] = [*numbers, *traced.captures]

    def level(self, output: int, levels: Mapping[int, int]) -> int:
        """After which of the host's levels an output can be computed."""
        used = [i == output for i in range(len(self._jaxpr.outvars))]
        small, inputs = dce_jaxpr(self._jaxpr, used)
        needed = [_number(s) for s, u in zip(self._sources, inputs, strict=True) if u]
        values = [levels[n] for n in needed if isinstance(n, int)]
        missing = _symbols(small) - _plain(v.aval for v in small.invars)
        return max([*values, *(self._level_of_size(name, levels) for name in missing)], default=0)

    def _level_of_size(self, name: str, levels: Mapping[int, int]) -> int:
        """After which of the levels a size is known that only its name tells of."""
        pairs = zip(self._sources, self._jaxpr.invars, strict=True)
        numbers = [_number(source) for source, var in pairs if name in _plain([var.aval])]
        return min((levels[n] for n in numbers if n in levels), default=0)

    def part(self, outputs: Sequence[int], writes: Sequence[Any], known: Sequence[int]) -> Any:
        """The part that computes some outputs, and the values that it takes.

        Args:
          outputs: which, and those of `writes` after them.
          writes: the variables that it writes.
          known: values that there are by then.
        """
        jaxpr = self._jaxpr
        last = len(jaxpr.outvars) - len(self._traced.writes)
        wanted = [*outputs, *(range(last, len(jaxpr.outvars)) if writes else ())]
        used = [i in wanted for i in range(len(jaxpr.outvars))]
        small, inputs = dce_jaxpr(jaxpr, used)
        # In the order that was asked for.
        rank = {i: n for n, i in enumerate(sorted(wanted))}
        outs = [small.outvars[rank[i]] for i in wanted]
        kept = [s for s, is_used in zip(self._sources, inputs, strict=True) if is_used]
        pairs = list(zip(kept, small.invars, strict=True))
        values = [(_number(s), v) for s, v in pairs if isinstance(_number(s), int)]
        captures = [(s, v) for s, v in pairs if not isinstance(_number(s), int)]
        # Sizes are taken from what comes in.
        missing = _symbols(small) - _plain(v.aval for _, v in pairs)
        for source, var in zip(self._sources, jaxpr.invars, strict=True):
            number = _number(source)
            if (
                isinstance(number, int)
                and number in known
                and missing & _plain([var.aval])
                and number not in dict(values)
            ):
                values.append((number, var))
                missing -= _plain([var.aval])
        if missing:
            raise Unrecordable("sizes of strings in what is computed of no strings")
        small = small.replace(
            invars=[v for _, v in (*values, *captures)],
            outvars=outs,
            debug_info=small.debug_info.with_unknown_names(),
        )
        closed = jex_core.ClosedJaxpr(small, self._traced.closed.consts)
        slots = [Slot(i) for i in range(len(outputs))]
        held = [s for s, _ in captures]
        traced = Traced(self._traced.name, closed, held, list(writes), slots, len(outputs))
        return traced, [n for n, _ in values]


def _number(source: Any) -> Any:
    return source.number if isinstance(source, Cut) else source


def _symbols(jaxpr: Any) -> set[str]:
    """Names of the sizes that are symbols in what is computed."""
    sizes = [n for q in jaxpr.eqns for e in q.outvars for n in getattr(e.aval, "shape", ())]
    # A size as a number is no array's.
    sizes += [q.params.get("dim") for q in jaxpr.eqns]
    return {name for n in sizes if is_symbolic_dim(n) for name in n._get_vars()}


def _plain(avals: Any) -> set[str]:
    """Names of those that an array tells."""
    sizes = [n for a in avals for n in getattr(a, "shape", ()) if is_symbolic_dim(n)]
    # A size that is perhaps 0 is one less than a name.
    return {text for n in sizes for text in (str(n), str(n + 1)) if text.isidentifier()}


def divided(traced: Traced, noted: Noted, found: Any, arguments: Any) -> Recorded:
    """A function in the order in which it can be run.

    Args:
      traced: its program, which gives the tensors among the results, then those that the host takes.
      noted: what the host does.
      found: the nested result, with `Value`s for what the host makes.
      arguments: (args, kwargs) with specs for tensors.
    """
    specs = [s for s in nest.flatten(arguments) if isinstance(s, TensorSpec)]
    numbers = [i for i, s in enumerate(specs) if s.dtype is not string]
    parts = _Divided(traced, numbers)
    leaves = [v for v in nest.flatten(found) if isinstance(v, (Tensor, Value))]
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    # Values of the program's results: those that are returned, and those that the host takes.
    made = [
        *range(noted.count, noted.count + len(tensors)),
        *(n for n, _ in noted.demands),
    ]
    levels = dict.fromkeys(range(len(specs)), 0)
    of_host: dict[int, list[HostStep]] = {}
    programs: dict[int, list[int]] = {}
    demanded = {n: len(tensors) + i for i, (n, _) in enumerate(noted.demands)}

    def program_level(output: int) -> int:
        level = parts.level(output, levels)
        programs.setdefault(level, []).append(output)
        return level

    at_least = 0
    for step in noted.steps:
        level = 0
        for value in _values((step.first, step.more)):
            if value in demanded and value not in levels:
                levels[value] = program_level(demanded[value]) + 1
            level = max(level, levels[value])
        if any(isinstance(v, MutableHashTable) for v in nest.flatten((step.first, step.more))):
            level = at_least = max(level, at_least)
        levels[step.result] = level
        of_host.setdefault(level, []).append(step)
    for output in range(len(tensors)):
        program_level(output)
    last = len(made)
    if traced.writes:
        written = [parts.level(last + i, levels) for i in range(len(traced.writes))]
        programs.setdefault(max([*programs, *written]), [])
    final = max(programs, default=-1)
    steps: list[HostStep | ProgramStep] = []
    for level in range(max([*of_host, *programs], default=-1) + 1):
        steps += of_host.get(level, [])
        if level in programs:
            writes = traced.writes if level == final else []
            known = [n for n, at in levels.items() if at <= level]
            part, inputs = parts.part(sorted(programs[level]), writes, known)
            steps.append(ProgramStep(part, inputs, [made[i] for i in sorted(programs[level])]))
    order = iter(made)
    results = [v.number if isinstance(v, Value) else next(order) for v in leaves]
    places = iter(range(len(leaves)))
    structure = nest.map_structure(
        lambda v: Slot(next(places)) if isinstance(v, (Tensor, Value)) else v, found
    )
    known_specs = {s.result: s.spec for s in noted.steps} | dict(enumerate(specs))
    known_specs |= {n: TensorSpec(t.shape, t.dtype) for n, t in zip(made, tensors, strict=False)}
    return Recorded(steps, results, structure, [known_specs[n] for n in results])


def _values(arguments: Any) -> list[int]:
    return [v.number for v in nest.flatten(arguments) if isinstance(v, Value)]
