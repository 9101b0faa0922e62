"""Execution of `while` and `for` statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.autograph.runtime.branches import if_stmt
from meshflow.core.autograph.runtime.iterables import staged_elements
from meshflow.core.autograph.runtime.structure_template import (
    StructureTemplate,
    label,
    place_of,
    plain,
)
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime.context import context
from meshflow.core.staging import loops
from meshflow.core.staging.logic import is_symbolic, scalar_bool
from meshflow.core.staging.loop_state import Invariants
from meshflow.core.staging.structure import undefined
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable

# A `while` on a tensor with a value that is known during tracing runs in Python, so that it may
# change shapes. Its length is limited, because a counter made by `tf.constant(0)` must not unroll
# thousands of iterations into the program.
UNROLLED = 16

Get = Callable[[], tuple[Any, ...]]
Set = Callable[..., None]


def while_stmt(
    test: Callable[[], Any],
    body: Callable[[], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    maximum_iterations: int | Tensor | None = None,
) -> None:
    """Run a `while` statement, if staged at most `maximum_iterations` times (`set_loop_options`)."""
    iterations = 0
    while True:
        condition = test()
        is_constant = isinstance(condition, Tensor) and context.trace is not None
        if is_symbolic(condition) or (is_constant and iterations >= UNROLLED):
            _staged_while(test, body, get, set_, template, maximum_iterations, iterations)
            return
        if not condition:
            return
        body()
        iterations += 1


def _staged_while(
    test: Callable[[], Any],
    body: Callable[[], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    limit: int | Tensor | None,
    iterations: int,
) -> None:
    init = get()

    def run_test(values: list[Any]) -> Any:
        set_(*values)
        return test()

    def run_body(values: list[Any]) -> list[Any]:
        set_(*values)
        body()
        return list(get())

    final = list(init)
    max_count = None
    if limit is not None:
        max_count = max(static_value(limit, "maximum_iterations") - iterations, 0)
    location = place_of(body)  # type: ignore[arg-type]

    def run(start: list[Any], invariants: _LoopInvariants) -> list[Any]:
        needed = _needed(template, init)
        return loops.while_loop(run_test, run_body, start, needed, invariants, max_count)

    try:
        final = _with_values_of_variables(run, init, template, location)
    finally:
        set_(*final)


def for_stmt(
    iterated: Any,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    maximum_iterations: int | Tensor | None = None,
) -> None:
    """Run a `for` statement; `extra_test` computes whether to continue if the body may break or return."""
    elements = staged_elements(iterated)
    if isinstance(elements, loops.Stream):
        count = _staged_for(elements, extra_test, body, get, set_, template, maximum_iterations)
        if elements.rest is not None:
            requested = Tensor(np.array(True)) if extra_test is None else scalar_bool(extra_test())
            element, is_present = elements.rest(requested, count)
            _conditional(is_present, body, element, get, set_, template)
        return
    if elements is not None:
        _staged_for(elements, extra_test, body, get, set_, template, maximum_iterations)
        for get_element in elements.rest:
            element = get_element(_loop_result(get()))
            if extra_test is None:
                body(element)
            else:
                _guarded(iter([element]), extra_test, body, get, set_, template)
        return
    iterator = iter(iterated)
    for item in iterator:
        body(item)
        if extra_test is not None:
            condition = extra_test()
            if is_symbolic(condition):
                _guarded(iterator, extra_test, body, get, set_, template)
                return
            if not condition:
                return


def _loop_result(state: tuple[Any, ...]) -> Tensor | None:
    """Return a tensor that a staged loop computed: a local variable, or a variable that it wrote."""
    scope = context.trace
    written = [scope.read(v) for v in scope.writes.values()] if scope is not None else []
    return next((v for v in (*state, *reversed(written)) if is_symbolic(v)), None)


def _guarded(
    iterator: Iterator[Any],
    extra_test: Callable[[], Any],
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
) -> None:
    """Run the rest of a Python loop that a tensor may end; each iteration becomes conditional."""
    for item in iterator:
        _conditional(extra_test(), body, item, get, set_, template)


def _conditional(
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


def _staged_for(
    elements: loops.Elements | loops.Stream,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    limit: int | Tensor | None,
) -> Any:
    init = get()

    def step(element: Any, values: list[Any]) -> list[Any]:
        set_(*values)
        body(element)
        return list(get())

    def continues(values: list[Any]) -> Any:
        set_(*values)
        return extra_test()  # type: ignore[misc]

    final = list(init)
    limit = None if limit is None else static_value(limit, "maximum_iterations")
    location, needed = place_of(body), _needed(template, init)  # type: ignore[arg-type]
    test = continues if extra_test is not None else None
    count: Any = None

    def run(start: list[Any], invariants: _LoopInvariants) -> list[Any]:
        nonlocal count
        if isinstance(elements, loops.Stream):
            result, count = loops.stream_loop(
                elements, step, start, needed, invariants, test, limit
            )
            return result
        return loops.for_loop(elements, step, start, needed, invariants, test, limit)

    try:
        final = _with_values_of_variables(run, init, template, location)
    finally:
        set_(*final)
    return count


class _VariableReplaced(Exception):
    """Signal that an iteration replaces a `tf.Variable` in the state by a tensor."""


def _with_values_of_variables(
    run: Callable[[list[Any], _LoopInvariants], list[Any]],
    init: tuple[Any, ...],
    template: StructureTemplate,
    location: str,
) -> list[Any]:
    """Run a loop; a variable that an iteration replaces by a tensor starts as its value."""
    start = list(init)
    while True:
        try:
            return run(list(start), _LoopInvariants(template, location, start))
        except _VariableReplaced as replacement:
            (position,) = replacement.args
            start[position] = convert_to_tensor(start[position])


def _needed(template: StructureTemplate, init: tuple[Any, ...]) -> list[bool]:
    """List the carried parts; an attribute that does not exist yet is only a result."""
    return [
        needed and not (position >= template.variables and init[position] is undefined)
        for position, needed in enumerate(template.needed)
    ]


class _LoopInvariants(Invariants):
    """Loop invariants with errors that name the variable and the line of the loop."""

    def __init__(self, template: StructureTemplate, location: str, start: list[Any]) -> None:
        self.template = template
        self.location = location
        self.start = start

    def _label(self, position: int) -> str:
        return label(self.template.labels[position])

    def undefined_before(self, position: int) -> Exception:
        return ValueError(
            f"{self._label(position)} must be defined before the loop over tensors at {self.location}, because "
            "an iteration may use its previous value."
        )

    def changed(self, position: int, aspect: str, before: str, after: str) -> Exception:
        if isinstance(self.start[position], Variable) and aspect == "value":
            return _VariableReplaced(position)
        name = self._label(position)
        if before == "None":
            return ValueError(
                f"{name} is None before the loop over tensors at {self.location} and {after} after one iteration. "
                f"Give it a value of that shape and dtype before the loop."
            )
        if before == repr(plain) or (before.startswith("[") and aspect == "structure"):
            return ValueError(
                f"{name} is a list that tensors are added to in the loop over tensors at {self.location}: {before} "
                f"before the loop, {after} after one iteration. Collect results in a tf.TensorArray, use tf.map_fn, or "
                "iterate over a Python range, which is unrolled."
            )
        return TypeError(
            f"{name} must keep its {aspect} in the loop over tensors at {self.location}: got {before} before the "
            f"loop and {after} after one iteration." + _ADVICE.get(aspect, "")
        )

    def write_in_test(self, variable: Any) -> Exception:
        return ValueError(
            f"The condition of the loop at {self.location} assigns variable {variable.name}. Assign it in the "
            "body of the loop."
        )


_ADVICE = {
    "dtype": " Start with a value of the final dtype, or use tf.cast in the loop.",
    "shape": " Shapes are static under XLA: allocate the final shape before the loop, or use a tf.TensorArray.",
    "value": " Only numbers and tensors can change in such a loop.",
}
