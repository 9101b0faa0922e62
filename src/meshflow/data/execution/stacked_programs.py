"""Programs for several elements of equal shapes at once, for functions of unknown sizes.

Dispatching the equations of a function takes longer than computing a short array, so the arrays of elements
that happen to have equal shapes are stacked, for the interpreter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.tiers import InterpretedProgram, is_interpreter_enabled
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.types import Jaxpr
from meshflow.interpreter.table import INLINED, RULES
from meshflow.kernels import host_math

_log = logging.getLogger("meshflow")

# Fewer elements are not stacked, nor more bytes.
_MIN_STACKED, _MAX_STACKED_BYTES = 8, 1 << 22
# At most so many programs are kept for arrays of different shapes.
_MAX_PROGRAMS = 16
# Primitives that compute each row by itself, in addition to elementwise ones and views.
_ROW_PRIMITIVES = frozenset(
    ["concatenate", "pad", "gather", "dynamic_slice", "sort", "argmax", "argmin"]
    + ["reduce_max", "reduce_min", "reduce_and", "reduce_or", "convert_element_type"]
    + ["copy", "copy_p", "cummax", "cummin", "cumsum", "stack", "tile", "top_k"]
)
# Functions with a rule of their own that compute each row by itself.
_ROW_FUNCTIONS = frozenset(["philox_seed_key", "philox_uniform"])


class StackedPrograms:
    """The programs of a function for stacked arrays, by their shapes and dtypes.

    Args:
      trace: Traces the function for a list with a spec of each array; it may raise any error.
    """

    def __init__(self, trace: Callable[[list[TensorSpec]], TracedFunction]) -> None:
        self._trace = trace
        # None if the function runs for each element.
        self._programs: dict[Any, InterpretedProgram | None] = {}
        # By the shapes and dtypes of an element.
        self._traces: dict[Any, TracedFunction] = {}
        # Several threads may compute elements.
        self._lock = threading.RLock()

    def run(
        self, columns: Sequence[np.ndarray | list[Any]]
    ) -> tuple[TracedFunction, list[np.ndarray]] | None:
        """Compute the stacked results for several elements.

        Args:
          columns: For each argument its stacked arrays, or a list of arrays.

        Returns:
          The traced function for an element, and its stacked results; None if the arrays differ in shape, or the
          results would depend on their number.
        """
        try:
            with self._lock:
                return self._run(columns)
        except Exception as error:
            _log.debug("A function of a map runs for each element: %r", error)
            return None

    def _run(
        self, columns: Sequence[np.ndarray | list[Any]]
    ) -> tuple[TracedFunction, list[np.ndarray]] | None:
        # The first array shows whether stacking would need much memory.
        num_bytes = sum(structure.item_to_array(column[0]).nbytes for column in columns)
        if len(columns[0]) < _MIN_STACKED or num_bytes * len(columns[0]) > _MAX_STACKED_BYTES:
            return None
        stack = lambda column: np.stack(list(map(structure.item_to_array, column)))
        leaves = [c if isinstance(c, np.ndarray) else stack(c) for c in columns]
        key = tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
        element_key = tuple([(shape[1:], dtype) for shape, dtype in key])
        if key not in self._programs:
            if len(self._programs) >= _MAX_PROGRAMS:
                return None
            # A function that cannot be traced for these shapes is not traced again.
            self._programs[key] = None
            if element_key not in self._traces:
                self._traces[element_key] = self._trace([TensorSpec(*k) for k in element_key])
            self._programs[key] = _stack_program(self._traces[element_key], leaves)
        program = self._programs[key]
        if program is None:
            return None
        traced = self._traces[element_key]
        operands = [*leaves, *traced.get_captured_arrays()]
        return (traced, program.run_on_host(operands)) if program.estimate_limit(operands) else None


def _stack_program(traced: TracedFunction, leaves: list[np.ndarray]) -> InterpretedProgram | None:
    """Return the program for stacked arrays, None if the results would depend on their number."""
    effects = traced.writes or traced.infeeds or traced.closed_jaxpr.effects
    if effects or traced.iterator_captures or traced.has_unknown_sizes:
        return None
    run = jax.vmap(traced.run_on_arrays, in_axes=(0, None))
    closed = jax.make_jaxpr(run)(leaves, traced.get_captured_arrays())
    is_valid = _computes_rows_alone(closed.jaxpr) and is_interpreter_enabled()
    return InterpretedProgram(closed) if is_valid else None


def _computes_rows_alone(jaxpr: Jaxpr) -> bool:
    """Check whether no number of a result depends on how many others are computed, as in some products and sums."""
    for equation in jaxpr.eqns:
        inner = find_inner_jaxprs(equation)
        name = equation.primitive.name
        if inner and name in INLINED:
            is_local = equation.params.get("name") in _ROW_FUNCTIONS
            if not is_local and not all(
                _computes_rows_alone(to_open_jaxpr(part)) for part in inner
            ):
                return False
            continue
        rule = RULES.get(name)
        is_local = rule is not None and (rule.is_elementwise or rule.is_view)
        # Compiled functions, with other rounding errors, compute only large arrays.
        if name in host_math.FUNCTIONS or not (is_local or name in _ROW_PRIMITIVES):
            return False
    return True
