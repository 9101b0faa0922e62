"""`recompute_grad`: time for memory, by computing a function again for its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, forward_of_wanted, is_inexact, of_wanted
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import is_array_like, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import jex_core

__all__ = ["recompute_grad", "recomputed_by", "recomputing"]

# Always zero. A floating constant is an input of every program, so that no compiler knows it; being no
# one's data it is the same on all devices, and those that compute again do so together.
_ZERO = Tensor(np.zeros([], np.float32))


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

    return recomputing(f, _recomputed)


def recomputing(
    f: Callable[..., Any], form: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """A function of tensors, run in another form.

    Args:
      f: the function.
      form: makes the array function of an op, whose operands are arguments, captures and a zero, of the traced one.
    """

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        outer = context.trace
        leaves = nest.flatten(args)
        tensors = [leaf for leaf in leaves if is_array_like(leaf)]

        def rerun(*symbolic: Any) -> Any:
            supply = iter(symbolic)
            full = [next(supply) if is_array_like(leaf) else leaf for leaf in leaves]
            inner = context.trace
            if outer is None or inner is None:
                return f(*nest.pack_sequence_as(args, full), **kwargs)
            # Random ops are told apart by how many of the whole function come before them.
            inner.random_ops = outer.random_ops
            result = f(*nest.pack_sequence_as(args, full), **kwargs)
            outer.random_ops = inner.random_ops
            return result

        tensors = [convert_to_tensor(t) for t in tensors]
        traced = trace(rerun, tuple(tensors))
        op = Op(f"recomputed_{traced.name}", form(traced.arrays), heavy=True, whole=True)
        outputs = apply(op, (tensors, traced.captured_tensors(), _ZERO))
        traced.assign(outputs[traced.count :])
        return traced.rebuild(outputs[: traced.count])

    return wrapped


def recomputed_by(
    policy: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A form for `recomputing` in which a policy of `jax.checkpoint_policies` says what is kept."""

    def form(run: Callable[..., Any]) -> Callable[..., Any]:
        checkpointed = jax.checkpoint(run, policy=policy)
        if jax.default_backend() == "cpu":
            again = _the_rest_in_a_branch(checkpointed)
            return lambda operands, _: again(*operands)
        return lambda operands, _: checkpointed(*operands[:2])

    return form


def _the_rest_in_a_branch(run: Callable[..., Any]) -> Callable[..., Any]:
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
        values = jax.lax.cond(
            zero < 0,
            lambda: [jax.numpy.zeros(s.shape, s.dtype) for s in flat],
            lambda: jex_core.jaxpr_as_fun(program)(*leaves),
        )
        outputs, pullback = jax.tree.unflatten(structure, values)
        structured = jax.tree_util.Partial(functools.partial(_with_nones, tree, wanted))
        return outputs, (pullback, structured, zero)

    def backward(kept: Any, cotangents: Any) -> Any:
        pullback, structured, zero = kept
        arriving = [c for c in cotangents if is_inexact(c)]

        def nothing() -> list[Any]:
            shapes = jax.eval_shape(lambda: list(pullback(arriving)))
            return [jax.numpy.zeros(s.shape, s.dtype) for s in shapes]

        found = jax.lax.cond(zero < 0, nothing, lambda: list(pullback(arriving)))
        return (*structured(found), None)

    call.defvjp(forward, backward)
    return call


def _with_nones(tree: Any, wanted: tuple[bool, ...], found: Any) -> Any:
    supply = iter(found)
    return jax.tree.unflatten(tree, [next(supply) if w else None for w in wanted])


def _recomputed(run: Callable[..., Any]) -> Callable[..., Any]:
    """The array function of an op that runs `run` again for its gradient."""
    if jax.default_backend() == "cpu":
        again = _again_in_a_branch(run)
        return lambda operands, _: again(*operands)
    checkpointed = jax.checkpoint(run)
    return lambda operands, _: checkpointed(*operands[:2])


def _again_in_a_branch(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` whose gradient computes it again in a branch of its own.

    XLA for CPUs drops the barriers of `jax.checkpoint`, and then takes the second run for the first.
    It never merges what stands in a branch with what stands outside.
    """

    @jax.custom_vjp
    def call(arguments: Any, captures: Any, zero: Any) -> Any:
        return run(arguments, captures)

    def forward(arguments: Any, captures: Any, zero: Any) -> Any:
        def nothing() -> Any:
            return [
                jax.numpy.zeros(o.shape, o.dtype) for o in jax.eval_shape(run, arguments, captures)
            ]

        # In a branch too: otherwise what depends on no argument, as random numbers of all blocks, is made at once.
        outputs = jax.lax.cond(zero < 0, nothing, lambda: run(arguments, captures))
        return outputs, (arguments, captures, zero)

    def backward(inputs: Any, cotangents: Any) -> Any:
        leaves, tree = jax.tree.flatten(inputs)
        wanted = tuple(is_inexact(leaf) for leaf in leaves[:-1])
        function, chosen = of_wanted(run, wanted, inputs[:2])
        arriving = [c for c in cotangents if is_inexact(c)]

        def again() -> list[Any]:
            _, pullback, _ = jax.vjp(function, *chosen, has_aux=True)
            return list(pullback(arriving))

        # The branch never taken gives what lies on the devices as the gradients do.
        supply = iter(jax.lax.cond(inputs[2] < 0, lambda: chosen, again))
        gradients = [next(supply) if w else None for w in wanted]
        return jax.tree.unflatten(tree, [*gradients, None])

    call.defvjp(forward, backward)
    return call
