"""A function runs repeatedly: `lax.scan` when the number of times is known, else a while loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.staging import dynamic_loop, logic
from meshflow.core.staging.growing_accumulators import visiting, with_known_arrays
from meshflow.core.staging.loop_state import Invariants, LoopState, Values
from meshflow.core.staging.operands import Operands, run
from meshflow.core.staging.structure import Template, to_tensor
from meshflow.core.tracing.trace import Traced, trace
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.core.values.tensor import Tensor


@dataclass
class Elements:
    """What a `for` loop runs over.

    An iterable takes part in staged loops by a method `__autograph_for__()` that returns one, or
    None to be iterated by Python while the function is traced.

    Attributes:
      count: the number of elements: an int, or an int32 scalar when only known at run time.
      at: gives element `i` for an int32 scalar `i`.
      stacked: the elements as a nested value with one more leading dimension; None to call `at`.
      index_of: from an element to the tensor in it that counts 0, 1, 2, ...; None without such.
      rest: functions that give further elements, of other shapes, after those; each is given a
        result of the loop, which it has to wait for.
    """

    count: int | Tensor
    at: Callable[[Tensor], Any]
    stacked: Any = None
    index_of: Callable[[Any], Any] | None = None
    rest: Sequence[Callable[[Tensor | None], Any]] = ()


@dataclass
class Stream:
    """What a `for` loop runs over when the running program asks for each element whether there is one.

    Attributes:
      take: from whether another element is wanted, a scalar bool, and how many there were, an int32
        scalar, to the next element and whether there is one; without one it is zeros.
      rest: the same for an element of another shape that comes after those, or None.
    """

    take: Callable[[Tensor, Tensor], tuple[Any, Tensor]]
    rest: Callable[[Tensor, Tensor], tuple[Any, Tensor]] | None = None


def while_loop(
    test: Callable[[Values], Any],
    body: Callable[[Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    limit: int | None = None,
) -> Values:
    """Runs `body` while `test` gives True.

    Args:
      test: from the state to a scalar bool.
      body: from the state to the next state.
      init: the state before the loop.
      needed: for each value, whether `body` or `test` uses its old content.
      invariants: how to phrase errors.
      limit: the most iterations to run, or None.

    Returns:
      The state after the loop.
    """
    return with_known_arrays(lambda: _while_loop(test, body, list(init), needed, invariants, limit))


def _while_loop(
    test: Callable[[Values], Any],
    body: Callable[[Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    limit: int | None,
) -> Values:
    loop = LoopState(init, needed, invariants)
    inputs = loop.inputs()
    traced_test = trace(
        lambda *t: logic.scalar_bool(test(loop.values(t))), tuple(inputs), name="test"
    )
    traced_body = trace(
        lambda *t: loop.collect(body(loop.values(t))), tuple(inputs), name="body", is_loop_body=True
    )
    return _run_while(loop, traced_test, traced_body, len(inputs), limit)


def _run_while(
    loop: LoopState, test: Traced, body: Traced, count: int, limit: int | None
) -> Values:
    if test.writes:
        raise loop.invariants.write_in_test(test.writes[0])
    operands = Operands([test, body])
    state = loop.starting(may_not_run=True)
    size = len(state)

    def split(carry: list[Any], consts: list[Any]) -> tuple[list[Any], list[Any]]:
        """State tensors, and the captures with the present values of written variables."""
        values = list(consts)
        for at, value in zip(operands.written_at, carry[size:], strict=True):
            values[at] = value
        return carry[:size], values

    def go_on(carry: list[Any], consts: list[Any]) -> Any:
        state, values = split(carry, consts)
        return test.arrays(state[:count], operands.captures_of(test, values))[0]

    def step(carry: list[Any], consts: list[Any]) -> list[Any]:
        state, values = split(carry, consts)
        results = body.arrays(state[:count], operands.captures_of(body, values))
        return results[:size] + operands.written_values(body, results[size:], values)

    def call(state: list[Any], captures: list[Any]) -> list[Any]:
        carry = [jnp.asarray(s) for s in state] + [captures[at] for at in operands.written_at]
        return dynamic_loop.while_loop(go_on, step, carry, captures, limit)

    outputs = run("while_loop", call, state, operands.tensors())
    operands.finished(outputs)
    operands.assign(outputs[size:])
    return loop.final(outputs[:size])


def for_loop(
    elements: Elements,
    body: Callable[[Any, Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    go_on: Callable[[Values], Any] | None = None,
    limit: int | None = None,
) -> Values:
    """Runs `body` on each element in turn.

    Args:
      elements: what to run over.
      body: from (element, state) to the next state.
      init: the state before the loop.
      needed: for each value, whether `body` or `go_on` uses its old content.
      invariants: how to phrase errors.
      go_on: from the state to a scalar bool: whether to run another iteration; None for always.
      limit: the most iterations to run, or None.

    Returns:
      The state after the loop.
    """
    count = elements.count
    if isinstance(count, int):
        count = count if limit is None else min(count, limit)
        if count <= 0:
            return init
        if go_on is None:

            def without_output(element: Any, values: Values) -> tuple[Values, Any]:
                return body(element, values), ()

            return scan(elements, without_output, init, needed, invariants, count=count)[0]

    def test(values: Values) -> Any:
        inside = logic.less(values[0], count)
        if go_on is None:
            return inside
        return logic.both(inside, logic.scalar_bool(go_on(values[1:])))

    def step(values: Values) -> Values:
        index = values[0]
        return [logic.next_integer(index), *body(elements.at(index), values[1:])]

    shifted = _Shifted(invariants)
    known = count if isinstance(count, int) else limit
    start = Tensor(np.int32(0).reshape(()))
    return while_loop(test, step, [start, *init], [True, *needed], shifted, known)[1:]


def stream_loop(
    stream: Stream,
    body: Callable[[Any, Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    go_on: Callable[[Values], Any] | None = None,
    limit: int | None = None,
) -> tuple[Values, Tensor]:
    """Runs `body` on each element of a stream; one more is asked for only where the loop goes on.

    Args:
      stream: what to run over.
      body: from (element, state) to the next state.
      init: the state before the loop.
      needed: for each value, whether `body` or `go_on` uses its old content.
      invariants: how to phrase errors.
      go_on: from the state to a scalar bool: whether to run another iteration; None for always.
      limit: the most iterations to run, or None.

    Returns:
      The state after the loop, and the number of elements that it ran over.
    """

    def step(values: Values) -> Values:
        _, given, element, *state = values
        state = body(element, state)
        given = logic.next_integer(given)
        more = Tensor(np.array(True)) if limit is None else logic.less(given, limit)
        if go_on is not None:
            more = logic.both(more, logic.scalar_bool(go_on(state)))
        element, there = stream.take(more, given)
        return [there, given, element, *state]

    given = Tensor(np.array(0, np.int32))
    element, there = stream.take(Tensor(np.array(limit != 0)), given)
    _, given, _, *state = while_loop(
        lambda values: values[0],
        step,
        [there, given, element, *init],
        [True, True, True, *needed],
        _Shifted(invariants, 3),
    )
    return state, given


class _Shifted(Invariants):
    """Error texts for a state with values of the loop's own in front."""

    def __init__(self, inner: Invariants, by: int = 1) -> None:
        self.undefined_before = lambda position: inner.undefined_before(position - by)  # type: ignore[method-assign]
        self.changed = lambda position, *texts: inner.changed(position - by, *texts)  # type: ignore[method-assign]
        self.write_in_test = inner.write_in_test  # type: ignore[method-assign]


def scan(
    elements: Elements,
    body: Callable[[Any, Values], tuple[Values, Any]],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    reverse: bool = False,
    count: int | None = None,
) -> tuple[Values, Any]:
    """Runs `body` on each of a known number of elements and stacks what it returns.

    Args:
      elements: what to run over; `elements.count` must be an int, and not 0.
      body: from (element, state) to (next state, output): the output is any nested value of tensors.
      init: the state before the loop.
      needed: for each value, whether `body` uses its old content.
      invariants: how to phrase errors.
      reverse: whether to go from the last element to the first.
      count: how many elements to visit; default all.

    Returns:
      The state after the loop, and the outputs with one more leading dimension.
    """
    total: Any = elements.count if count is None else count
    steps = total if any_symbolic([total]) else int(total)
    return with_known_arrays(
        lambda: _scan(elements, body, list(init), needed, invariants, reverse, steps)
    )


def _scan(
    elements: Elements,
    body: Callable[[Any, Values], tuple[Values, Any]],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    reverse: bool,
    count: int,
) -> tuple[Values, Any]:
    loop = LoopState(init, needed, invariants)
    inputs = loop.inputs()
    by_index = elements.stacked is None
    stacked = Template(np.arange(count, dtype=np.int32) if by_index else elements.stacked)
    sources = [to_tensor(leaf) for leaf in stacked.leaves]
    heads = [TensorSpec(tuple(s.shape)[1:], s.dtype) for s in sources]
    outputs: list[Template] = []

    def traced_step(*tensors: Tensor) -> list[Tensor]:
        element = elements.at(tensors[0]) if by_index else stacked.build(tensors[: len(heads)])
        with visiting(elements.index_of(element) if elements.index_of else None, count):
            values, output = body(element, loop.values(tensors[len(heads) :]))
        outputs.append(Template(output))
        return loop.collect(values) + [to_tensor(leaf) for leaf in outputs[-1].leaves]

    traced = trace(traced_step, (*heads, *inputs), name="body", is_loop_body=True)
    operands = Operands([traced])
    state = loop.starting(may_not_run=False)
    size = len(state)

    def call(state: list[Any], captures: list[Any], sources: list[Any]) -> list[Any]:
        def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            values = list(captures)
            for at, value in zip(operands.written_at, carry[size:], strict=True):
                values[at] = value
            arguments = [*xs, *carry[: len(inputs)]]
            results = traced.arrays(arguments, operands.captures_of(traced, values))
            after = results[:size] + operands.written_values(
                traced, results[traced.count :], values
            )
            return [lax.convert_element_type(o, o.dtype) for o in after], results[
                size : traced.count
            ]

        carry = [*state, *(captures[at] for at in operands.written_at)]
        carry = [lax.convert_element_type(c, c.dtype) for c in carry]
        visited = [s if s.shape[0] == count else jnp.asarray(s)[:count] for s in sources]
        carry, collected = lax.scan(step, carry, visited, reverse=reverse)
        return [*carry, *collected]

    results = run("for_loop", call, state, operands.tensors(), sources)
    operands.finished(results)
    split = size + len(operands.writes)
    operands.assign(results[size:split])
    return loop.final(results[:size]), outputs[-1].build(results[split:])
