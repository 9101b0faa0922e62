"""`while_loop` on arrays, with gradients of every order.

JAX cannot differentiate `lax.while_loop` in reverse mode: the number of iterations, and therefore
the memory for intermediate states, is unknown at compile time. There are two solutions:

* With a static `limit` on the iterations, the gradient is that of a `lax.scan` of this length, in
  which surplus iterations do nothing. It stores `limit` states.
* Without a limit, the gradient counts the iterations, stores the state at `CHECKPOINTS` evenly
  spaced iterations, and again at `CHECKPOINTS` iterations inside each such segment. The states in
  between are recomputed. Up to `CHECKPOINTS**2` (4,096) iterations this costs two more runs of the
  loop and the memory of 128 states; beyond that, `n / 8192` more runs for n iterations.

The loops of the backward pass are such loops, too, so gradients of higher orders exist. Forward
mode is JAX's own, applied to the loop without its gradient: `core/gradients/forward.py` finds the
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

CHECKPOINTS = 64
LEVELS = 2

# The name of the program inside the equation of a loop.
NAME = "dynamic_loop"

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


def _strong(value: jax.Array) -> jax.Array:
    """Return the array without JAX's weak type, so that the type of the carry does not change."""
    return lax.convert_element_type(value, value.dtype)


def _run(
    test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int | None
) -> tuple[jax.Array, Arrays]:
    """Run the loop; also return the number of iterations."""

    def continues(state: tuple[jax.Array, Arrays]) -> jax.Array:
        count, carry = state
        is_true = test(carry, consts)
        return is_true if limit is None else jnp.logical_and(count < limit, is_true)

    def advance(state: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        count, carry = state
        return count + 1, [_strong(c) for c in step(carry, consts)]

    return lax.while_loop(continues, advance, (jnp.int32(0), carry))


def _bounded(test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int) -> Arrays:
    """Run the loop as a scan of fixed length."""

    def advance(carry: Arrays, _: None) -> tuple[Arrays, None]:
        def run_step(carry: Arrays) -> Arrays:
            return [_strong(c) for c in step(carry, consts)]

        return lax.cond(test(carry, consts), run_step, lambda carry: carry, carry), None

    return lax.scan(advance, carry, None, length=limit)[0]


def repeat(
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


class _Reverse:
    """The backward pass of a loop without a limit."""

    def __init__(self, step: Step, carry: Arrays, consts: Arrays) -> None:
        self.step = step
        self.carry = carry
        self.consts = consts
        self.smooth_carry = [i for i, c in enumerate(carry) if _is_inexact(c)]
        self.smooth_consts = [i for i, c in enumerate(consts) if _is_inexact(c)]

    def run(self, count: jax.Array, cotangents: Arrays) -> tuple[list[Any], list[Any]]:
        """Return the gradients of carry and consts from those of the final carry."""
        incoming = [cotangents[i] for i in self.smooth_carry]
        zeros = [jnp.zeros_like(self.consts[i]) for i in self.smooth_consts]
        gradients = self._segment(LEVELS, count, self.carry, [*incoming, *zeros], self.consts)
        split = len(incoming)
        return (
            _spread(self.carry, self.smooth_carry, gradients[:split]),
            _spread(self.consts, self.smooth_consts, gradients[split:]),
        )

    def _segment(
        self, level: int, count: jax.Array, start: Arrays, gradients: Arrays, consts: Arrays
    ) -> Arrays:
        """Return the gradients at `start` from those `count` iterations later."""
        size = len(start)

        def advance(_: jax.Array, state: Arrays, consts: Arrays) -> Arrays:
            return self.step(state, consts)

        if level == 0:

            def step_backward(i: jax.Array, gradients: Arrays, operands: Arrays) -> Arrays:
                count, start, consts = operands[0], operands[1 : 1 + size], operands[1 + size :]
                state = repeat(count - 1 - i, advance, start, consts)
                return self._pull(state, gradients, consts)

            return repeat(count, step_backward, gradients, [count, *start, *consts])

        length = jnp.maximum((count + CHECKPOINTS - 1) // CHECKPOINTS, 1)
        segments = (count + length - 1) // length

        def store_checkpoint(i: jax.Array, carry: Arrays, operands: Arrays) -> Arrays:
            length, consts = operands[0], operands[1:]
            state, stored = carry[:size], carry[size:]
            stored = [
                lax.dynamic_update_index_in_dim(b, s, i, 0)
                for b, s in zip(stored, state, strict=True)
            ]
            return [*repeat(length, advance, state, consts), *stored]

        empty = [jnp.zeros((CHECKPOINTS, *s.shape), s.dtype) for s in start]
        # The end of the last segment is not needed, so its start is stored without running it.
        final = repeat(segments - 1, store_checkpoint, [*start, *empty], [length, *consts])
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
            return self._segment(
                level - 1, jnp.minimum(length, count - k * length), state, gradients, consts
            )

        return repeat(
            segments, differentiate, gradients, [count, length, segments, *stored, *consts]
        )

    def _pull(self, state: Arrays, gradients: Arrays, consts: Arrays) -> Arrays:
        """Return the gradients at `state` from those one iteration later."""
        split = len(self.smooth_carry)

        def run_inexact(some_state: Arrays, some_consts: Arrays) -> Arrays:
            full = self.step(
                _replaced(state, self.smooth_carry, some_state),
                _replaced(consts, self.smooth_consts, some_consts),
            )
            return [_strong(full[i]) for i in self.smooth_carry]

        _, pullback = jax.vjp(
            run_inexact,
            [state[i] for i in self.smooth_carry],
            [consts[i] for i in self.smooth_consts],
        )
        to_state, to_consts = pullback(gradients[:split])
        return [*to_state, *(a + b for a, b in zip(gradients[split:], to_consts, strict=True))]


def _replaced(values: Sequence[T], indices: list[int], items: Sequence[T]) -> list[T]:
    result = list(values)
    for i, item in zip(indices, items, strict=True):
        result[i] = item
    return result


def _spread(values: Arrays, indices: list[int], gradients: Arrays) -> list[Any]:
    """Return gradients for all values; those outside of `indices` are integers and have none."""
    zeros: list[Any] = [
        None if i in indices else np.zeros(np.shape(v), jax.dtypes.float0)
        for i, v in enumerate(values)
    ]
    return _replaced(zeros, indices, gradients)
