"""Host calls on numbers of unknown sizes, which run as one program for each element.

A host plan records each op on such a value as a call. Dispatching these calls one after the other takes
longer than computing short arrays, so those between strings or images and the results are traced
together, with symbolic sizes, for the interpreter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from meshflow.core.functions.size_variants import allow_unknown_sizes
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution.element_programs import SizedPrograms, trace_with_fallback
from meshflow.data.execution.stacked_programs import StackedPrograms
from meshflow.environment.types import PyTree
from meshflow.ops.deferred_host_values import (
    CallResult,
    Column,
    DeferredValue,
    RecordedHostCall,
    call_function,
    is_item,
)

_log = logging.getLogger("meshflow")

# A single call for one element runs by itself.
_MIN_CALLS = 2


def _is_numeric(call: RecordedHostCall) -> bool:
    """Check whether a call is an op of numbers."""
    values = [v for v in nest.flatten((call.args, call.kwargs)) if isinstance(v, DeferredValue)]
    is_op = any(hasattr(call.function, name) for name in ("op", "is_numeric")) or is_item(call)
    return is_op and all(v.dtype is not dtypes.string for v in values)


class NumericCalls:
    """The calls on numbers whose results a plan uses.

    Args:
      sources: Sources of the results and of the arguments of the plan's program.
      placeholders: Sources of the placeholders of inputs in the trace, by id.
      earlier: Calls that ran before, so that their results are known.

    Attributes:
      outputs: The calls with results that other parts of the plan use; empty if there is nothing to run together.
      input_specs: Specs of the values that the calls take from other calls or from elements.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        placeholders: dict[int, Any],
        earlier: Collection[RecordedHostCall] = (),
    ) -> None:
        self._placeholders, self._earlier = placeholders, earlier
        # The calls in the order in which they were recorded, and the specs of other values that they use, by source.
        self._calls: dict[RecordedHostCall, None] = {}
        self._inputs: dict[Any, TensorSpec] = {}
        calls = [s.call for s in sources if isinstance(s, CallResult) and self._is_own(s.call)]
        self.outputs = list(dict.fromkeys(calls))
        for call in self.outputs:
            self._visit(call)
        if not self._inputs:
            self.outputs = []
        self._is_traceable = True
        self.input_specs = tuple(self._inputs.values())
        self._programs = SizedPrograms(self.input_specs, self._trace, self._trace)
        self._stacked = StackedPrograms(lambda specs: self._trace(tuple(specs)))

    @property
    def calls(self) -> Sequence[RecordedHostCall]:
        """Return all these calls, in order."""
        return tuple(self._calls)

    def _is_own(self, call: RecordedHostCall) -> bool:
        return _is_numeric(call) and call not in self._earlier

    def list_other_calls(self, sources: Sequence[Any]) -> list[RecordedHostCall]:
        """Return all calls that sources depend on, except for those on numbers."""
        calls: dict[RecordedHostCall, None] = {}
        pending = list(sources)
        while pending:
            source = pending.pop()
            if isinstance(source, CallResult) and source.call not in calls:
                calls[source.call] = None
                values = nest.flatten((source.call.args, source.call.kwargs))
                pending += map(self._find_source, values)
        return [c for c in calls if c not in self._calls and c not in self._earlier]

    def _find_source(self, value: PyTree) -> PyTree:
        """Return the source of a value of an element, None for other values."""
        return (
            value.source if isinstance(value, DeferredValue) else self._placeholders.get(id(value))
        )

    def _visit(self, call: RecordedHostCall) -> None:
        """Add a call, after the calls that compute its operands."""
        if call in self._calls:
            return
        for value in nest.flatten((call.args, call.kwargs)):
            source = self._find_source(value)
            if isinstance(source, CallResult) and self._is_own(source.call):
                self._visit(source.call)
            elif source is not None:
                self._inputs[source] = TensorSpec(value.shape, value.dtype)
        self._calls[call] = None

    def _compute(self, inputs: Sequence[Tensor]) -> PyTree:
        values: dict[Any, Any] = dict(zip(self._inputs, inputs, strict=True))
        get_tensor = lambda value: values.get(self._find_source(value))
        results = {}
        for call in self._calls:
            results[call] = tuple(call_function(call, get_tensor))
            values.update({CallResult(call, i): part for i, part in enumerate(results[call])})
        return tuple(results[call] for call in self.outputs)

    def _trace(self, spec: PyTree) -> TracedFunction:
        try:
            with trace_with_fallback(), allow_unknown_sizes({}):
                return trace(self._compute, (spec,), isolated=True)
        except Exception:
            # Another trace would fail, too.
            self._is_traceable = False
            raise

    def run(
        self, count: int, get_column: Callable[[Any], Column]
    ) -> dict[RecordedHostCall, list[Column]]:
        """Compute the results of the calls for a group of elements.

        Args:
          count: Number of elements.
          get_column: Returns the values of a source for all elements.

        Returns:
          The columns of each call's results. Empty if an element needs the calls one by one, which also raise errors.
        """
        if not (self.outputs and self._is_traceable):
            return {}
        columns = [get_column(source) for source in self._inputs]
        stacked = self._stacked.run(columns)
        if stacked is not None:
            traced, results = stacked
            parts = structure.to_arrays(traced.rebuild_result(list(map(Tensor, results))))
            return {call: list(part) for call, part in zip(self.outputs, parts, strict=True)}
        if len(self._calls) < _MIN_CALLS:
            return {}
        rows = []
        for i in range(count):
            leaves = [structure.item_to_array(column[i]) for column in columns]
            try:
                program = self._programs.find_symbolic(leaves)
                if program is None:
                    return {}
                captures = program.traced.get_captured_arrays()
                arrays = [Tensor(np.asarray(a)) for a in program.interpret(leaves, captures)]
            except Exception as error:
                _log.debug("The calls of a map run one by one: %r", error)
                return {}
            rows.append(structure.to_arrays(program.traced.rebuild_result(arrays)))
        return {
            call: [list(column) for column in zip(*parts, strict=True)]
            for call, parts in zip(self.outputs, zip(*rows, strict=True), strict=True)
        }


def find_stages(sources: Sequence[Any], placeholders: dict[int, Any]) -> list[NumericCalls]:
    """Return the calls on numbers that other calls need, in order, and last those that compute sources.

    Args:
      sources: As for `NumericCalls`.
      placeholders: As for `NumericCalls`.
    """
    stages: list[NumericCalls] = []
    earlier: dict[RecordedHostCall, None] = {}
    visited: set[RecordedHostCall] = set()

    def visit(needed: Sequence[Any], call: RecordedHostCall | None = None) -> None:
        for source in needed:
            if isinstance(source, CallResult) and source.call not in visited:
                visited.add(source.call)
                values = nest.flatten((source.call.args, source.call.kwargs))
                find = lambda v: getattr(v, "source", None) or placeholders.get(id(v))
                visit(list(map(find, values)), source.call)
        if call is None or not _is_numeric(call):
            stage = NumericCalls(needed, placeholders, tuple(earlier))
            if stage.calls or call is None:
                stages.append(stage)
                earlier.update(dict.fromkeys(stage.calls))

    visit(sources)
    return stages
