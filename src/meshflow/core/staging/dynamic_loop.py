"""`while_loop` on arrays, with gradients of every order.

JAX cannot differentiate `lax.while_loop` in reverse mode: the number of iterations, and therefore
the memory for intermediate states, is unknown at compile time. There are two solutions:

* With a static `limit` on the iterations, the gradient is that of a `lax.scan` of this length, in
  which surplus iterations do nothing. It stores `limit` states.
* Without a limit, the gradient counts the iterations, visits them backwards, and stores the states
  of at most `NUM_CHECKPOINTS` iterations at a time. The states in between are recomputed from the
  last stored one. Up to 128 iterations none is recomputed, up to about 4,000 most are recomputed
  once, and up to 70,000 twice.

The gradient of a loop without a limit is not differentiated as a program, because each order would
multiply its size. It is a function `G(x, g) = J(x)ᵀ g` of the initial values `x` and the gradient `g`
of the result, where `J` is the Jacobian of the loop. Since `<a, G(x, g)> = <g, J(x) a>`, the
gradient of `<a, G>` with respect to `g` is the derivative `J(x) a` in the direction `a`, and that
with respect to `x` is the gradient of this derivative. Both are computed by one loop, in which each
step also computes its own derivative in the direction. So gradients of order k use a loop with `2**k`
states per step, instead of `k` nested passes over stored states.

References: A. Griewank, A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000, for
checkpointing in general; the placement here is a simple variant for any number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from meshflow.environment.types import JaxprEqn, PyTree
from meshflow.passes.jaxprs import summarize_jaxpr

T = TypeVar("T")

# Maximum number of states that the backward pass stores at a time.
NUM_CHECKPOINTS = 128

Arrays = list[jax.Array]
# Both are functions of (carry, consts). All operands of a loop are explicit, because a function
# with a custom gradient must not close over values that are differentiated.
Test = Callable[[Arrays, Arrays], jax.Array]
Step = Callable[[Arrays, Arrays], Arrays]


def is_dynamic_loop(equation: JaxprEqn) -> bool:
    """Check whether an equation is a loop with the gradient of this module."""
    if equation.primitive.name != "custom_vjp_call":
        return False
    name: str = equation.params["call_jaxpr"].jaxpr.debug_info.func_name
    return name == "dynamic_loop"


def while_loop(
    test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int | None = None
) -> Arrays:
    """Run `carry = step(carry, consts)` while `test(carry, consts)`, at most `limit` times."""
    carry = [_remove_weak_type(c) for c in carry]
    if limit is not None:
        return _run_with_limit(test, step, carry, list(consts), limit)

    def dynamic_loop(carry: Arrays, consts: Arrays) -> tuple[jax.Array, Arrays]:
        return _run_loop(test, step, carry, consts, None)

    run = jax.custom_vjp(dynamic_loop)

    def forward(carry: Arrays, consts: Arrays) -> tuple[tuple[jax.Array, Arrays], PyTree]:
        # The loop runs by its differentiable function, so this rule can be differentiated.
        count, result = run(carry, consts)
        return (count, result), (count, carry, consts)

    def backward(operands: PyTree, cotangents: tuple[Any, Arrays]) -> tuple[list[Any], list[Any]]:
        count, carry, consts = operands
        return _compute_gradients(step, count, carry, consts, cotangents[1])

    run.defvjp(forward, backward)
    return run(carry, list(consts))[1]


def _run_with_limit(test: Test, step: Step, carry: Arrays, consts: Arrays, limit: int) -> Arrays:
    """Run a loop of at most `limit` iterations, with the gradient of a scan."""

    def dynamic_loop(carry: Arrays, consts: Arrays) -> Arrays:
        return _run_loop(test, step, carry, consts, limit)[1]

    run = jax.custom_vjp(dynamic_loop)

    def forward(carry: Arrays, consts: Arrays) -> tuple[Arrays, Any]:
        return jax.vjp(lambda c, k: _run_bounded(test, step, c, k, limit), carry, consts)

    def backward(pullback: Callable[..., PyTree], cotangents: Arrays) -> PyTree:
        return pullback(cotangents)

    run.defvjp(forward, backward)
    return run(carry, consts)


def _repeat_step(step: Step, count: jax.Array, carry: Arrays, consts: Arrays) -> Arrays:
    """Run `carry = step(carry, consts)` a number of times that only the running program knows."""

    def dynamic_loop(count: jax.Array, carry: Arrays, consts: Arrays) -> Arrays:
        def advance(_: jax.Array, carry: Arrays) -> Arrays:
            return [_remove_weak_type(c) for c in step(carry, consts)]

        return lax.fori_loop(0, count, advance, carry)

    run = jax.custom_vjp(dynamic_loop)

    def forward(count: jax.Array, carry: Arrays, consts: Arrays) -> tuple[Arrays, Any]:
        return run(count, carry, consts), (count, carry, consts)

    def backward(operands: PyTree, cotangents: Arrays) -> PyTree:
        count, carry, consts = operands
        return None, *_compute_gradients(step, count, carry, consts, cotangents)

    run.defvjp(forward, backward)
    return run(count, carry, consts)


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


def _find_inexact(values: Arrays) -> list[int]:
    return [i for i, value in enumerate(values) if jnp.issubdtype(value.dtype, jnp.inexact)]


def _compute_gradients(
    step: Step, count: jax.Array, carry: Arrays, consts: Arrays, cotangents: Arrays
) -> tuple[list[Any], list[Any]]:
    """Return the gradients of carry and consts from those of the carry `count` iterations later."""
    inexact_carry, inexact_consts = _find_inexact(carry), _find_inexact(consts)
    split = len(inexact_carry)

    def dynamic_loop(count: jax.Array, carry: Arrays, consts: Arrays, cotangents: Arrays) -> Arrays:
        return _run_backward(step, count, carry, consts, cotangents)

    run = jax.custom_vjp(dynamic_loop)

    def forward(*operands: PyTree) -> tuple[Arrays, PyTree]:
        return run(*operands), operands

    def backward(operands: PyTree, directions: Arrays) -> PyTree:
        count, carry, consts, cotangents = operands

        def differentiate(some_carry: Arrays, some_consts: Arrays) -> Arrays:
            return _repeat_step(
                _add_derivative(step, len(carry), len(consts)),
                count,
                [*_replace_items(carry, inexact_carry, some_carry), *directions[:split]],
                [*_replace_items(consts, inexact_consts, some_consts), *directions[split:]],
            )[len(carry) :]

        derivative, pullback = jax.vjp(
            differentiate, _select_inexact(carry), _select_inexact(consts)
        )
        to_carry, to_consts = pullback(cotangents)
        return (
            None,
            _add_missing_gradients(carry, inexact_carry, to_carry),
            _add_missing_gradients(consts, inexact_consts, to_consts),
            derivative,
        )

    run.defvjp(forward, backward)
    gradients = run(count, carry, consts, [cotangents[i] for i in inexact_carry])
    return (
        _add_missing_gradients(carry, inexact_carry, gradients[:split]),
        _add_missing_gradients(consts, inexact_consts, gradients[split:]),
    )


def _select_inexact(values: Arrays) -> Arrays:
    return [values[i] for i in _find_inexact(values)]


def _restrict_step(
    step: Step, carry: Arrays, consts: Arrays
) -> Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]:
    """Return a step as a function of the inexact values; the other values of carry and consts are fixed.

    The function returns the inexact results, and all results.
    """
    inexact_carry, inexact_consts = _find_inexact(carry), _find_inexact(consts)

    def run_inexact(some_carry: Arrays, some_consts: Arrays) -> tuple[Arrays, Arrays]:
        results = step(
            _replace_items(carry, inexact_carry, some_carry),
            _replace_items(consts, inexact_consts, some_consts),
        )
        return [_remove_weak_type(results[i]) for i in inexact_carry], results

    return run_inexact


def _add_derivative(step: Step, size: int, num_consts: int) -> Step:
    """Extend a step with `size` states by its derivative.

    Carry and consts contain directions for their inexact values at the end; the result contains the
    derivative at the end.
    """

    def advance(carry: Arrays, consts: Arrays) -> Arrays:
        operands, constants = carry[:size], consts[:num_consts]
        derivative, results = _differentiate_forward(
            _restrict_step(step, operands, constants),
            (_select_inexact(operands), _select_inexact(constants)),
            (carry[size:], consts[num_consts:]),
        )
        return [*results, *derivative]

    return advance


def _differentiate_forward(
    function: Callable[..., tuple[Arrays, Arrays]],
    primals: tuple[Arrays, Arrays],
    directions: tuple[Arrays, Arrays],
) -> tuple[Arrays, Arrays]:
    """Return the derivative of the first result of a function in a direction, and the second result."""
    program = jax.make_jaxpr(function)(*primals)
    if "custom_vjp_call" not in summarize_jaxpr(program.jaxpr).primitives:
        _, derivative, results = jax.jvp(function, primals, directions, has_aux=True)
        return derivative, results
    # JAX has no forward mode for functions with a custom gradient, such as loops in the step. The
    # gradient is linear, so its own gradient is the derivative.
    outputs, pullback, results = jax.vjp(function, *primals, has_aux=True)
    zeros = [jnp.zeros_like(o) for o in outputs]
    return jax.vjp(pullback, zeros)[1](directions)[0], results


def _run_backward(
    step: Step, count: jax.Array, carry: Arrays, consts: Arrays, cotangents: Arrays
) -> Arrays:
    """Return the gradients of the inexact values of carry and consts."""
    limit = NUM_CHECKPOINTS
    # The last slot receives the states that are not stored.
    stored = [jnp.zeros((limit + 1, *c.shape), c.dtype) for c in carry]
    indices = jnp.zeros(limit + 1, jnp.int32)
    zeros = [jnp.zeros_like(c) for c in _select_inexact(consts)]
    zero = jnp.int32(0)

    def find_next(index: jax.Array, last: jax.Array, num_stored: jax.Array) -> jax.Array:
        """Return the index of the next state to store on the way to index `last`."""
        free = limit - num_stored
        distance = last - index
        # If the slots do not suffice for all states, half of them are left for the last segment.
        parts = free // 2 + 1
        return index + jnp.where(distance - 1 <= free, 1, (distance + parts - 1) // parts)

    def visit(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        """Compute the state of iteration `last`, and the gradients before that iteration."""
        last, gradients, *position = loop

        def advance(position: list[Any]) -> list[Any]:
            index, next_index, num_stored, indices, state, stored = position
            stores = jnp.logical_and(index == next_index, num_stored < limit)
            slot = jnp.where(stores, num_stored, limit)
            stored = [
                lax.dynamic_update_index_in_dim(b, s, slot, 0)
                for b, s in zip(stored, state, strict=True)
            ]
            indices = lax.dynamic_update_index_in_dim(indices, index, slot, 0)
            num_stored = num_stored + stores
            next_index = jnp.where(stores, find_next(index, last, num_stored), next_index)
            state = [_remove_weak_type(c) for c in step(state, consts)]
            return [index + 1, next_index, num_stored, indices, state, stored]

        position = lax.while_loop(lambda position: position[0] < last, advance, position)
        _, _, num_stored, indices, state, stored = position
        gradients = _apply_pullback(step, state, gradients, consts)
        last = last - 1
        top = jnp.maximum(num_stored - 1, 0)
        state = [lax.dynamic_index_in_dim(b, top, 0, keepdims=False) for b in stored]
        index = lax.dynamic_index_in_dim(indices, top, 0, keepdims=False)
        num_stored = num_stored - (index == last)
        next_index = find_next(index, last, num_stored)
        return last, gradients, index, next_index, num_stored, indices, state, stored

    start = (count - 1, [*cotangents, *zeros], zero, zero, zero, indices, carry, stored)
    return lax.while_loop(lambda loop: loop[0] >= 0, visit, start)[1]


def _apply_pullback(step: Step, state: Arrays, gradients: Arrays, consts: Arrays) -> Arrays:
    """Return the gradients at `state` from those one iteration later."""
    inexact_state = _select_inexact(state)
    split = len(inexact_state)
    _, pullback, _ = jax.vjp(
        _restrict_step(step, state, consts), inexact_state, _select_inexact(consts), has_aux=True
    )
    to_state, to_consts = pullback(gradients[:split])
    return [*to_state, *(a + b for a, b in zip(gradients[split:], to_consts, strict=True))]


def _replace_items(values: Sequence[T], indices: list[int], items: Sequence[T]) -> list[T]:
    result = list(values)
    for i, item in zip(indices, items, strict=True):
        result[i] = item
    return result


def _add_missing_gradients(
    values: Arrays, indices: list[int], gradients: Arrays
) -> list[jax.Array | None]:
    """Return gradients for all values; those outside of `indices` are integers and have none."""
    return _replace_items([None] * len(values), indices, gradients)
