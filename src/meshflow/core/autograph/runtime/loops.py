"""`while` and `for` statements."""

from __future__ import annotations

from collections.abc import Callable
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

# A `while` on a tensor whose value is known while tracing runs in Python, so that it may change
# shapes, but not for longer than this: a counter made by `tf.constant(0)` must not unroll
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
    maximum_iterations: Any = None,
) -> None:
    """A `while` statement.

    Args:
      test: computes the condition.
      body: one iteration.
      get: reads the state.
      set_: replaces the state.
      template: what the state consists of.
      maximum_iterations: from `set_loop_options`; used by staged loops.
    """
    rounds = 0
    while True:
        go_on = test()
        known = isinstance(go_on, Tensor) and context.trace is not None
        if is_symbolic(go_on) or (known and rounds >= UNROLLED):
            _staged_while(test, body, get, set_, template, maximum_iterations, rounds)
            return
        if not go_on:
            return
        body()
        rounds += 1


def _staged_while(
    test: Callable[[], Any],
    body: Callable[[], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    limit: Any,
    rounds: int,
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
    if limit is not None:
        limit = max(static_value(limit, "maximum_iterations") - rounds, 0)
    where = place_of(body)  # type: ignore[arg-type]

    def run(start: list[Any], invariants: _LoopInvariants) -> list[Any]:
        needed = _needed(template, init)
        return loops.while_loop(run_test, run_body, start, needed, invariants, limit)

    try:
        final = _with_values_of_variables(run, init, template, where)
    finally:
        set_(*final)


def for_stmt(
    iterated: Any,
    extra_test: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
    maximum_iterations: Any = None,
) -> None:
    """A `for` statement.

    Args:
      iterated: what to iterate over.
      extra_test: whether to run another iteration, when the body may break or return; or None.
      body: one iteration, given the element.
      get: reads the state.
      set_: replaces the state.
      template: what the state consists of.
      maximum_iterations: from `set_loop_options`; used by staged loops.
    """
    elements = staged_elements(iterated)
    if isinstance(elements, loops.Stream):
        given = _staged_for(elements, extra_test, body, get, set_, template, maximum_iterations)
        if elements.rest is not None:
            wanted = Tensor(np.array(True)) if extra_test is None else scalar_bool(extra_test())
            element, there = elements.rest(wanted, given)
            _conditional(there, body, element, get, set_, template)
        return
    if elements is not None:
        _staged_for(elements, extra_test, body, get, set_, template, maximum_iterations)
        for further in elements.rest:
            element = further(_loop_result(get()))
            if extra_test is None:
                body(element)
            else:
                _guarded(iter([element]), extra_test, body, get, set_, template)
        return
    iterator = iter(iterated)
    for item in iterator:
        body(item)
        if extra_test is not None:
            go_on = extra_test()
            if is_symbolic(go_on):
                _guarded(iterator, extra_test, body, get, set_, template)
                return
            if not go_on:
                return


def _loop_result(state: tuple[Any, ...]) -> Tensor | None:
    """Something that a staged loop computed: a local variable, or a variable it wrote."""
    scope = context.trace
    written = [scope.read(v) for v in scope.writes.values()] if scope is not None else []
    return next((v for v in (*state, *reversed(written)) if is_symbolic(v)), None)


def _guarded(
    iterator: Any,
    extra_test: Callable[[], Any],
    body: Callable[[Any], None],
    get: Get,
    set_: Set,
    template: StructureTemplate,
) -> None:
    """The rest of a Python loop that a tensor may end: each iteration becomes conditional."""
    for item in iterator:
        _conditional(extra_test(), body, item, get, set_, template)


def _conditional(
    test: Any,
    body: Callable[[Any], None],
    item: Any,
    get: Get,
    set_: Set,
    template: StructureTemplate,
) -> None:
    """One iteration that a tensor decides upon."""
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
    limit: Any,
) -> Any:
    init = get()

    def step(element: Any, values: list[Any]) -> list[Any]:
        set_(*values)
        body(element)
        return list(get())

    def go_on(values: list[Any]) -> Any:
        set_(*values)
        return extra_test()  # type: ignore[misc]

    final = list(init)
    limit = None if limit is None else static_value(limit, "maximum_iterations")
    where, needed = place_of(body), _needed(template, init)  # type: ignore[arg-type]
    test = go_on if extra_test is not None else None
    given: Any = None

    def run(start: list[Any], invariants: _LoopInvariants) -> list[Any]:
        nonlocal given
        if isinstance(elements, loops.Stream):
            found, given = loops.stream_loop(elements, step, start, needed, invariants, test, limit)
            return found
        return loops.for_loop(elements, step, start, needed, invariants, test, limit)

    try:
        final = _with_values_of_variables(run, init, template, where)
    finally:
        set_(*final)
    return given


class _VariableReplaced(Exception):
    """An iteration replaces a variable, of which the loop knew the place in the state, by a tensor."""


def _with_values_of_variables(
    run: Callable[[list[Any], _LoopInvariants], list[Any]],
    init: tuple[Any, ...],
    template: StructureTemplate,
    where: str,
) -> list[Any]:
    """The result of a loop: where an iteration replaces a variable by a tensor, it begins with its value."""
    start = list(init)
    while True:
        try:
            return run(list(start), _LoopInvariants(template, where, start))
        except _VariableReplaced as replaced:
            (position,) = replaced.args
            start[position] = convert_to_tensor(start[position])


def _needed(template: StructureTemplate, init: tuple[Any, ...]) -> list[bool]:
    """Which parts are carried; an attribute that does not exist yet is a result only."""
    return [
        needed and not (position >= template.variables and init[position] is undefined)
        for position, needed in enumerate(template.needed)
    ]


class _LoopInvariants(Invariants):
    """Errors that name the variable and the line of the loop."""

    def __init__(self, template: StructureTemplate, where: str, start: list[Any]) -> None:
        self.template = template
        self.where = where
        self.start = start

    def _label(self, position: int) -> str:
        return label(self.template.labels[position])

    def undefined_before(self, position: int) -> Exception:
        return ValueError(
            f"{self._label(position)} must be defined before the loop over tensors at {self.where}, because "
            "an iteration may use the value that it had before."
        )

    def changed(self, position: int, what: str, before: str, after: str) -> Exception:
        if isinstance(self.start[position], Variable) and what == "value":
            return _VariableReplaced(position)
        name = self._label(position)
        if before == "None":
            return ValueError(
                f"{name} is None before the loop over tensors at {self.where} and {after} after one iteration. "
                f"Give it a value of that shape and dtype before the loop."
            )
        if before == repr(plain) or (before.startswith("[") and what == "structure"):
            return ValueError(
                f"{name} is a list that tensors are added to in the loop over tensors at {self.where}: {before} "
                f"before the loop, {after} after one iteration. Collect results in a tf.TensorArray, use tf.map_fn, or "
                "iterate over a Python range, which is unrolled."
            )
        return TypeError(
            f"{name} must keep its {what} in the loop over tensors at {self.where}: got {before} before the "
            f"loop and {after} after one iteration." + _ADVICE.get(what, "")
        )

    def write_in_test(self, variable: Any) -> Exception:
        return ValueError(
            f"The condition of the loop at {self.where} assigns variable {variable.name}. Assign it in the "
            "loop's body."
        )


_ADVICE = {
    "dtype": " Start with a value of the final dtype, or use tf.cast in the loop.",
    "shape": " Shapes are static under XLA: allocate the final shape before the loop, or use a tf.TensorArray.",
    "value": " Only numbers and tensors can change in such a loop.",
}
