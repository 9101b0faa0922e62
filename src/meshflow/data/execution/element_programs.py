"""Programs of functions of elements with varying sizes.

Such a function is traced once with symbols for its unknown sizes (`trace_families.py`), and runs with
the interpreter, because XLA would compile it for each size. Only programs whose single run takes long
are compiled. The choice depends on nothing but the shapes of an element, so a pipeline that is resumed
computes the same bits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshflow.core.autograph.status import override_status
from meshflow.core.dispatch.tiers import InterpretedProgram, is_interpreter_enabled
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.trace_families import TraceFamily
from meshflow.data import structure
from meshflow.data.execution.cpu_programs import compile_for_cpu
from meshflow.environment.jax_internals import dce_jaxpr
from meshflow.environment.types import PyTree

# Programs that take longer than this part of their compilation are compiled for each size.
_MIN_RUNS = 16


@contextlib.contextmanager
def trace_with_fallback() -> Iterator[None]:
    """Make errors catchable while a function is traced that can also run eagerly."""
    saved, context.can_run_eagerly = context.can_run_eagerly, True
    try:
        with override_status(True):
            yield
    finally:
        context.can_run_eagerly = saved


class ElementProgram:
    """A traced function of elements, which runs with the interpreter or compiled.

    Args:
      traced: The function. If it has symbolic sizes, it cannot be compiled.

    Attributes:
      traced: The function.
      compiled: Runs the compiled function on the arrays of an element and the captures.
      is_scalar_of_shapes: Whether the results are scalars that depend only on the shapes of an element.
    """

    def __init__(self, traced: TracedFunction) -> None:
        self.traced = traced
        self.is_scalar_of_shapes = _is_scalar_of_shapes(traced)
        self.compiled = compile_for_cpu(traced.run_on_arrays)
        self._interpreted = InterpretedProgram(traced.closed_jaxpr, traced.has_unknown_sizes)
        self._lock = threading.Lock()

    def should_interpret(self, leaves: Sequence[Any]) -> bool:
        """Check whether the function runs with the interpreter for arrays of these shapes."""
        if _has_effects(self.traced) or not is_interpreter_enabled():
            return False
        with self._lock:
            operands = [*leaves, *self.traced.get_captured_arrays()]
            return self._interpreted.estimate_limit(operands) >= _MIN_RUNS

    def interpret(self, leaves: Sequence[Any], captures: Sequence[Any]) -> list[Any]:
        """Run the function with the interpreter, after `should_interpret` returned True."""
        with self._lock:
            return self._interpreted.run_on_host([*leaves, *captures])


class SizedPrograms:
    """The programs of a function of elements, by the shapes and dtypes of the elements.

    Args:
      spec: Spec of the elements.
      trace: Traces the function for a spec; it returns None if the function has to run eagerly.
      trace_for_any_size: Traces the function for a spec with symbolic sizes; it may raise any error.
    """

    def __init__(
        self,
        spec: PyTree,
        trace: Callable[[PyTree], TracedFunction | None],
        trace_for_any_size: Callable[[PyTree], TracedFunction],
    ) -> None:
        self._spec = spec
        self._trace, self._trace_for_any_size = trace, trace_for_any_size
        self._has_unknown_sizes = not structure.is_static(spec)
        # The programs with symbolic sizes, and those for exact sizes.
        self._general: dict[Any, ElementProgram] = {}
        self._exact: dict[Any, ElementProgram] = {}
        self._families: dict[Any, TraceFamily[ElementProgram]] = {}
        # Several threads may compute elements.
        self._lock = threading.RLock()

    def find(
        self, element: PyTree, leaves: Sequence[Any]
    ) -> tuple[ElementProgram, Callable[..., list[Any]]] | None:
        """Return the program for an element, and the function that runs it.

        Args:
          element: Host arrays.
          leaves: The arrays of the element.

        Returns:
          None if the function has to run eagerly.
        """
        key = tuple([(a.shape, a.dtype.str) for a in leaves])
        if self._has_unknown_sizes:
            general = self._general.get(key) or self._find_general(key, leaves)
            if general is not None and general.should_interpret(leaves):
                return general, general.interpret
        exact = self._exact.get(key)
        if exact is None:
            with self._lock:
                traced = self._trace(structure.infer_spec(element))
                if traced is None:
                    return None
                exact = self._exact[key] = ElementProgram(traced)
        unknown = exact.traced.has_unknown_sizes
        interprets = (self._has_unknown_sizes or unknown) and exact.should_interpret(leaves)
        if unknown and not interprets:
            return None
        return exact, exact.interpret if interprets else exact.compiled

    def find_symbolic(self, leaves: Sequence[Any]) -> ElementProgram | None:
        """Return a program with symbolic sizes that the interpreter runs for an element, or None.

        Args:
          leaves: The arrays of the element.
        """
        key = tuple([(a.shape, a.dtype.str) for a in leaves])
        general = self._general.get(key) or self._find_general(key, leaves)
        return general if general is not None and general.should_interpret(leaves) else None

    def _find_general(self, key: Any, leaves: Sequence[Any]) -> ElementProgram | None:
        """Return a program with symbolic sizes that is valid for an element, or None."""
        if not is_interpreter_enabled():
            return None
        shapes = [a.shape for a in leaves]

        def trace_sizes(sizes: GuardedSizes) -> ElementProgram:
            specs = [
                TensorSpec(shape, a.dtype) for shape, a in zip(sizes.shapes, leaves, strict=True)
            ]
            traced = self._trace_for_any_size(nest.pack_sequence_as(self._spec, specs))
            if _has_effects(traced):
                raise ValueError("the function has effects")
            return ElementProgram(traced)

        with self._lock:
            family_key = tuple([(a.ndim, a.dtype.str) for a in leaves])
            family = self._families.get(family_key)
            if family is None:
                known_sizes = [spec.shape.as_list() for spec in nest.flatten(self._spec)]
                family = self._families[family_key] = TraceFamily(known_sizes)
            program = family.find(shapes, trace_sizes)
        if program is not None:
            self._general[key] = program
        return program


def _is_scalar_of_shapes(traced: TracedFunction) -> bool:
    """Check whether a function returns scalars and uses no value of an element, variable or outer tensor."""
    if traced.captures or traced.writes or _has_effects(traced):
        return False
    if any(spec.shape.rank for spec in traced.out_specs):
        return False
    jaxpr = traced.closed_jaxpr.jaxpr
    return not any(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1])


def _has_effects(traced: TracedFunction) -> bool:
    """Check whether a function calls Python or takes elements of iterators."""
    return bool(traced.iterator_captures or traced.infeeds or traced.closed_jaxpr.effects)
