"""Maps with results of unknown sizes or sparse results: a vectorized program, and the rest for each element.

The size of a result may depend on values, as that of `tf.boolean_mask`. The equations of such a function
before the first unknown size have static shapes, so they run on many elements at once. The interpreter
runs the others for each element.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.tiers import InterpretedProgram
from meshflow.core.tracing.trace import CompositeResultSlot, TensorSlot, TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import SIZE_PRIMITIVES
from meshflow.data import structure
from meshflow.data.execution.chunks import Chunk, iter_leaf
from meshflow.data.execution.failures import Failure
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ClosedJaxpr, Jaxpr, JaxprEqn, PyTree, Var
from meshflow.passes.jaxprs import select_variables


def _has_static_shape(variable: Any) -> bool:
    return all(isinstance(n, int) for n in variable.aval.shape)


def _find_static_equations(jaxpr: Jaxpr) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Divide the equations into those that depend on no unknown size, and the others."""
    static: list[JaxprEqn] = []
    others: list[JaxprEqn] = []
    open_variables: set[Var] = set()
    for equation in jaxpr.eqns:
        is_static = (
            equation.primitive.name not in SIZE_PRIMITIVES
            and open_variables.isdisjoint(select_variables(equation.invars))
            and all(map(_has_static_shape, equation.outvars))
            # Equations such as `dim_as_value` compute a size.
            and not equation.primitive.name.startswith("dim")
        )
        (static if is_static else others).append(equation)
        if not is_static:
            open_variables.update(equation.outvars)
    return static, others


class SegmentedMap:
    """The execution of a traced function in two segments.

    Args:
      traced: The function.
      vectorized: The first segment; its results are operands of the second.
      rest: The second segment, a function of these operands and of the captures.

    Attributes:
      vectorized: The first segment, None if it contains no equations.
    """

    def __init__(
        self, traced: TracedFunction, vectorized: TracedFunction, rest: ClosedJaxpr
    ) -> None:
        self._traced = traced
        jaxpr = vectorized.closed_jaxpr.jaxpr
        self.vectorized = vectorized if jaxpr.eqns else None
        # Without a first segment, the operands of the second are leaves of the elements.
        self._operands: list[int] = []
        if self.vectorized is None:
            operands = jaxpr.outvars[: vectorized.num_results]
            self._operands = [jaxpr.invars.index(v) for v in operands]
        self._rest, self._is_supported = InterpretedProgram(rest, True), False
        # Several threads may iterate over the dataset.
        self._lock = threading.Lock()
        self._has_composites = CompositeResultSlot in map(type, nest.flatten(traced.structure))

    def compute_rows(
        self, chunk: Chunk, compute: Callable[[Chunk], Chunk], fall_back: Callable[[list[Any]], Any]
    ) -> Iterator[Any]:
        """Compute the results for consecutive elements, with a failure where an element cannot be computed.

        Args:
          chunk: Stacked leaves of the elements.
          compute: Runs the first segment.
          fall_back: Computes the result for the leaves of an element on which the second segment fails.
        """
        captures = [np.asarray(a) for a in self._traced.get_captured_arrays()]
        count = len(chunk[0])
        rows: Iterable[Any]
        try:
            if self.vectorized is None:
                operands = [chunk[i] for i in self._operands]
            else:
                operands = compute(chunk)
            rows = zip(*map(iter_leaf, operands), strict=True) if operands else [()] * count
        except Exception:
            rows = [None] * count
        for i, row in enumerate(rows):
            try:
                result = None if row is None else self._run_rest([*row, *captures])
            except Exception:
                # A guard of a size failed, or the function raises this error when it runs eagerly, too.
                result = None
            if result is not None:
                yield self._rebuild_element(result)
                continue
            try:
                element = fall_back([structure.item_to_array(leaf[i]) for leaf in chunk])
            except Exception as error:
                element = Failure(error)
            yield element

    def _run_rest(self, arguments: list[Any]) -> list[np.ndarray]:
        with self._lock:
            # The shapes of all arguments are static.
            self._is_supported = self._is_supported or self._rest.estimate_limit(arguments) > 0
            if not self._is_supported:
                raise NotImplementedError("the interpreter does not support an equation")
            return self._rest.run_on_host(arguments)

    def _rebuild_element(self, results: list[np.ndarray]) -> PyTree:
        if not self._has_composites:
            return self._traced.rebuild_result(results)
        return structure.to_arrays(self._traced.rebuild_result(list(map(Tensor, results))))


def divide_program(traced: TracedFunction) -> SegmentedMap | None:
    """Divide a function into a segment that runs on many elements, and the rest.

    Args:
      traced: The function of elements of static shapes.

    Returns:
      None if a variable that it writes depends on unknown sizes, or if it calls Python.
    """
    closed = traced.closed_jaxpr
    jaxpr = closed.jaxpr
    slots = set(map(type, nest.flatten(traced.structure)))
    if closed.effects or traced.infeeds or traced.iterator_captures:
        return None
    if not slots <= {TensorSlot, CompositeResultSlot}:
        return None
    static, others = _find_static_equations(jaxpr)
    results = jaxpr.outvars[: traced.num_results]
    written = jaxpr.outvars[traced.num_results :]
    computed = {v for equation in others for v in equation.outvars}
    if not computed.isdisjoint(select_variables(written)):
        return None
    captured = jaxpr.invars[len(jaxpr.invars) - len(traced.captures) :]
    available = {*captured, *jaxpr.constvars, *computed}
    used = [v for equation in others for v in select_variables(equation.invars)]
    used += select_variables(results)
    operands = [v for v in dict.fromkeys(used) if v not in available]
    unnamed = jaxpr.debug_info.with_unknown_names()
    first = jaxpr.replace(outvars=[*operands, *written], eqns=static, debug_info=unnamed)
    rest = jaxpr.replace(
        invars=[*operands, *captured], outvars=list(results), eqns=others, debug_info=unnamed
    )
    vectorized = TracedFunction(
        traced.name,
        jex_core.ClosedJaxpr(first, closed.consts),
        traced.captures,
        traced.writes,
        tuple(map(TensorSlot, range(len(operands)))),
        len(operands),
    )
    return SegmentedMap(traced, vectorized, jex_core.ClosedJaxpr(rest, closed.consts))
