"""`recompute_grad`: time for memory, by computing a function again for its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, forward_of_wanted, is_inexact, of_wanted
from meshflow.core.tracing.trace import is_array_like, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import jex_core

__all__ = [
    "ZERO",
    "HostMemory",
    "Waiting",
    "recompute_grad",
    "recomputed",
    "recomputed_by",
    "recomputing",
]

# Always zero. A floating constant is an input of every program, so that no compiler knows it; being no
# one's data it is the same on all devices, and those that compute again do so together.
ZERO = Tensor(np.zeros([], np.float32))


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Computes a function again for its gradient instead of keeping intermediate values.

    Args:
      f: a function of tensors; other arguments (numbers, None, objects) reach it as they are.

    Returns:
      A function with the same values and gradients that needs less memory in training.

    Example:
      >>> import meshflow as tf
      >>> f = tf.recompute_grad(lambda x: tf.sin(x) ** 2)
      >>> x = tf.Variable(0.0)
      >>> with tf.GradientTape() as tape:
      ...     y = f(x)
      >>> tape.gradient(y, x).numpy().item()
      0.0
    """

    return recomputing(f, recomputed())


def recomputing(
    f: Callable[..., Any],
    form: Callable[[Callable[..., Any]], Callable[..., Any]],
    beside: bool = False,
) -> Callable[..., Any]:
    """A function of tensors, run in another form.

    Args:
      f: the function.
      form: makes the array function of an op, whose operands are arguments, captures and a zero, of the traced one.
      beside: whether the function gives a result and a list of tensors that are to be computed outside of the form, by
        what they need alone.
    """

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves = nest.flatten(args)
        tensors = [leaf for leaf in leaves if is_array_like(leaf)]

        def rerun(*symbolic: Any) -> Any:
            supply = iter(symbolic)
            full = [next(supply) if is_array_like(leaf) else leaf for leaf in leaves]
            return f(*nest.pack_sequence_as(args, full), **kwargs)

        tensors = [convert_to_tensor(t) for t in tensors]
        traced = trace(rerun, tuple(tensors))
        op = Op(f"recomputed_{traced.name}", form(traced.arrays), heavy=True, is_opaque=True)
        outputs = apply(op, (tensors, traced.captured_tensors(), ZERO))
        traced.assign(outputs[traced.count :])
        result = traced.rebuild(outputs[: traced.count])
        numbers = [slot.index for slot in traced.structure[1]] if beside else []
        if not numbers:
            return result
        some = Op(f"beside_{traced.name}", lambda o, _: traced.some(numbers, *o), is_opaque=True)
        return result[0], apply(some, (tensors, traced.captured_tensors()))

    return wrapped


_Form = Callable[[Callable[..., Any]], Callable[..., Any]]


class Waiting(Protocol):
    """Where values wait for the backward pass, out of the device's memory."""

    def put(self, values: Sequence[Any], zero: Any) -> tuple[list[Any], _Restore, Any]:
        """Has a program hand values over.

        Args:
          values: the values.
          zero: a zero that no compiler knows.

        Returns:
          What is kept for them; what makes the values of that, and of arrays that come first; and the zero, which
          comes when they were handed over.
        """


_Restore = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class HostMemory:
    """The host's memory as a place to wait; CPUs have one memory, and move nothing."""

    def put(self, values: Sequence[Any], zero: Any) -> tuple[list[Any], _Restore, Any]:
        """See `Waiting`."""
        return [jax.device_put(v, jax.memory.Space.Host) for v in values], _from_host, zero


def _from_host(kept: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    return [jax.device_put(v, jax.memory.Space.Device) for v in kept]


def _stayed(kept: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    return list(kept)


def recomputed_by(policy: Callable[..., Any] | None, waiting: Waiting | None = None) -> _Form:
    """A form for `recomputing` in which a policy of `jax.checkpoint_policies` says what is kept.

    Args:
      policy: the policy; None keeps all that gradients need.
      waiting: where what is kept, but for captures, waits for the backward pass; default on the device.
    """

    def form(run: Callable[..., Any]) -> Callable[..., Any]:
        checkpointed = run if policy is None else jax.checkpoint(run, policy=policy)
        if waiting is not None or jax.default_backend() == "cpu":
            again = _the_rest_in_a_branch(checkpointed, waiting)
            return lambda operands, _: again(*operands)
        return lambda operands, _: checkpointed(*operands[:2])

    return form


def recomputed(waiting: Waiting | None = None) -> _Form:
    """A form for `recomputing` that runs a function again for its gradient.

    Args:
      waiting: where its arguments wait for that; default on the device.
    """

    def form(run: Callable[..., Any]) -> Callable[..., Any]:
        if waiting is not None or jax.default_backend() == "cpu":
            again = _again_in_a_branch(run, waiting)
            return lambda operands, _: again(*operands)
        checkpointed = jax.checkpoint(run)
        return lambda operands, _: checkpointed(*operands[:2])

    return form


def _kept(
    waiting: Waiting | None, values: Sequence[Any], which: Sequence[bool], form: Any, zero: Any
) -> tuple[Any, Any]:
    """What is kept of a structure of values, of which some wait elsewhere, for `_rebuilt`; and the zero."""
    away = [v for v, w in zip(values, which, strict=True) if w]
    here = [v for v, w in zip(values, which, strict=True) if not w]
    restore: _Restore = _stayed
    if waiting is not None and away:
        away, restore, zero = waiting.put(away, zero)
    back = functools.partial(_rebuilt, form, tuple(which), restore)
    return (away, here, jax.tree_util.Partial(back)), zero


def _rebuilt(
    form: Any,
    which: Sequence[bool],
    restore: _Restore,
    away: Sequence[Any],
    here: Sequence[Any],
    arriving: Sequence[Any],
) -> Any:
    # What waited is not wanted before the gradients that it is for.
    first = [c.reshape(-1)[:1] for c in arriving]
    there, stayed = iter(restore(away, first)), iter(here)
    return jax.tree.unflatten(form, [next(there) if w else next(stayed) for w in which])


def _the_rest_in_a_branch(run: Callable[..., Any], waiting: Waiting | None) -> Callable[..., Any]:
    """A checkpointed function whose gradient computes what is not kept in a branch of its own."""

    @jax.custom_vjp
    def call(arguments: Any, captures: Any, zero: Any) -> Any:
        return run(arguments, captures)

    def forward(arguments: Any, captures: Any, zero: Any) -> Any:
        leaves, tree = jax.tree.flatten((arguments, captures))
        wanted = tuple(is_inexact(leaf) for leaf in leaves)
        # Traced once, so that both branches give one structure: the pullback's holds programs.
        first = functools.partial(forward_of_wanted, run, wanted)
        program, shapes = jax.make_jaxpr(first, return_shape=True)(arguments, captures)
        flat, structure = jax.tree.flatten(shapes)
        values = _apart(
            zero,
            lambda: [jax.numpy.zeros(s.shape, s.dtype) for s in flat],
            lambda: jex_core.jaxpr_as_fun(program)(*leaves),
        )
        outputs, pullback = jax.tree.unflatten(structure, values)
        needed, form = jax.tree.flatten(pullback)
        # Captures, weights mostly, live on anyway.
        captured = set(program.jaxpr.invars[len(jax.tree.leaves(arguments)) :])
        names = program.jaxpr.outvars[len(flat) - len(needed) :]
        moves = [
            isinstance(name, jex_core.Var) and name not in captured and is_inexact(value)
            for name, value in zip(names, needed, strict=True)
        ]
        kept, zero = _kept(waiting, needed, moves, form, zero)
        structured = jax.tree_util.Partial(functools.partial(_with_nones, tree, wanted))
        return outputs, (kept, structured, zero)

    def backward(found: Any, cotangents: Any) -> Any:
        (away, here, back), structured, zero = found
        arriving = [c for c in cotangents if is_inexact(c)]
        pullback = back(away, here, arriving)

        def nothing() -> list[Any]:
            shapes = jax.eval_shape(lambda: list(pullback(arriving)))
            return [jax.numpy.zeros(s.shape, s.dtype) for s in shapes]

        found = _apart(zero, nothing, lambda: list(pullback(arriving)))
        return (*structured(found), None)

    call.defvjp(forward, backward)
    return call


def _apart(zero: Any, nothing: Callable[[], Any], something: Callable[[], Any]) -> Any:
    """What is computed in a branch of its own, on CPUs.

    XLA for CPUs drops the barriers of `jax.checkpoint`, and then takes the second run for the first.
    It never merges what stands in a branch with what stands outside.
    """
    if jax.default_backend() != "cpu":
        return something()
    return jax.lax.cond(zero < 0, nothing, something)


def _with_nones(tree: Any, wanted: tuple[bool, ...], found: Any) -> Any:
    supply = iter(found)
    return jax.tree.unflatten(tree, [next(supply) if w else None for w in wanted])


def _again_in_a_branch(run: Callable[..., Any], waiting: Waiting | None) -> Callable[..., Any]:
    """`run` whose gradient computes it again in a branch of its own."""

    @jax.custom_vjp
    def call(arguments: Any, captures: Any, zero: Any) -> Any:
        return run(arguments, captures)

    def forward(arguments: Any, captures: Any, zero: Any) -> Any:
        def nothing() -> Any:
            return [
                jax.numpy.zeros(o.shape, o.dtype) for o in jax.eval_shape(run, arguments, captures)
            ]

        values, form = jax.tree.flatten(arguments)
        kept, zero = _kept(waiting, values, [is_inexact(v) for v in values], form, zero)
        # In a branch too: otherwise what depends on no argument, as random numbers of all blocks, is made at once.
        outputs = _apart(zero, nothing, lambda: run(arguments, captures))
        return outputs, (kept, captures, zero)

    def backward(found: Any, cotangents: Any) -> Any:
        (away, here, back), captures, zero = found
        arriving = [c for c in cotangents if is_inexact(c)]
        inputs = back(away, here, arriving), captures, zero
        leaves, tree = jax.tree.flatten(inputs)
        wanted = tuple(is_inexact(leaf) for leaf in leaves[:-1])
        function, chosen = of_wanted(run, wanted, inputs[:2])

        def again() -> list[Any]:
            _, pullback, _ = jax.vjp(function, *chosen, has_aux=True)
            return list(pullback(arriving))

        # The branch never taken gives what lies on the devices as the gradients do.
        supply = iter(_apart(zero, lambda: chosen, again))
        gradients = [next(supply) if w else None for w in wanted]
        return jax.tree.unflatten(tree, [*gradients, None])

    call.defvjp(forward, backward)
    return call
