"""Host calls on numbers of unknown sizes, which run as one program for each element.

A host plan records each op on such a value as a call. Dispatching these calls one after the other takes
longer than computing short arrays, so those between strings or images and the results are traced
together, with symbolic sizes, for the interpreter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.tiers import InterpretedProgram, is_interpreter_enabled
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution.element_programs import SizedPrograms, trace_with_fallback
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.types import Jaxpr, PyTree
from meshflow.interpreter.table import INLINED, RULES
from meshflow.kernels import host_math
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
# Number of elements from which the calls are traced for all of them together.
_MIN_STACKED = 8
# Arrays of more bytes are not stacked, and at most so many programs are kept for stacked arrays of different shapes.
_MAX_STACKED_BYTES, _MAX_STACKED_PROGRAMS = 1 << 22, 16
# Primitives that compute each row by itself, in addition to elementwise ones and views.
_ROW_PRIMITIVES = frozenset(
    ["concatenate", "pad", "gather", "dynamic_slice", "sort", "argmax", "argmin"]
    + ["reduce_max", "reduce_min", "reduce_and", "reduce_or", "convert_element_type"]
    + ["copy", "copy_p", "cummax", "cummin", "cumsum", "stack", "tile", "top_k"]
)


def _is_numeric(call: RecordedHostCall) -> bool:
    """Check whether a call is an op of numbers."""
    values = [v for v in nest.flatten((call.args, call.kwargs)) if isinstance(v, DeferredValue)]
    is_op = hasattr(call.function, "op") or is_item(call)
    return is_op and all(v.dtype is not dtypes.string for v in values)


class NumericCalls:
    """The calls on numbers whose results a plan uses.

    Args:
      sources: Sources of the results and of the arguments of the plan's program.
      placeholders: Sources of the placeholders of inputs in the trace, by id.

    Attributes:
      outputs: The calls with results that other parts of the plan use; empty if there is nothing to run together.
      input_specs: Specs of the values that the calls take from other calls or from elements.
    """

    def __init__(self, sources: Sequence[Any], placeholders: dict[int, Any]) -> None:
        self._placeholders = placeholders
        # The calls in the order in which they were recorded, and the specs of other values that they use, by source.
        self._calls: dict[RecordedHostCall, None] = {}
        self._inputs: dict[Any, TensorSpec] = {}
        calls = [s.call for s in sources if isinstance(s, CallResult) and _is_numeric(s.call)]
        self.outputs = list(dict.fromkeys(calls))
        for call in self.outputs:
            self._visit(call)
        if not self._inputs:
            self.outputs = []
        self._is_traceable = True
        self.input_specs = tuple(self._inputs.values())
        self._programs = SizedPrograms(self.input_specs, self._trace, self._trace)
        # The programs for stacked values by their shapes and dtypes, None if the calls run for each element.
        self._stacked: dict[Any, tuple[TracedFunction, InterpretedProgram] | None] = {}

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
        return [call for call in calls if call not in self._calls]

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
            if isinstance(source, CallResult) and _is_numeric(source.call):
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
            with trace_with_fallback():
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
        try:
            stacked = self._run_stacked(columns) if count >= _MIN_STACKED else None
        except Exception as error:
            _log.debug("The calls of a map run for each element: %r", error)
            stacked = None
        if stacked is not None:
            return stacked
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

    def _run_stacked(
        self, columns: Sequence[Column]
    ) -> dict[RecordedHostCall, list[Column]] | None:
        """Compute the results at once; None if the values differ in size, or their results depended on their number."""
        # The first array shows whether stacking would need much memory.
        num_bytes = sum(structure.item_to_array(column[0]).nbytes for column in columns)
        if num_bytes * len(columns[0]) > _MAX_STACKED_BYTES:
            return None
        stacked = [c if isinstance(c, np.ndarray) else _stack_equal(c) for c in columns]
        leaves = [leaf for leaf in stacked if leaf is not None]
        if len(leaves) < len(stacked):
            return None
        key = tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
        if key not in self._stacked:
            if len(self._stacked) >= _MAX_STACKED_PROGRAMS:
                return None
            specs = tuple([TensorSpec(leaf.shape[1:], leaf.dtype) for leaf in leaves])
            traced = self._trace(specs)
            run = jax.vmap(traced.run_on_arrays, in_axes=(0, None))
            closed = jax.make_jaxpr(run)(leaves, traced.get_captured_arrays())
            is_valid = _computes_rows_alone(closed.jaxpr) and is_interpreter_enabled()
            self._stacked[key] = (traced, InterpretedProgram(closed)) if is_valid else None
        found = self._stacked[key]
        if found is None:
            return None
        traced, program = found
        operands = [*leaves, *traced.get_captured_arrays()]
        if not program.estimate_limit(operands):
            return None
        arrays = list(map(Tensor, program.run_on_host(operands)))
        results = structure.to_arrays(traced.rebuild_result(arrays))
        return {call: list(parts) for call, parts in zip(self.outputs, results, strict=True)}


def _stack_equal(column: list[np.ndarray]) -> np.ndarray | None:
    """Stack arrays of one shape; return None if the shapes differ."""
    arrays = list(map(structure.item_to_array, column))
    return np.stack(arrays) if len({a.shape for a in arrays}) == 1 else None


def _computes_rows_alone(jaxpr: Jaxpr) -> bool:
    """Check whether no number of a result depends on how many others are computed, as in some products and sums."""
    for equation in jaxpr.eqns:
        inner = find_inner_jaxprs(equation)
        if inner and equation.primitive.name in INLINED:
            if not all(_computes_rows_alone(to_open_jaxpr(part)) for part in inner):
                return False
            continue
        name = equation.primitive.name
        rule = RULES.get(name)
        is_local = rule is not None and (rule.is_elementwise or rule.is_view)
        # Compiled functions, with other rounding errors, compute only large arrays.
        if name in host_math.FUNCTIONS or not (is_local or name in _ROW_PRIMITIVES):
            return False
    return True
