"""Loops: `lax.scan` if the number of iterations is known, otherwise a while loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.staging import dynamic_loop, scalar_logic
from meshflow.core.staging.growing_accumulators import ArrayGrowth, retry_grown_arrays, scan_scope
from meshflow.core.staging.loop_state import LoopInvariants, LoopState, ShapeVariation, Values
from meshflow.core.staging.merged_operands import MergedOperands, run_as_op
from meshflow.core.staging.structure import NestedTemplate, to_tensor
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import as_size, make_range
from meshflow.core.values.tensor import Tensor

T = TypeVar("T")


@dataclass
class LoopElements:
    """The elements of a `for` loop.

    An iterable takes part in staged loops if its method `__autograph_for__()` returns this class.
    If the method returns None, Python iterates over the object while the function is traced.

    Attributes:
      count: Number of elements: an int or a symbolic size, or an int32 scalar if it is only known at run time.
      get_element: Returns element `i` for an int32 scalar `i`.
      stacked: The elements as a nested value with a leading dimension; None to call `get_element`.
      get_index: Returns the tensor in an element that counts 0, 1, 2, ...; None if there is none.
      rest: Functions that return further elements, which have other shapes; each takes a result of
        the loop, for which it has to wait.
    """

    count: int | Tensor
    get_element: Callable[[Tensor], Any]
    stacked: Any = None
    get_index: Callable[[Any], Any] | None = None
    rest: Sequence[Callable[[Tensor | None], Any]] = ()


@dataclass
class LoopStream:
    """The elements of a `for` loop that the running program requests one by one.

    Attributes:
      take: Takes a scalar bool, whether another element is requested, and an int32 scalar, the
        number of elements so far; returns the next element, or zeros, and whether there is one.
      rest: The same for a last element of another shape, or None.
    """

    take: Callable[[Tensor, Tensor], tuple[Any, Tensor]]
    rest: Callable[[Tensor, Tensor], tuple[Any, Tensor]] | None = None


def while_loop(
    test: Callable[[Values], Any],
    body: Callable[[Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
    limit: int | None = None,
) -> Values:
    """Run `body` while `test` returns True.

    Args:
      test: Maps the state to a scalar bool.
      body: Maps the state to the next state.
      init: The state before the loop.
      needed: For each value, whether `body` or `test` uses its old content.
      invariants: Creates the errors.
      limit: Maximum number of iterations, or None.

    Returns:
      The state after the loop.
    """
    build = lambda start: _while_loop(test, body, start, needed, invariants, limit)
    return _retry(build, init)


def _retry(build: Callable[[Values], T], init: Values) -> T:
    """Build a loop, given its state before the loop; retry if sizes change or become known."""
    start = list(init)

    def attempt() -> T:
        try:
            return build(list(start))
        except ShapeVariation as variation:
            variation.vary_sizes(start)
            raise ArrayGrowth from None

    return retry_grown_arrays(attempt)


def _while_loop(
    test: Callable[[Values], Any],
    body: Callable[[Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
    limit: int | None,
) -> Values:
    loop = LoopState(init, needed, invariants)
    inputs = loop.list_inputs()
    traced_test = trace(
        lambda *t: scalar_logic.to_scalar_bool(test(loop.values(t))), tuple(inputs), name="test"
    )
    traced_body = trace(
        lambda *t: loop.collect(body(loop.values(t))), tuple(inputs), name="body", is_loop_body=True
    )
    return _run_while(loop, traced_test, traced_body, len(inputs), limit)


def _run_while(
    loop: LoopState, test: TracedFunction, body: TracedFunction, count: int, limit: int | None
) -> Values:
    if test.writes:
        raise loop.invariants.make_test_write_error(test.writes[0])
    operands = MergedOperands([test, body])
    state = loop.list_initial_tensors(may_not_run=True)
    size = len(state)

    def split(carry: list[Any], consts: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the state tensors, and the captures with the present values of written variables."""
        values = list(consts)
        for position, value in zip(operands.write_positions, carry[size:], strict=True):
            values[position] = value
        return carry[:size], values

    def continues(carry: list[Any], consts: list[Any]) -> Any:
        state, values = split(carry, consts)
        return test.run_on_arrays(state[:count], operands.select_captures(test, values))[0]

    def step(carry: list[Any], consts: list[Any]) -> list[Any]:
        state, values = split(carry, consts)
        results = body.run_on_arrays(state[:count], operands.select_captures(body, values))
        return results[:size] + operands.carry_written_values(body, results[size:], values)

    def call(state: list[Any], captures: list[Any]) -> list[Any]:
        carry = [jnp.asarray(s) for s in state] + [captures[p] for p in operands.write_positions]
        return dynamic_loop.while_loop(continues, step, carry, captures, limit)

    outputs = run_as_op("while_loop", call, state, operands.read_captures())
    operands.record_infeed_token(outputs)
    operands.assign_variables(outputs[size:])
    return loop.build_final_values(outputs[:size])


def for_loop(
    elements: LoopElements,
    body: Callable[[Any, Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
    continues: Callable[[Values], Any] | None = None,
    limit: int | None = None,
) -> Values:
    """Run `body` on each element.

    Args:
      elements: The elements.
      body: Maps (element, state) to the next state.
      init: The state before the loop.
      needed: For each value, whether `body` or `continues` uses its old content.
      invariants: Creates the errors.
      continues: Maps the state to a scalar bool, whether another iteration runs; None for always.
      limit: Maximum number of iterations, or None.

    Returns:
      The state after the loop.
    """
    count = elements.count
    if not isinstance(count, Tensor):
        count = count if limit is None else min(count, limit)
        if isinstance(count, int) and count <= 0:
            return _stage_no_iterations(elements, body, init, needed, invariants)
        if continues is None:

            def run_body(element: Any, values: Values) -> tuple[Values, tuple[()]]:
                return body(element, values), ()

            return scan(elements, run_body, init, needed, invariants, count=count)[0]

    def test(values: Values) -> Tensor:
        is_inside = scalar_logic.less(values[0], count)
        if continues is None:
            return is_inside
        return scalar_logic.logical_and(
            is_inside, scalar_logic.to_scalar_bool(continues(values[1:]))
        )

    def step(values: Values) -> Values:
        index = values[0]
        return [scalar_logic.increment(index), *body(elements.get_element(index), values[1:])]

    shifted = _ShiftedInvariants(invariants)
    max_count = count if isinstance(count, int) else limit
    if not isinstance(count, Tensor):
        count = convert_to_tensor(count)
    start = Tensor(np.int32(0).reshape(()))
    return while_loop(test, step, [start, *init], [True, *needed], shifted, max_count)[1:]


def _stage_no_iterations(
    elements: LoopElements,
    body: Callable[[Any, Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
) -> Values:
    """Stage a loop that does not run, because the tensors that its body uses have gradients of zero."""
    never = lambda values: scalar_logic.less(values[0], Tensor(np.int32(0).reshape(())))

    def step(values: Values) -> Values:
        if elements.stacked is None:
            element = elements.get_element(values[0])
        else:
            make_blank = lambda rows: Tensor(np.zeros(tuple(rows.shape)[1:], rows.dtype.dtype))
            element = nest.map_structure(make_blank, elements.stacked)
        return [scalar_logic.increment(values[0]), *body(element, values[1:])]

    start = [Tensor(np.int32(0).reshape(())), *init]
    # The body may fail in any way, as its elements do not exist. Then, as in Python, it does not run.
    with contextlib.suppress(Exception):
        return while_loop(never, step, start, [True, *needed], _ShiftedInvariants(invariants))[1:]
    return init


def stream_loop(
    stream: LoopStream,
    body: Callable[[Any, Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
    continues: Callable[[Values], Any] | None = None,
    limit: int | None = None,
) -> tuple[Values, Tensor]:
    """Run `body` on each element of a stream; request an element only if the loop continues.

    The arguments are those of `for_loop`. Returns the state, and the number of elements.
    """

    def step(values: Values) -> Values:
        _, count, element, *state = values
        state = body(element, state)
        count = scalar_logic.increment(count)
        more = Tensor(np.array(True)) if limit is None else scalar_logic.less(count, limit)
        if continues is not None:
            more = scalar_logic.logical_and(more, scalar_logic.to_scalar_bool(continues(state)))
        element, is_present = stream.take(more, count)
        return [is_present, count, element, *state]

    count = Tensor(np.array(0, np.int32))
    element, is_present = stream.take(Tensor(np.array(limit != 0)), count)
    _, count, _, *state = while_loop(
        lambda values: values[0],
        step,
        [is_present, count, element, *init],
        [True, True, True, *needed],
        _ShiftedInvariants(invariants, 3),
    )
    return state, count


class _ShiftedInvariants(LoopInvariants):
    """Invariants of a state that internal values precede."""

    def __init__(self, inner: LoopInvariants, num_internal: int = 1) -> None:
        self.inner = inner
        self.num_internal = num_internal
        self.allows_shape_changes = inner.allows_shape_changes

    def make_undefined_error(self, position: int) -> Exception:
        return self.inner.make_undefined_error(position - self.num_internal)

    def make_change_error(self, position: int, aspect: str, before: str, after: str) -> Exception:
        return self.inner.make_change_error(position - self.num_internal, aspect, before, after)

    def make_test_write_error(self, variable: Any) -> Exception:
        return self.inner.make_test_write_error(variable)


def scan(
    elements: LoopElements,
    body: Callable[[Any, Values], tuple[Values, Any]],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
    reverse: bool = False,
    count: int | None = None,
) -> tuple[Values, Any]:
    """Run `body` on a known number of elements and stack its outputs.

    Args:
      elements: The elements; `elements.count` must be an int, and not 0.
      body: Maps (element, state) to (next state, output); an output is a nested value of tensors.
      init: The state before the loop.
      needed: For each value, whether `body` uses its old content.
      invariants: Creates the errors.
      reverse: Whether to start with the last element.
      count: Number of elements to use; by default all.

    Returns:
      The state after the loop, and the outputs with one more leading dimension.
    """
    total: Any = elements.count if count is None else count
    steps = as_size(total)
    build = lambda start: _scan(elements, body, start, needed, invariants, reverse, steps)
    return _retry(build, init)


def _scan(
    elements: LoopElements,
    body: Callable[[Any, Values], tuple[Values, Any]],
    init: Values,
    needed: Sequence[bool],
    invariants: LoopInvariants,
    reverse: bool,
    count: int,
) -> tuple[Values, Any]:
    loop = LoopState(init, needed, invariants)
    inputs = loop.list_inputs()
    by_index = elements.stacked is None
    stacked = NestedTemplate(make_range(count).astype(np.int32) if by_index else elements.stacked)
    sources = [to_tensor(leaf) for leaf in stacked.leaves]
    heads = [TensorSpec(tuple(s.shape)[1:], s.dtype) for s in sources]
    outputs: list[NestedTemplate] = []

    def traced_step(*tensors: Tensor) -> list[Tensor]:
        element = (
            elements.get_element(tensors[0]) if by_index else stacked.build(tensors[: len(heads)])
        )
        with scan_scope(elements.get_index(element) if elements.get_index else None, count):
            values, output = body(element, loop.values(tensors[len(heads) :]))
        outputs.append(NestedTemplate(output))
        return loop.collect(values) + [to_tensor(leaf) for leaf in outputs[-1].leaves]

    traced = trace(traced_step, (*heads, *inputs), name="body", is_loop_body=True)
    operands = MergedOperands([traced])
    state = loop.list_initial_tensors(may_not_run=False)
    size = len(state)

    def call(state: list[Any], captures: list[Any], sources: list[Any]) -> list[Any]:
        def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            values = list(captures)
            for position, value in zip(operands.write_positions, carry[size:], strict=True):
                values[position] = value
            arguments = [*xs, *carry[: len(inputs)]]
            results = traced.run_on_arrays(arguments, operands.select_captures(traced, values))
            after = results[:size] + operands.carry_written_values(
                traced, results[traced.num_results :], values
            )
            return [lax.convert_element_type(o, o.dtype) for o in after], results[
                size : traced.num_results
            ]

        carry = [*state, *(captures[p] for p in operands.write_positions)]
        carry = [lax.convert_element_type(c, c.dtype) for c in carry]
        visited = [s if s.shape[0] == count else jnp.asarray(s)[:count] for s in sources]
        carry, collected = lax.scan(step, carry, visited, reverse=reverse)
        return [*carry, *collected]

    results = run_as_op("for_loop", call, state, operands.read_captures(), sources)
    operands.record_infeed_token(results)
    split = size + len(operands.writes)
    operands.assign_variables(results[size:split])
    return loop.build_final_values(results[:size]), outputs[-1].build(results[split:])
