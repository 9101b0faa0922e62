"""`while_loop` on arrays, with gradients of every order.

JAX cannot differentiate `lax.while_loop` in reverse mode: the number of iterations, and therefore
the memory for intermediate states, is unknown at compile time. There are two solutions:

* With a static `limit` on the iterations, the gradient is that of a `lax.scan` of this length, in
  which surplus iterations do nothing. It stores `limit` states.
* Without a limit, the gradient counts the iterations, stores the state at `NUM_CHECKPOINTS` evenly
  spaced iterations, and again at `NUM_CHECKPOINTS` iterations inside each such segment. The states in
  between are recomputed. Up to `NUM_CHECKPOINTS**2` (4,096) iterations this costs two more runs of the
  loop and the memory of 128 states; beyond that, `n / 8192` more runs for n iterations.

The loops of the backward pass are such loops, too, so gradients of higher orders exist. Forward
mode is JAX's own, applied to the loop without its gradient: `core/gradients/forward_accumulator.py` finds the
equations by `PROGRAM_NAME`.

References: A. Griewank, A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000, for
checkpointing in general; evenly spaced checkpoints are the simple variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

T = TypeVar("T")

NUM_CHECKPOINTS = 64
NUM_LEVELS = 2

# The name of the program inside the equation of a loop.
PROGRAM_NAME = "dynamic_loop"

Arrays = list[jax.Array]
# Both are functions of (carry, consts). All operands of a loop are explicit, because a function
# with a custom gradient must not close over values that are differentiated.
Test = Callable[[Arrays, Arrays], jax.Array]
Step = Callable[[Arrays, Arrays], Arrays]


def while_loop(
    test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int | None = None
) -> Arrays:
    """Run `carry = step(carry, consts)` while `test(carry, consts)`, at most `limit` times."""

    def dynamic_loop(carry: Arrays, consts: Arrays) -> Arrays:
        return _run_loop(test, step, carry, consts, limit)[1]

    run = jax.custom_vjp(dynamic_loop)

    def forward(carry: Arrays, consts: Arrays) -> tuple[Arrays, Any]:
        if limit is not None:
            return jax.vjp(lambda c, k: _run_bounded(test, step, c, k, limit), carry, consts)
        count, result = _run_loop(test, step, carry, consts, None)
        return result, (carry, consts, count)

    def backward(residuals: Any, cotangents: Arrays) -> Any:
        if limit is not None:
            return residuals(cotangents)
        carry, consts, count = residuals
        return _BackwardPass(step, carry, consts).run(count, cotangents)

    run.defvjp(forward, backward)
    return run([_remove_weak_type(c) for c in carry], list(consts))


def _remove_weak_type(value: jax.Array) -> jax.Array:
    """Return the array without JAX's weak type, so that the type of the carry does not change."""
    return lax.convert_element_type(value, value.dtype)


def _run_loop(
    test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int | None
) -> tuple[jax.Array, Arrays]:
    """Run the loop; also return the number of iterations."""

    def continues(state: tuple[jax.Array, Arrays]) -> jax.Array:
        count, carry = state
        is_true = test(carry, consts)
        return is_true if limit is None else jnp.logical_and(count < limit, is_true)

    def advance(state: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        count, carry = state
        return count + 1, [_remove_weak_type(c) for c in step(carry, consts)]

    return lax.while_loop(continues, advance, (jnp.int32(0), carry))


def _run_bounded(test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int) -> Arrays:
    """Run the loop as a scan of fixed length."""

    def advance(carry: Arrays, _: None) -> tuple[Arrays, None]:
        def run_step(carry: Arrays) -> Arrays:
            return [_remove_weak_type(c) for c in step(carry, consts)]

        return lax.cond(test(carry, consts), run_step, lambda carry: carry, carry), None

    return lax.scan(advance, carry, None, length=limit)[0]


def repeat_step(
    count: jax.Array,
    step: Callable[[jax.Array, Arrays, Arrays], Arrays],
    carry: Arrays,
    consts: Arrays,
) -> Arrays:
    """Run `carry = step(i, carry, consts)` for `i in range(count)`, with a count known at run time."""

    def test(carry: Arrays, consts: Arrays) -> jax.Array:
        return carry[0] < consts[0]

    def advance(carry: Arrays, consts: Arrays) -> Arrays:
        return [carry[0] + 1, *step(carry[0], carry[1:], consts[1:])]

    return while_loop(test, advance, [jnp.int32(0), *carry], [count, *consts])[1:]


def _is_inexact(value: jax.Array) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


class _BackwardPass:
    """The backward pass of a loop without a limit."""

    def __init__(self, step: Step, carry: Arrays, consts: Arrays) -> None:
        self.step = step
        self.carry = carry
        self.consts = consts
        self.inexact_carry = [i for i, c in enumerate(carry) if _is_inexact(c)]
        self.inexact_consts = [i for i, c in enumerate(consts) if _is_inexact(c)]

    def run(self, count: jax.Array, cotangents: Arrays) -> tuple[list[Any], list[Any]]:
        """Return the gradients of carry and consts from those of the final carry."""
        incoming = [cotangents[i] for i in self.inexact_carry]
        zeros = [jnp.zeros_like(self.consts[i]) for i in self.inexact_consts]
        gradients = self._differentiate_segment(
            NUM_LEVELS, count, self.carry, [*incoming, *zeros], self.consts
        )
        split = len(incoming)
        return (
            _add_zero_gradients(self.carry, self.inexact_carry, gradients[:split]),
            _add_zero_gradients(self.consts, self.inexact_consts, gradients[split:]),
        )

    def _differentiate_segment(
        self, level: int, count: jax.Array, start: Arrays, gradients: Arrays, consts: Arrays
    ) -> Arrays:
        """Return the gradients at `start` from those `count` iterations later."""
        size = len(start)

        def advance(_: jax.Array, state: Arrays, consts: Arrays) -> Arrays:
            return self.step(state, consts)

        if level == 0:

            def step_backward(i: jax.Array, gradients: Arrays, operands: Arrays) -> Arrays:
                count, start, consts = operands[0], operands[1 : 1 + size], operands[1 + size :]
                state = repeat_step(count - 1 - i, advance, start, consts)
                return self._apply_pullback(state, gradients, consts)

            return repeat_step(count, step_backward, gradients, [count, *start, *consts])

        length = jnp.maximum((count + NUM_CHECKPOINTS - 1) // NUM_CHECKPOINTS, 1)
        segments = (count + length - 1) // length

        def store_checkpoint(i: jax.Array, carry: Arrays, operands: Arrays) -> Arrays:
            length, consts = operands[0], operands[1:]
            state, stored = carry[:size], carry[size:]
            stored = [
                lax.dynamic_update_index_in_dim(b, s, i, 0)
                for b, s in zip(stored, state, strict=True)
            ]
            return [*repeat_step(length, advance, state, consts), *stored]

        empty = [jnp.zeros((NUM_CHECKPOINTS, *s.shape), s.dtype) for s in start]
        # The end of the last segment is not needed, so its start is stored without running it.
        final = repeat_step(segments - 1, store_checkpoint, [*start, *empty], [length, *consts])
        last, stored = final[:size], final[size:]
        last_index = jnp.maximum(segments - 1, 0)
        stored = [
            lax.dynamic_update_index_in_dim(b, s, last_index, 0)
            for b, s in zip(stored, last, strict=True)
        ]

        def differentiate(i: jax.Array, gradients: Arrays, operands: Arrays) -> Arrays:
            count, length, segments = operands[:3]
            stored, consts = operands[3 : 3 + size], operands[3 + size :]
            k = segments - 1 - i
            state = [lax.dynamic_index_in_dim(b, k, 0, keepdims=False) for b in stored]
            return self._differentiate_segment(
                level - 1, jnp.minimum(length, count - k * length), state, gradients, consts
            )

        return repeat_step(
            segments, differentiate, gradients, [count, length, segments, *stored, *consts]
        )

    def _apply_pullback(self, state: Arrays, gradients: Arrays, consts: Arrays) -> Arrays:
        """Return the gradients at `state` from those one iteration later."""
        split = len(self.inexact_carry)

        def run_inexact(some_state: Arrays, some_consts: Arrays) -> Arrays:
            full = self.step(
                _replace_items(state, self.inexact_carry, some_state),
                _replace_items(consts, self.inexact_consts, some_consts),
            )
            return [_remove_weak_type(full[i]) for i in self.inexact_carry]

        _, pullback = jax.vjp(
            run_inexact,
            [state[i] for i in self.inexact_carry],
            [consts[i] for i in self.inexact_consts],
        )
        to_state, to_consts = pullback(gradients[:split])
        return [*to_state, *(a + b for a, b in zip(gradients[split:], to_consts, strict=True))]


def _replace_items(values: Sequence[T], indices: list[int], items: Sequence[T]) -> list[T]:
    result = list(values)
    for i, item in zip(indices, items, strict=True):
        result[i] = item
    return result


def _add_zero_gradients(values: Arrays, indices: list[int], gradients: Arrays) -> list[Any]:
    """Return gradients for all values; those outside of `indices` are integers and have none."""
    zeros: list[Any] = [
        None if i in indices else np.zeros(np.shape(v), jax.dtypes.float0)
        for i, v in enumerate(values)
    ]
    return _replace_items(zeros, indices, gradients)
