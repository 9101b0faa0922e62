"""Partitioning of a recorded function into steps: programs before, between and after the host calls.

The host calls and the outputs of the traced program are assigned to levels. A value of level n
needs the host calls up to
level n; all outputs of one level are computed by one program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.tracing.trace import TensorSlot, TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import dce_jaxpr, jex_core, list_dimensions
from meshflow.environment.types import Jaxpr, PyTree
from meshflow.lookup.mutable_tables import MutableHashTable
from meshflow.ops.deferred_host_values import UnrecordableError
from meshflow.saved_model.host_steps.host_calls import PlanValue
from meshflow.saved_model.host_steps.plan import HostStep, ProgramStep, RecordedFunction
from meshflow.saved_model.manifest.composite_values import list_component_specs


class HostResult:
    """Capture of a traced program that represents the result of a host call."""

    def __init__(self, value: int, shape: tuple[Any, ...], dtype: np.dtype) -> None:
        self.index, self.shape, self.dtype = value, shape, dtype


@dataclasses.dataclass
class HostRecording:
    """Host calls that were recorded while a function was traced.

    Attributes:
      steps: Host calls in their order.
      count: Number of values: arguments, results of host calls, and values of the program that host
        calls take.
      demands: Indices and tensors of the values that the program computes and host calls take.
    """

    steps: list[HostStep]
    count: int
    demands: list[tuple[int, Tensor]]


class _TracePartitioner:
    """Traced function from which parts are extracted.

    Args:
      traced: The function.
      argument_indices: For each input of the function, the index of its argument in the complete call.
    """

    def __init__(self, traced: TracedFunction, argument_indices: list[int]) -> None:
        self._traced = traced
        self._jaxpr = traced.closed_jaxpr.jaxpr
        # The value of each input: the index of an argument or the capture itself.
        self._sources: list[Any] = [*argument_indices, *traced.captures]

    def find_level(self, output: int, levels: Mapping[int, int]) -> int:
        """Return the level of host calls after which an output of the program can be computed."""
        used = [i == output for i in range(len(self._jaxpr.outvars))]
        pruned, inputs = dce_jaxpr(self._jaxpr, used)
        needed = [_get_index(s) for s, u in zip(self._sources, inputs, strict=True) if u]
        values = [levels[n] for n in needed if isinstance(n, int)]
        missing = _list_symbols(pruned) - _list_determined_symbols(v.aval for v in pruned.invars)
        return max([*values, *(self._find_size_level(name, levels) for name in missing)], default=0)

    def _find_size_level(self, symbol: str, levels: Mapping[int, int]) -> int:
        """Return the level after which a size is known that no input determines."""
        pairs = zip(self._sources, self._jaxpr.invars, strict=True)
        indices = [
            _get_index(source)
            for source, var in pairs
            if symbol in _list_determined_symbols([var.aval])
        ]
        return min((levels[n] for n in indices if n in levels), default=0)

    def extract_part(
        self, outputs: Sequence[int], writes: Sequence[Any], available: Collection[int]
    ) -> tuple[TracedFunction, list[int]]:
        """Extract the part that computes some outputs.

        Args:
          outputs: Indices of the outputs.
          writes: Variables that the part assigns to. Their new values become outputs, too.
          available: Indices of the values that exist when the part runs.

        Returns:
          The part, and the indices of the values that it takes.
        """
        jaxpr = self._jaxpr
        last = len(jaxpr.outvars) - len(self._traced.writes)
        required = [*outputs, *(range(last, len(jaxpr.outvars)) if writes else ())]
        used = [i in required for i in range(len(jaxpr.outvars))]
        pruned, inputs = dce_jaxpr(jaxpr, used)
        # `dce_jaxpr` keeps the order of the outputs; restore the requested order.
        rank = {i: n for n, i in enumerate(sorted(required))}
        outvars = [pruned.outvars[rank[i]] for i in required]
        sources = [s for s, is_used in zip(self._sources, inputs, strict=True) if is_used]
        pairs = list(zip(sources, pruned.invars, strict=True))
        values = [(_get_index(s), v) for s, v in pairs if isinstance(_get_index(s), int)]
        captures = [(s, v) for s, v in pairs if not isinstance(_get_index(s), int)]
        # Symbolic sizes must be determined by the shape of an input.
        missing = _list_symbols(pruned) - _list_determined_symbols(v.aval for _, v in pairs)
        for source, var in zip(self._sources, jaxpr.invars, strict=True):
            index = _get_index(source)
            if (
                isinstance(index, int)
                and index in available
                and missing & _list_determined_symbols([var.aval])
                and index not in dict(values)
            ):
                values.append((index, var))
                missing -= _list_determined_symbols([var.aval])
        if missing:
            raise UnrecordableError("sizes of strings in a computation without strings")
        pruned = pruned.replace(
            invars=[v for _, v in (*values, *captures)],
            outvars=outvars,
            debug_info=pruned.debug_info.with_unknown_names(),
        )
        closed = jex_core.ClosedJaxpr(pruned, self._traced.closed_jaxpr.consts)
        slots = [TensorSlot(i) for i in range(len(outputs))]
        captured = [s for s, _ in captures]
        traced = TracedFunction(
            self._traced.name, closed, captured, list(writes), slots, len(outputs)
        )
        return traced, [n for n, _ in values]


def _get_index(source: Any) -> Any:
    return source.index if isinstance(source, HostResult) else source


def _list_symbols(jaxpr: Jaxpr) -> set[str]:
    """Return the names of the symbolic sizes in a program."""
    sizes = [n for q in jaxpr.eqns for e in q.outvars for n in getattr(e.aval, "shape", ())]
    # A size that is used as a number is a parameter, not a size of an array.
    sizes += [q.params.get("dim") for q in jaxpr.eqns]
    return {name for n in sizes for name in list_dimensions(n)}


def _list_determined_symbols(avals: Iterable[Any]) -> set[str]:
    """Return the names of the symbols that are equal to a size of an array."""
    sizes = [n for a in avals for n in getattr(a, "shape", ()) if is_symbolic_dim(n)]
    # A data-dependent size, which may be 0, is a symbol minus one.
    # The number of row splits is the number of rows plus one.
    texts = {text for n in sizes for text in (str(n), str(n + 1), str(n - 1))}
    return {text for text in texts if text.isidentifier()}


def partition_function(
    traced: TracedFunction, recording: HostRecording, results: PyTree, arguments: PyTree
) -> RecordedFunction:
    """Partition a function into steps that can run in sequence.

    Args:
      traced: Program that returns the tensors among the results, then the values that host calls
        take.
      recording: Host calls.
      results: Nested result, with `PlanValue`s for results of host calls.
      arguments: (args, kwargs) with specs for tensors.
    """
    specs = list_component_specs(arguments)
    argument_indices = [i for i, s in enumerate(specs) if s.dtype is not string]
    parts = _TracePartitioner(traced, argument_indices)
    leaves = [v for v in nest.flatten(results) if isinstance(v, (Tensor, PlanValue))]
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    # Indices of the values that the program computes: results of the function, then arguments of
    # host calls.
    outputs = [
        *range(recording.count, recording.count + len(tensors)),
        *(n for n, _ in recording.demands),
    ]
    levels = dict.fromkeys(range(len(specs)), 0)
    host_steps: dict[int, list[HostStep]] = {}
    programs: dict[int, list[int]] = {}
    demanded_outputs = {n: len(tensors) + i for i, (n, _) in enumerate(recording.demands)}

    def program_level(output: int) -> int:
        level = parts.find_level(output, levels)
        programs.setdefault(level, []).append(output)
        return level

    table_level = 0
    for step in recording.steps:
        level = 0
        for value in _list_value_indices((step.first, step.more)):
            if value in demanded_outputs and value not in levels:
                levels[value] = program_level(demanded_outputs[value]) + 1
            level = max(level, levels[value])
        if any(isinstance(v, MutableHashTable) for v in nest.flatten((step.first, step.more))):
            level = table_level = max(level, table_level)
        levels[step.result] = level
        host_steps.setdefault(level, []).append(step)
    for output in range(len(tensors)):
        program_level(output)
    num_outputs = len(outputs)
    if traced.writes:
        write_levels = [
            parts.find_level(num_outputs + i, levels) for i in range(len(traced.writes))
        ]
        programs.setdefault(max([*programs, *write_levels]), [])
    last_level = max(programs, default=-1)
    steps: list[HostStep | ProgramStep] = []
    for level in range(max([*host_steps, *programs], default=-1) + 1):
        steps += host_steps.get(level, [])
        if level in programs:
            writes = traced.writes if level == last_level else []
            available = [n for n, value_level in levels.items() if value_level <= level]
            part, inputs = parts.extract_part(sorted(programs[level]), writes, available)
            steps.append(ProgramStep(part, inputs, [outputs[i] for i in sorted(programs[level])]))
    used = {n for s in steps if isinstance(s, ProgramStep) for n in s.inputs}
    steps = [
        s for s in steps if isinstance(s, ProgramStep) or s.name != "shape" or s.result in used
    ]
    remaining = iter(outputs)
    indices = [v.index if isinstance(v, PlanValue) else next(remaining) for v in leaves]
    slots = iter(range(len(leaves)))
    structure = nest.map_structure(
        lambda v: TensorSlot(next(slots)) if isinstance(v, (Tensor, PlanValue)) else v, results
    )
    value_specs = {s.result: s.spec for s in recording.steps} | dict(enumerate(specs))
    computed = zip(outputs, [*tensors, *(t for _, t in recording.demands)], strict=True)
    value_specs |= {n: TensorSpec(t.shape, t.dtype) for n, t in computed}
    return RecordedFunction(steps, indices, structure, [value_specs[n] for n in indices])


def _list_value_indices(arguments: PyTree) -> list[int]:
    return [v.index for v in nest.flatten(arguments) if isinstance(v, PlanValue)]
