"""Maps with checks such as `tf.debugging.check_numerics`: one program for many elements.

A check is a call of Python, which would run for each element. Here, the program returns the conditions of
the checks instead, and only the elements for which one is false run with the calls, which raise the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.tiers import InterpretedProgram, is_interpreter_enabled
from meshflow.core.tracing import host_callbacks
from meshflow.core.tracing.trace import TensorSlot, TracedFunction
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.execution import chunks
from meshflow.data.execution.chunks import Chunk
from meshflow.data.execution.failures import Failure
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import PyTree
from meshflow.passes.jaxprs import select_variables


class CheckedMap:
    """The execution of a traced function with checks.

    Args:
      traced: The function.
      program: The function without its checks; the last results are their conditions.

    Attributes:
      program: See above.
    """

    def __init__(self, traced: TracedFunction, program: TracedFunction) -> None:
        self.program = program
        self._traced = traced
        self._with_checks = InterpretedProgram(traced.closed_jaxpr)
        self._interpreted = InterpretedProgram(program.closed_jaxpr)
        # Several threads may iterate over the dataset.
        self._lock = threading.Lock()

    def compute_items(
        self,
        chunk: Chunk,
        compute: Callable[[Chunk], Chunk],
        compute_row: Callable[[Chunk], PyTree],
    ) -> list[Any]:
        """Compute the results for consecutive elements: chunks, and failures of elements.

        Args:
          chunk: Stacked leaves of the elements.
          compute: Runs the program.
          compute_row: Runs the function, with its checks, for the leaves of an element.
        """
        count, num_results = chunks.count_elements(chunk), self._traced.num_results
        get_row = lambda index: [structure.item_to_array(leaf[index]) for leaf in chunk]
        try:
            computed = compute(chunk)
        except Exception:
            return [_compute_item(compute_row, get_row(index)) for index in range(count)]
        results, conditions = computed[:num_results], computed[num_results:]
        holds = np.all([c.reshape(count, -1).all(1) for c in conditions], axis=0)
        if holds.all():
            return [results]
        items: list[Any] = []
        start = 0
        for index in [*np.flatnonzero(~holds).tolist(), count]:
            if start < index:
                items.append(chunks.slice_chunk(results, start, index))
            if index < count:
                items.append(_compute_item(compute_row, get_row(index)))
            start = index + 1
        return items

    def compute_element(self, leaves: Chunk) -> PyTree | None:
        """Compute the result for one element; return None if the interpreter does not support the function.

        Args:
          leaves: Leaves of the element.

        Raises:
          Exception: The error of a check.
        """
        with self._lock:
            operands = [*leaves, *map(np.asarray, self._traced.get_captured_arrays())]
            if not (is_interpreter_enabled() and self._interpreted.estimate_limit(operands)):
                return None
            try:
                results = self._interpreted.run_on_host(operands)
                if not all(map(np.all, results[self._traced.num_results :])):
                    if not self._with_checks.estimate_limit(operands):
                        return None
                    results = self._with_checks.run_on_host(operands)
            except FloatingPointError:
                # JAX's options forbid a value; in a compiled program, a check may report it first.
                return None
        return self._traced.rebuild_result(results[: self._traced.num_results])


def _compute_item(compute_row: Callable[[Chunk], PyTree], leaves: Chunk) -> Chunk | Failure:
    """Compute the result for one element, as a chunk, or the failure that a check raises."""
    try:
        results = nest.flatten(compute_row(leaves))
    except Exception as error:
        return Failure(error)
    return [np.asarray(r)[None] for r in results]


def separate_checks(traced: TracedFunction) -> CheckedMap | None:
    """Separate the checks of a function of elements from the rest.

    Args:
      traced: The function; its results are tensors of static shapes.

    Returns:
      None if the function has other effects, writes variables, or has checks in a branch or loop.
    """
    closed = traced.closed_jaxpr
    jaxpr = closed.jaxpr
    effectful = [e for e in jaxpr.eqns if e.effects]
    if traced.writes or traced.infeeds or traced.iterator_captures:
        return None
    if not effectful or not all(map(host_callbacks.is_check, effectful)):
        return None
    conditions = select_variables(e.invars[0] for e in effectful)
    if len(conditions) < len(effectful):
        return None
    outputs = [*jaxpr.outvars[: traced.num_results], *conditions]
    program = jaxpr.replace(
        eqns=[e for e in jaxpr.eqns if not e.effects],
        outvars=outputs,
        effects=jex_core.no_effects,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    without_checks = TracedFunction(
        traced.name,
        jex_core.ClosedJaxpr(program, closed.consts),
        traced.captures,
        [],
        tuple(map(TensorSlot, range(len(outputs)))),
        len(outputs),
    )
    return CheckedMap(traced, without_checks)
