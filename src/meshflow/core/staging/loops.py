"""Loops: `lax.scan` if the number of iterations is known, otherwise a while loop."""

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
    """The elements of a `for` loop.

    An iterable takes part in staged loops if its method `__autograph_for__()` returns this class.
    If the method returns None, Python iterates over the object while the function is traced.

    Attributes:
      count: Number of elements: an int, or an int32 scalar if it is only known at run time.
      get_element: Returns element `i` for an int32 scalar `i`.
      stacked: The elements as a nested value with a leading dimension; None to call `get_element`.
      get_index: Returns the tensor in an element that counts 0, 1, 2, ...; None if there is none.
      rest: Functions that return further elements, which have other shapes; each takes a result of
        the loop, for which it has to wait.
    """

    count: int | Tensor
    at: Callable[[Tensor], Any]
    stacked: Any = None
    index_of: Callable[[Any], Any] | None = None
    rest: Sequence[Callable[[Tensor | None], Any]] = ()


@dataclass
class Stream:
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
    invariants: Invariants,
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
        """Return the state tensors, and the captures with the present values of written variables."""
        values = list(consts)
        for position, value in zip(operands.written_at, carry[size:], strict=True):
            values[position] = value
        return carry[:size], values

    def continues(carry: list[Any], consts: list[Any]) -> Any:
        state, values = split(carry, consts)
        return test.arrays(state[:count], operands.captures_of(test, values))[0]

    def step(carry: list[Any], consts: list[Any]) -> list[Any]:
        state, values = split(carry, consts)
        results = body.arrays(state[:count], operands.captures_of(body, values))
        return results[:size] + operands.written_values(body, results[size:], values)

    def call(state: list[Any], captures: list[Any]) -> list[Any]:
        carry = [jnp.asarray(s) for s in state] + [captures[p] for p in operands.written_at]
        return dynamic_loop.while_loop(continues, step, carry, captures, limit)

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
    if isinstance(count, int):
        count = count if limit is None else min(count, limit)
        if count <= 0:
            return init
        if continues is None:

            def run_body(element: Any, values: Values) -> tuple[Values, tuple[()]]:
                return body(element, values), ()

            return scan(elements, run_body, init, needed, invariants, count=count)[0]

    def test(values: Values) -> Tensor:
        is_inside = logic.less(values[0], count)
        if continues is None:
            return is_inside
        return logic.both(is_inside, logic.scalar_bool(continues(values[1:])))

    def step(values: Values) -> Values:
        index = values[0]
        return [logic.next_integer(index), *body(elements.at(index), values[1:])]

    shifted = _Shifted(invariants)
    max_count = count if isinstance(count, int) else limit
    start = Tensor(np.int32(0).reshape(()))
    return while_loop(test, step, [start, *init], [True, *needed], shifted, max_count)[1:]


def stream_loop(
    stream: Stream,
    body: Callable[[Any, Values], Values],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
    continues: Callable[[Values], Any] | None = None,
    limit: int | None = None,
) -> tuple[Values, Tensor]:
    """Run `body` on each element of a stream; request an element only if the loop continues.

    The arguments are those of `for_loop`. Returns the state, and the number of elements.
    """

    def step(values: Values) -> Values:
        _, count, element, *state = values
        state = body(element, state)
        count = logic.next_integer(count)
        more = Tensor(np.array(True)) if limit is None else logic.less(count, limit)
        if continues is not None:
            more = logic.both(more, logic.scalar_bool(continues(state)))
        element, is_present = stream.take(more, count)
        return [is_present, count, element, *state]

    count = Tensor(np.array(0, np.int32))
    element, is_present = stream.take(Tensor(np.array(limit != 0)), count)
    _, count, _, *state = while_loop(
        lambda values: values[0],
        step,
        [is_present, count, element, *init],
        [True, True, True, *needed],
        _Shifted(invariants, 3),
    )
    return state, count


class _Shifted(Invariants):
    """Invariants of a state that internal values precede."""

    def __init__(self, inner: Invariants, num_internal: int = 1) -> None:
        self.inner = inner
        self.num_internal = num_internal

    def undefined_before(self, position: int) -> Exception:
        return self.inner.undefined_before(position - self.num_internal)

    def changed(self, position: int, aspect: str, before: str, after: str) -> Exception:
        return self.inner.changed(position - self.num_internal, aspect, before, after)

    def write_in_test(self, variable: Any) -> Exception:
        return self.inner.write_in_test(variable)


def scan(
    elements: Elements,
    body: Callable[[Any, Values], tuple[Values, Any]],
    init: Values,
    needed: Sequence[bool],
    invariants: Invariants,
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
            for position, value in zip(operands.written_at, carry[size:], strict=True):
                values[position] = value
            arguments = [*xs, *carry[: len(inputs)]]
            results = traced.arrays(arguments, operands.captures_of(traced, values))
            after = results[:size] + operands.written_values(
                traced, results[traced.count :], values
            )
            return [lax.convert_element_type(o, o.dtype) for o in after], results[
                size : traced.count
            ]

        carry = [*state, *(captures[p] for p in operands.written_at)]
        carry = [lax.convert_element_type(c, c.dtype) for c in carry]
        visited = [s if s.shape[0] == count else jnp.asarray(s)[:count] for s in sources]
        carry, collected = lax.scan(step, carry, visited, reverse=reverse)
        return [*carry, *collected]

    results = run("for_loop", call, state, operands.tensors(), sources)
    operands.finished(results)
    split = size + len(operands.writes)
    operands.assign(results[size:split])
    return loop.final(results[:size]), outputs[-1].build(results[split:])
