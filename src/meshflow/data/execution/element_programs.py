"""Programs of functions of elements whose sizes vary.

Such a function is traced once with symbols for its unknown sizes (`trace_families.py`), and runs with
the interpreter, because XLA would compile it for each size. Only programs whose single run takes long
are compiled. The choice depends on nothing but the shapes of an element, so a pipeline that is resumed
computes the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.tiers import InterpretedProgram, is_interpreter_enabled
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.trace_families import TraceFamily
from meshflow.data.execution.cpu_programs import compile_for_cpu
from meshflow.environment.types import PyTree

__all__ = ["ElementProgram", "SizedPrograms"]

# Programs that take longer than this part of their compilation are compiled for each size.
_MIN_RUNS = 16


class ElementProgram:
    """A traced function of elements.

    Args:
      traced: The function.
      interprets: Whether the program may run op by op.

    Attributes:
      traced: The function.
    """

    def __init__(self, traced: TracedFunction, interprets: bool) -> None:
        self.traced = traced
        self._interpreted = InterpretedProgram(traced.closed_jaxpr) if interprets else None
        self._compiled = compile_for_cpu(traced.run_on_arrays)
        self._lock = threading.Lock()

    def should_interpret(self, leaves: Sequence[Any], captures: Sequence[Any]) -> bool:
        """Check whether the program runs op by op for arrays of these shapes."""
        if self._interpreted is None or not is_interpreter_enabled():
            return False
        with self._lock:
            return self._interpreted.estimate_limit([*leaves, *captures]) >= _MIN_RUNS

    def run(self, leaves: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
        """Return the results, then the new values of the written variables."""
        if self._interpreted is None or not self.should_interpret(leaves, captures):
            results: list[Any] = self._compiled(leaves, captures)
            return results
        with self._lock:
            return self._interpreted.run([*leaves, *captures])


class SizedPrograms:
    """The programs of a function of elements, by the shapes and dtypes of the elements.

    Args:
      spec: Spec of the elements.
      has_unknown_sizes: Whether sizes of the elements are unknown.
    """

    def __init__(self, spec: PyTree, has_unknown_sizes: bool) -> None:
        self._spec = spec
        self._has_unknown_sizes = has_unknown_sizes
        self._programs: dict[Any, ElementProgram] = {}
        self._families: dict[Any, TraceFamily[ElementProgram]] = {}

    def find(
        self,
        leaves: Sequence[Any],
        trace: Callable[[PyTree], TracedFunction],
        trace_exactly: Callable[[], TracedFunction | None],
    ) -> ElementProgram | None:
        """Return the program for an element.

        Args:
          leaves: The arrays of the element.
          trace: Traces the function for a spec with symbolic sizes; it may raise any error.
          trace_exactly: Traces the function for the sizes of the element, or returns None if it has to
            run eagerly.
        """
        key = tuple([(a.shape, a.dtype.str) for a in leaves])
        program = self._programs.get(key)
        if program is None:
            program = self._find_general(leaves, trace) if self._has_unknown_sizes else None
            if program is None:
                traced = trace_exactly()
                if traced is None:
                    return None
                program = ElementProgram(traced, self._has_unknown_sizes)
            self._programs[key] = program
        return program

    def _find_general(
        self, leaves: Sequence[Any], trace: Callable[[PyTree], TracedFunction]
    ) -> ElementProgram | None:
        """Return a program for any size that runs op by op for an element, or None."""
        if not is_interpreter_enabled():
            return None
        key = tuple([(a.ndim, a.dtype.str) for a in leaves])
        family = self._families.get(key)
        shapes = [a.shape for a in leaves]
        if family is None:
            family = self._families[key] = TraceFamily()
            family.add_call(self._expect_other_shapes(shapes))

        def trace_sizes(sizes: GuardedSizes) -> ElementProgram:
            specs = [
                TensorSpec(shape, a.dtype) for shape, a in zip(sizes.shapes, leaves, strict=True)
            ]
            traced = trace(nest.pack_sequence_as(self._spec, specs))
            if traced.iterator_captures or traced.infeeds or traced.closed_jaxpr.effects:
                raise ValueError("the function has effects")
            return ElementProgram(traced, interprets=True)

        program = family.find(shapes, trace_sizes)
        if program is None:
            return None
        captures = [np.empty(c.shape, c.dtype.as_numpy_dtype) for c in program.traced.captures]
        return program if program.should_interpret(leaves, captures) else None

    def _expect_other_shapes(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return shapes that differ in the axes of unknown size."""
        specs = nest.flatten(self._spec)
        return [
            tuple(
                [
                    n + k + 1 if s is None else n
                    for k, (n, s) in enumerate(zip(shape, sizes, strict=True))
                ]
            )
            for shape, sizes in zip(shapes, [spec.shape.as_list() for spec in specs], strict=True)
        ]
