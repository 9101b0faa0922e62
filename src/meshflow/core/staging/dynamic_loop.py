"""`while_loop` on arrays, with gradients of every order.

JAX cannot differentiate `lax.while_loop` in reverse: the number of iterations, and with it the
memory for intermediate states, is not known when the program is compiled. Two ways around that:

* with a static `limit` on the iterations, the gradient is taken through a `lax.scan` of that
  length whose surplus iterations do nothing. It keeps `limit` states;
* without one, the gradient counts the iterations, stores the state at `CHECKPOINTS` evenly spaced
  iterations, and again at `CHECKPOINTS` iterations inside each such segment. States in between are
  computed again. Up to `CHECKPOINTS**2` (4,096) iterations this costs two more runs of the loop
  and 128 states; beyond, `n / 8192` more runs for n iterations.

The loops of the backward pass are such loops themselves, hence higher orders. Forward mode is JAX's
own, of the loop without its gradient: who wants it knows the equations by their programs' name.

References: A. Griewank, A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000, for
checkpointing in general; evenly spaced checkpoints are the simple variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CHECKPOINTS = 64
LEVELS = 2

# The name of the program inside a loop's equation.
NAME = "dynamic_loop"

Arrays = list[Any]
# Functions of (carry, consts): everything that a loop uses is passed explicitly, because a
# function with a custom gradient must not close over values that are differentiated.
Test = Callable[[Arrays, Arrays], Any]
Step = Callable[[Arrays, Arrays], Arrays]


def while_loop(
    test: Test, step: Step, carry: Sequence[Any], consts: Sequence[Any], limit: int | None = None
) -> Arrays:
    """Runs `carry = step(carry, consts)` while `test(carry, consts)`.

    Args:
      test: gives a scalar bool.
      step: gives the next carry, of the same shapes and dtypes.
      carry: arrays that change.
      consts: arrays that do not.
      limit: the most iterations to run, or None.

    Returns:
      The final carry.
    """

    def dynamic_loop(carry: Arrays, consts: Arrays) -> Arrays:
        return _run(test, step, carry, consts, limit)[1]

    run = jax.custom_vjp(dynamic_loop)

    def forward(carry: Arrays, consts: Arrays) -> tuple[Arrays, Any]:
        if limit is not None:
            return jax.vjp(lambda c, k: _bounded(test, step, c, k, limit), carry, consts)
        count, result = _run(test, step, carry, consts, None)
        return result, (carry, consts, count)

    def backward(residuals: Any, cotangents: Arrays) -> Any:
        if limit is not None:
            return residuals(cotangents)
        carry, consts, count = residuals
        return _Reverse(step, carry, consts).run(count, cotangents)

    run.defvjp(forward, backward)
    return run([_strong(c) for c in carry], list(consts))


def _strong(value: Any) -> Any:
    """The array without JAX's weak typing, so that the carry keeps one type."""
    return lax.convert_element_type(value, value.dtype)


def _run(
    test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int | None
) -> tuple[Any, Arrays]:
    """The loop itself; also returns the number of iterations."""

    def go_on(state: tuple[Any, Arrays]) -> Any:
        count, carry = state
        wanted = test(carry, consts)
        return wanted if limit is None else jnp.logical_and(count < limit, wanted)

    def advance(state: tuple[Any, Arrays]) -> tuple[Any, Arrays]:
        count, carry = state
        return count + 1, [_strong(c) for c in step(carry, consts)]

    return lax.while_loop(go_on, advance, (jnp.int32(0), carry))


def _bounded(test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int) -> Arrays:
    """The same loop as a scan of fixed length."""

    def advance(carry: Arrays, _: None) -> tuple[Arrays, None]:
        def wanted(carry: Arrays) -> Arrays:
            return [_strong(c) for c in step(carry, consts)]

        return lax.cond(test(carry, consts), wanted, lambda carry: carry, carry), None

    return lax.scan(advance, carry, None, length=limit)[0]


def repeat(
    count: Any,
    step: Callable[[Any, Arrays, Arrays], Arrays],
    carry: Sequence[Any],
    consts: Sequence[Any],
) -> Arrays:
    """`for i in range(count): carry = step(i, carry, consts)` for a count known at run time."""

    def test(carry: Arrays, consts: Arrays) -> Any:
        return carry[0] < consts[0]

    def advance(carry: Arrays, consts: Arrays) -> Arrays:
        return [carry[0] + 1, *step(carry[0], carry[1:], consts[1:])]

    return while_loop(test, advance, [jnp.int32(0), *carry], [count, *consts])[1:]


def _is_inexact(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


class _Reverse:
    """The backward pass of an unbounded loop."""

    def __init__(self, step: Step, carry: Arrays, consts: Arrays) -> None:
        self.step = step
        self.carry = carry
        self.consts = consts
        self.smooth_carry = [i for i, c in enumerate(carry) if _is_inexact(c)]
        self.smooth_consts = [i for i, c in enumerate(consts) if _is_inexact(c)]

    def run(self, count: Any, cotangents: Arrays) -> tuple[Arrays, Arrays]:
        """Gradients of carry and consts from those of the final carry."""
        arriving = [cotangents[i] for i in self.smooth_carry]
        zeros = [jnp.zeros_like(self.consts[i]) for i in self.smooth_consts]
        gradients = self._segment(LEVELS, count, self.carry, [*arriving, *zeros], self.consts)
        split = len(arriving)
        return (
            _spread(self.carry, self.smooth_carry, gradients[:split]),
            _spread(self.consts, self.smooth_consts, gradients[split:]),
        )

    def _segment(
        self, level: int, count: Any, start: Arrays, gradients: Arrays, consts: Arrays
    ) -> Arrays:
        """Gradients at `start` from gradients `count` iterations later."""
        size = len(start)

        def advance(_: Any, state: Arrays, consts: Arrays) -> Arrays:
            return self.step(state, consts)

        if level == 0:

            def one_back(i: Any, gradients: Arrays, operands: Arrays) -> Arrays:
                count, start, consts = operands[0], operands[1 : 1 + size], operands[1 + size :]
                state = repeat(count - 1 - i, advance, start, consts)
                return self._pull(state, gradients, consts)

            return repeat(count, one_back, gradients, [count, *start, *consts])

        length = jnp.maximum((count + CHECKPOINTS - 1) // CHECKPOINTS, 1)
        segments = (count + length - 1) // length

        def record(i: Any, carry: Arrays, operands: Arrays) -> Arrays:
            length, consts = operands[0], operands[1:]
            state, stored = carry[:size], carry[size:]
            stored = [
                lax.dynamic_update_index_in_dim(b, s, i, 0)
                for b, s in zip(stored, state, strict=True)
            ]
            return [*repeat(length, advance, state, consts), *stored]

        empty = [jnp.zeros((CHECKPOINTS, *s.shape), s.dtype) for s in start]
        # The last segment's end is not needed, so its start is stored without running it.
        recorded = repeat(segments - 1, record, [*start, *empty], [length, *consts])
        last, stored = recorded[:size], recorded[size:]
        at = jnp.maximum(segments - 1, 0)
        stored = [
            lax.dynamic_update_index_in_dim(b, s, at, 0) for b, s in zip(stored, last, strict=True)
        ]

        def segment_back(i: Any, gradients: Arrays, operands: Arrays) -> Arrays:
            count, length, segments = operands[:3]
            stored, consts = operands[3 : 3 + size], operands[3 + size :]
            k = segments - 1 - i
            state = [lax.dynamic_index_in_dim(b, k, 0, keepdims=False) for b in stored]
            return self._segment(
                level - 1, jnp.minimum(length, count - k * length), state, gradients, consts
            )

        return repeat(
            segments, segment_back, gradients, [count, length, segments, *stored, *consts]
        )

    def _pull(self, state: Arrays, gradients: Arrays, consts: Arrays) -> Arrays:
        """One step of the chain rule: gradients at `state` from those one iteration later."""
        split = len(self.smooth_carry)

        def smooth(some_state: Arrays, some_consts: Arrays) -> Arrays:
            full = self.step(
                _replaced(state, self.smooth_carry, some_state),
                _replaced(consts, self.smooth_consts, some_consts),
            )
            return [_strong(full[i]) for i in self.smooth_carry]

        _, pullback = jax.vjp(
            smooth, [state[i] for i in self.smooth_carry], [consts[i] for i in self.smooth_consts]
        )
        to_state, to_consts = pullback(gradients[:split])
        return [*to_state, *(a + b for a, b in zip(gradients[split:], to_consts, strict=True))]


def _replaced(values: Arrays, at: list[int], new: Arrays) -> Arrays:
    result = list(values)
    for i, value in zip(at, new, strict=True):
        result[i] = value
    return result


def _spread(values: Arrays, at: list[int], gradients: Arrays) -> Arrays:
    """Gradients for all values: those at `at` are given, integers have none."""
    zeros = [
        None if i in at else np.zeros(np.shape(v), jax.dtypes.float0) for i, v in enumerate(values)
    ]
    return _replaced(zeros, at, gradients)
