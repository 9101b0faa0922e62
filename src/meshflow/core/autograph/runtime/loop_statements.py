"""Execution of `while` and `for` statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.autograph.runtime.growing_lists import GrowingLists
from meshflow.core.autograph.runtime.if_statements import if_stmt
from meshflow.core.autograph.runtime.iterables import get_staged_elements
from meshflow.core.autograph.runtime.structure_template import (
    TENSORLESS,
    StructureTemplate,
    format_label,
    get_location,
)
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ListGrowthError, VaryingValueError
from meshflow.core.staging import loops
from meshflow.core.staging.loop_state import LoopInvariants
from meshflow.core.staging.scalar_logic import is_symbolic, to_scalar_bool
from meshflow.core.staging.structure import undefined
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable

# A `while` on a tensor with a value that is known during tracing runs in Python, so that it may
# change shapes. Its length is limited, because a counter made by `tf.constant(0)` must not unroll
# thousands of iterations into the program.
MAX_UNROLLED = 16
# A `for` over tensors runs in Python if its body reads a list to which it also adds tensors, up to
# this number of iterations.
MAX_LIST_ITERATIONS = 128

# Types of values that a `tf.Variable` may replace in a loop.
_REPLACEABLE = (Tensor, Variable, int, float, complex, np.ndarray, np.generic)

Get = Callable[[], tuple[Any, ...]]
Set = Callable[..., None]


def while_stmt(
    test: Callable[[], Any],
    body: Callable[[], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    maximum_iterations: int | Tensor | None = None,
    shape_invariants: Sequence[Any] | None = None,
) -> None:
    """Run a `while` statement, if staged with the options of `set_loop_options`."""
    iterations = 0
    while True:
        condition = test()
        is_constant = isinstance(condition, Tensor) and context.trace is not None
        if is_symbolic(condition) or (is_constant and iterations >= MAX_UNROLLED):
            allows = shape_invariants is not None
            _stage_while(test, body, get, set_, template, maximum_iterations, iterations, allows)
            return
        if not condition:
            return
        body()
        iterations += 1


def _stage_while(
    test: Callable[[], Any],
    body: Callable[[], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    limit: int | Tensor | None,
    iterations: int,
    allows_shape_changes: bool,
) -> None:
    init = get()

    def run_test(values: list[Any]) -> Any:
        set_(*values)
        return test()

    def run_body(values: list[Any]) -> list[Any]:
        set_(*values)
        body()
        return _get_new_state(init, values, get())

    final = list(init)
    max_count = None
    if limit is not None:
        max_count = max(to_static_value(limit, "maximum_iterations") - iterations, 0)
    location = get_location(body)  # type: ignore[arg-type]

    def run(start: list[Any], invariants: _StatementInvariants) -> list[Any]:
        needed = _list_needed(template, init)
        return loops.while_loop(run_test, run_body, start, needed, invariants, max_count)

    try:
        final = _run_with_variable_values(run, init, template, location, allows_shape_changes)
    finally:
        set_(*final)


def for_stmt(
    iterated: Any,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    get_appended: Get,
    maximum_iterations: int | Tensor | None = None,
    shape_invariants: Sequence[Any] | None = None,
) -> None:
    """Run a `for` statement.

    Args:
      iterated: The iterable.
      extra_test: Computes whether to continue, if the body may break or return.
      body: Function of one element.
      get: Returns the state.
      set_: Replaces the state.
      template: Description of the state.
      get_appended: Returns the values of the variables that the body uses only to append to a list.
      maximum_iterations: Maximum number of iterations if the loop is staged.
      shape_invariants: With a value, the state may change its shapes.
    """
    elements = get_staged_elements(iterated)
    if isinstance(elements, loops.LoopStream):
        lists = GrowingLists(())
        count = _stage_for(
            elements, extra_test, body, get, set_, template, maximum_iterations, lists
        )
        if elements.rest is not None:
            requested = (
                Tensor(np.array(True)) if extra_test is None else to_scalar_bool(extra_test())
            )
            element, is_present = elements.rest(requested, count)
            _run_iteration_if(is_present, body, element, get, set_, template)
        return
    if elements is not None:
        can_unroll = isinstance(elements.count, int) and extra_test is None
        lists = GrowingLists(get_appended() if can_unroll else ())
        try:
            allows = shape_invariants is not None
            _stage_for(
                elements, extra_test, body, get, set_, template, maximum_iterations, lists, allows
            )
        except ListGrowthError:
            if not can_unroll or elements.count > MAX_LIST_ITERATIONS or maximum_iterations:
                raise
            # The body reads a list that it also changes.
            for i in range(elements.count):
                body(_get_element(elements, i))
        for get_element in elements.rest:
            element = get_element(_find_loop_result(get()))
            if extra_test is None:
                body(element)
            else:
                _run_conditionally(iter([element]), extra_test, body, get, set_, template)
        return
    iterator = iter(iterated)
    for item in iterator:
        body(item)
        if extra_test is not None:
            condition = extra_test()
            if is_symbolic(condition):
                _run_conditionally(iterator, extra_test, body, get, set_, template)
                return
            if not condition:
                return


def _get_element(elements: loops.LoopElements, index: int) -> Any:
    if elements.stacked is None:
        return elements.get_element(Tensor(np.array(index, np.int32)))
    return nest.map_structure(lambda tensor: tensor[index], elements.stacked)


def _find_loop_result(state: tuple[Any, ...]) -> Tensor | None:
    """Return a tensor that a staged loop computed: a local variable, or a variable that it wrote."""
    scope = context.trace
    written = [scope.read(v) for v in scope.writes.values()] if scope is not None else []
    return next((v for v in (*state, *reversed(written)) if is_symbolic(v)), None)


def _run_conditionally(
    iterator: Iterator[Any],
    extra_test: Callable[[], Any],
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
) -> None:
    """Run the rest of a Python loop that a tensor may end; each iteration becomes conditional."""
    for item in iterator:
        _run_iteration_if(extra_test(), body, item, get, set_, template)


def _run_iteration_if(
    test: object,
    body: Callable[[Any], None],
    item: Any,
    get: Get,
    set_: Set,
    template: StructureTemplate,
) -> None:
    """Run one iteration if a tensor is true."""
    size = template.variables

    def iteration() -> None:
        body(item)

    iteration.__code__ = iteration.__code__.replace(
        co_filename=body.__code__.co_filename, co_firstlineno=body.__code__.co_firstlineno
    )
    if_stmt(
        test,
        iteration,
        None,
        get,
        set_,
        StructureTemplate(template.labels, size, template.needed, size),
    )


def _stage_for(
    elements: loops.LoopElements | loops.LoopStream,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    limit: int | Tensor | None,
    lists: GrowingLists,
    allows_shape_changes: bool = False,
) -> Any:
    """Run a loop over tensors; return the number of iterations if the elements are a stream."""
    init = get()

    def step(element: Any, values: list[Any]) -> list[Any]:
        set_(*values)
        body(element)
        return _get_new_state(init, values, get())

    def collect(element: Any, values: list[Any]) -> tuple[list[Any], list[list[Any]]]:
        set_(*values)
        outputs = lists.collect(lambda: body(element))
        return _get_new_state(init, values, get()), outputs

    def continues(values: list[Any]) -> Any:
        set_(*values)
        return extra_test()  # type: ignore[misc]

    final = list(init)
    limit = None if limit is None else to_static_value(limit, "maximum_iterations")
    location, needed = get_location(body), _list_needed(template, init)  # type: ignore[arg-type]
    test = continues if extra_test is not None else None
    count: Any = None
    appended: list[list[Tensor]] = []
    num_iterations = 0

    def run(start: list[Any], invariants: _StatementInvariants) -> list[Any]:
        nonlocal count, appended, num_iterations
        if isinstance(elements, loops.LoopStream):
            result, count = loops.stream_loop(
                elements, step, start, needed, invariants, test, limit
            )
            return result
        if not lists:
            return loops.for_loop(elements, step, start, needed, invariants, test, limit)
        num_iterations = elements.count if limit is None else min(elements.count, limit)  # type: ignore[assignment]
        if num_iterations <= 0:
            return start
        result, appended = loops.scan(
            elements, collect, start, needed, invariants, count=num_iterations
        )
        return result

    try:
        final = _run_with_variable_values(run, init, template, location, allows_shape_changes)
    finally:
        set_(*final)
        lists.reset()
    if appended:
        lists.append(appended, num_iterations)
    return count


def _get_new_state(init: Sequence[Any], before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Return the state after an iteration; a `tf.Variable` that replaces another value is read."""
    return [_read_new_variables(*values) for values in zip(init, before, after, strict=True)]


def _read_new_variables(first: Any, old: Any, new: Any) -> Any:
    starts, olds, leaves = (nest.flatten(value) for value in (first, old, new))
    # Other structures are an error, which the loop reports.
    if len(starts) != len(leaves) or not any(isinstance(leaf, Variable) for leaf in leaves):
        return new
    # The old value is undefined if no iteration uses it.
    olds = olds if len(olds) == len(leaves) else [undefined] * len(leaves)
    parts = [
        leaf.value()
        if isinstance(leaf, Variable) and leaf is not before and isinstance(start, _REPLACEABLE)
        else leaf
        for start, before, leaf in zip(starts, olds, leaves, strict=True)
    ]
    return nest.pack_sequence_as(new, parts)


class _VariableReplacement(Exception):
    """Signal that an iteration replaces a `tf.Variable` in the state by a tensor."""


def _run_with_variable_values(
    run: Callable[[list[Any], _StatementInvariants], list[Any]],
    init: tuple[Any, ...],
    template: StructureTemplate,
    location: str,
    allows_shape_changes: bool,
) -> list[Any]:
    """Run a loop; a variable that an iteration replaces by a tensor starts as its value."""
    start = list(init)
    while True:
        try:
            invariants = _StatementInvariants(template, location, start, allows_shape_changes)
            return run(list(start), invariants)
        except _VariableReplacement as replacement:
            (position,) = replacement.args
            start[position] = nest.map_structure(
                lambda v: v.value() if isinstance(v, Variable) else v, start[position]
            )


def _list_needed(template: StructureTemplate, init: tuple[Any, ...]) -> list[bool]:
    """List the carried parts; an attribute that does not exist yet is only a result."""
    return [
        needed and not (position >= template.variables and init[position] is undefined)
        for position, needed in enumerate(template.needed)
    ]


class _StatementInvariants(LoopInvariants):
    """Loop invariants with errors that name the variable and the line of the loop."""

    def __init__(
        self,
        template: StructureTemplate,
        location: str,
        start: list[Any],
        allows_shape_changes: bool,
    ) -> None:
        self.template = template
        self.location = location
        self.start = start
        self.allows_shape_changes = allows_shape_changes

    def _format_label(self, position: int) -> str:
        return format_label(self.template.labels[position])

    def make_undefined_error(self, position: int) -> Exception:
        return ValueError(
            f"{self._format_label(position)} must be defined before the loop over tensors at {self.location}, because "
            "an iteration may use its previous value."
        )

    def make_change_error(self, position: int, aspect: str, before: str, after: str) -> Exception:
        has_variable = any(isinstance(v, Variable) for v in nest.flatten(self.start[position]))
        if has_variable and aspect == "value":
            return _VariableReplacement(position)
        name = self._format_label(position)
        if before == "None":
            return ValueError(
                f"{name} is None before the loop over tensors at {self.location} and {after} after one iteration. "
                f"Give it a value of that shape and dtype before the loop."
            )
        if before == repr(TENSORLESS) or (before.startswith("[") and aspect == "structure"):
            return ListGrowthError(
                f"{name} is a list that tensors are added to in the loop over tensors at {self.location}: {before} "
                f"before the loop, {after} after one iteration. The number of iterations is not known, or a condition "
                "decides which elements are added. Collect results in a tf.TensorArray, use tf.map_fn, or iterate over a "
                "Python range, which is unrolled."
            )
        return VaryingValueError(
            f"{name} must keep its {aspect} in the loop over tensors at {self.location}: got {before} before the "
            f"loop and {after} after one iteration." + _ADVICE.get(aspect, "")
        )

    def make_test_write_error(self, variable: Any) -> Exception:
        return ValueError(
            f"The condition of the loop at {self.location} assigns variable {variable.name}. Assign it in the "
            "body of the loop."
        )


_ADVICE = {
    "dtype": " Start with a value of the final dtype, or use tf.cast in the loop.",
    "shape": " Shapes are static under XLA: allocate the final shape before the loop, or use a tf.TensorArray.",
    "value": " Only numbers and tensors can change in such a loop.",
}
