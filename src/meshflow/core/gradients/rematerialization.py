"""Rematerialization: `recompute_grad` runs a function again for its gradient to save memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import (
    Op,
    compute_with_pullback,
    is_inexact,
    restrict_to_requested,
)
from meshflow.core.tracing.trace import is_array_like, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import PyTree

__all__ = [
    "OPAQUE_ZERO",
    "HostMemory",
    "ResidualStorage",
    "make_policy_transform",
    "make_recompute_transform",
    "recompute_grad",
    "wrap_traced",
]

# A constant that is always zero. A floating constant is an input of every program, so no compiler
# knows its value. It is the same on all devices, so they take the same branch at the same time.
OPAQUE_ZERO = Tensor(np.zeros([], np.float32))


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Recompute a function for its gradient instead of storing intermediate values.

    Args:
      f: A function of tensors; other arguments (numbers, None, objects) are passed unchanged.

    Returns:
      A function with the same values and gradients, which needs less memory in training.

    Example:
      >>> import meshflow as tf
      >>> f = tf.recompute_grad(lambda x: tf.sin(x) ** 2)
      >>> x = tf.Variable(0.0)
      >>> with tf.GradientTape() as tape:
      ...     y = f(x)
      >>> tape.gradient(y, x).numpy().item()
      0.0
    """
    return wrap_traced(f, make_recompute_transform())


_OpTransform = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_traced(
    f: Callable[..., Any], transform: _OpTransform, has_extra_results: bool = False
) -> Callable[..., Any]:
    """Wrap a function of tensors so that its traced program is transformed.

    Args:
      f: The function.
      transform: Maps the traced array function to the array function of an op with the operands
        arguments, captures and a zero.
      has_extra_results: Whether the function returns a result and a list of tensors that a
        separate, untransformed program computes.
    """

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> PyTree:
        leaves = nest.flatten(args)
        tensors = [leaf for leaf in leaves if is_array_like(leaf)]

        def run_symbolic(*symbolic: Tensor) -> PyTree:
            remaining = iter(symbolic)
            full = [next(remaining) if is_array_like(leaf) else leaf for leaf in leaves]
            return f(*nest.pack_sequence_as(args, full), **kwargs)

        tensors = [convert_to_tensor(t) for t in tensors]
        traced = trace(run_symbolic, tuple(tensors))
        op = Op(
            f"recomputed_{traced.name}", transform(traced.run_on_arrays), heavy=True, is_opaque=True
        )
        outputs = apply(op, (tensors, traced.get_captured_tensors(), OPAQUE_ZERO))
        traced.assign_variables(outputs[traced.num_results :])
        result = traced.rebuild_result(outputs[: traced.num_results])
        indices = [slot.index for slot in traced.structure[1]] if has_extra_results else []
        if not indices:
            return result
        extra = Op(
            f"extra_results_{traced.name}",
            lambda o, _: traced.run_for_results(indices, *o),
            is_opaque=True,
        )
        return result[0], apply(extra, (tensors, traced.get_captured_tensors()))

    return wrapper


class ResidualStorage(Protocol):
    """Storage for residuals, outside of the device's memory, until the backward pass."""

    def store_residuals(
        self, values: Sequence[jax.Array], zero: jax.Array
    ) -> tuple[list[Any], _Restore, jax.Array]:
        """Make a program store values.

        Args:
          values: The values.
          zero: A zero that no compiler knows.

        Returns:
          References to the stored values; a function that restores the values from the references
          and from arrays that must be computed before; and the zero, computed after that.
        """


_Restore = Callable[[Sequence[Any], Sequence[Any]], list[Any]]
# The moved values, the others, and the function that rebuilds the structure from them.
_Stored = tuple[Sequence[Any], Sequence[Any], Callable[..., Any]]


class HostMemory:
    """Residual storage in host memory; on CPUs, which have one memory, nothing is moved."""

    def store_residuals(
        self, values: Sequence[jax.Array], zero: jax.Array
    ) -> tuple[list[Any], _Restore, jax.Array]:
        """Move values to host memory; see `ResidualStorage`."""
        return [jax.device_put(v, jax.memory.Space.Host) for v in values], _restore_from_host, zero


def _restore_from_host(stored: Sequence[Any], _: Sequence[Any]) -> list[Any]:
    return [jax.device_put(v, jax.memory.Space.Device) for v in stored]


def _restore_unchanged(stored: Sequence[Any], _: Sequence[Any]) -> list[Any]:
    return list(stored)


def make_policy_transform(
    policy: Callable[..., Any] | None, storage: ResidualStorage | None = None
) -> _OpTransform:
    """Create a transform for `wrap_traced` with a policy for residuals.

    Args:
      policy: A policy of `jax.checkpoint_policies`; None stores all residuals.
      storage: Storage of residuals other than captures; by default the device's memory.
    """

    def transform(run: Callable[..., Any]) -> Callable[..., Any]:
        checkpointed = run if policy is None else jax.checkpoint(run, policy=policy)
        if storage is not None or jax.default_backend() == "cpu":
            call = _recompute_rest_in_branch(checkpointed, storage)
            return lambda operands, _: call(*operands)
        return lambda operands, _: checkpointed(*operands[:2])

    return transform


def make_recompute_transform(storage: ResidualStorage | None = None) -> _OpTransform:
    """Create a transform for `wrap_traced` that runs a function again for its gradient.

    The arguments are stored in `storage`, by default in the device's memory.
    """

    def transform(run: Callable[..., Any]) -> Callable[..., Any]:
        if storage is not None or jax.default_backend() == "cpu":
            call = _recompute_in_branch(run, storage)
            return lambda operands, _: call(*operands)
        checkpointed = jax.checkpoint(run)
        return lambda operands, _: checkpointed(*operands[:2])

    return transform


def _store_residuals(
    storage: ResidualStorage | None,
    values: Sequence[jax.Array],
    is_moved: Sequence[bool],
    structure: PyTreeDef,
    zero: jax.Array,
) -> tuple[_Stored, jax.Array]:
    """Store some of the leaves of a structure; return arguments of `_restore_residuals` and the zero."""
    moved: Sequence[Any] = [v for v, m in zip(values, is_moved, strict=True) if m]
    unmoved = [v for v, m in zip(values, is_moved, strict=True) if not m]
    restore: _Restore = _restore_unchanged
    if storage is not None and moved:
        moved, restore, zero = storage.store_residuals(moved, zero)
    rebuild = functools.partial(_restore_residuals, structure, tuple(is_moved), restore)
    return (moved, unmoved, jax.tree_util.Partial(rebuild)), zero


def _restore_residuals(
    structure: PyTreeDef,
    is_moved: Sequence[bool],
    restore: _Restore,
    moved: Sequence[Any],
    unmoved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
) -> PyTree:
    # Residuals are restored only after the gradients for which they are needed.
    first = [c.reshape(-1)[:1] for c in cotangents]
    restored, others = iter(restore(moved, first)), iter(unmoved)
    return jax.tree.unflatten(structure, [next(restored) if m else next(others) for m in is_moved])


def _recompute_rest_in_branch(
    run: Callable[..., Any], storage: ResidualStorage | None
) -> Callable[..., Any]:
    """Return a checkpointed function with a gradient that recomputes in a separate branch."""

    @jax.custom_vjp
    def call(arguments: PyTree, captures: PyTree, zero: jax.Array) -> PyTree:
        return run(arguments, captures)

    def forward(arguments: PyTree, captures: PyTree, zero: jax.Array) -> tuple[PyTree, PyTree]:
        leaves, tree = jax.tree.flatten((arguments, captures))
        requested = tuple(is_inexact(leaf) for leaf in leaves)
        # It is traced once, so that both branches return the same structure with its programs.
        first = functools.partial(compute_with_pullback, run, requested)
        program, shapes = jax.make_jaxpr(first, return_shape=True)(arguments, captures)
        flat, structure = jax.tree.flatten(shapes)
        values = _run_in_branch(
            zero,
            lambda: [jax.numpy.zeros(s.shape, s.dtype) for s in flat],
            lambda: jex_core.jaxpr_as_fun(program)(*leaves),
        )
        outputs, pullback = jax.tree.unflatten(structure, values)
        residuals, pullback_structure = jax.tree.flatten(pullback)
        # Captures are mostly weights, which exist until the backward pass anyway.
        captured = set(program.jaxpr.invars[len(jax.tree.leaves(arguments)) :])
        atoms = program.jaxpr.outvars[len(flat) - len(residuals) :]
        is_moved = [
            isinstance(atom, jex_core.Var) and atom not in captured and is_inexact(value)
            for atom, value in zip(atoms, residuals, strict=True)
        ]
        stored, zero = _store_residuals(storage, residuals, is_moved, pullback_structure, zero)
        insert_nones = jax.tree_util.Partial(functools.partial(_insert_nones, tree, requested))
        return outputs, (stored, insert_nones, zero)

    def backward(residuals: PyTree, cotangents: Sequence[jax.Array]) -> tuple[PyTree, ...]:
        (moved, unmoved, rebuild), insert_nones, zero = residuals
        cotangents = [c for c in cotangents if is_inexact(c)]
        pullback = rebuild(moved, unmoved, cotangents)

        def make_zeros() -> list[jax.Array]:
            shapes = jax.eval_shape(lambda: list(pullback(cotangents)))
            return [jax.numpy.zeros(s.shape, s.dtype) for s in shapes]

        gradients = _run_in_branch(zero, make_zeros, lambda: list(pullback(cotangents)))
        return (*insert_nones(gradients), None)

    call.defvjp(forward, backward)
    return call


def _run_in_branch(
    zero: jax.Array, unused: Callable[[], PyTree], compute: Callable[[], PyTree]
) -> PyTree:
    """Run `compute`, on CPUs in a branch of its own.

    XLA for CPUs removes the barriers of `jax.checkpoint` and then merges the second run with the
    first. It never merges computations inside of a branch with those outside.
    """
    if jax.default_backend() != "cpu":
        return compute()
    return jax.lax.cond(zero < 0, unused, compute)


def _insert_nones(tree: PyTreeDef, requested: tuple[bool, ...], values: Sequence[Any]) -> PyTree:
    remaining = iter(values)
    return jax.tree.unflatten(tree, [next(remaining) if r else None for r in requested])


def _recompute_in_branch(
    run: Callable[..., Any], storage: ResidualStorage | None
) -> Callable[..., Any]:
    """Return a function with a gradient that runs it again in a separate branch."""

    @jax.custom_vjp
    def call(arguments: PyTree, captures: PyTree, zero: jax.Array) -> PyTree:
        return run(arguments, captures)

    def forward(arguments: PyTree, captures: PyTree, zero: jax.Array) -> tuple[PyTree, PyTree]:
        def make_zeros() -> list[jax.Array]:
            return [
                jax.numpy.zeros(o.shape, o.dtype) for o in jax.eval_shape(run, arguments, captures)
            ]

        values, structure = jax.tree.flatten(arguments)
        stored, zero = _store_residuals(
            storage, values, [is_inexact(v) for v in values], structure, zero
        )
        # The branch delays values that depend on no argument, such as random numbers: without it, XLA
        # would compute those of all blocks at once.
        outputs = _run_in_branch(zero, make_zeros, lambda: run(arguments, captures))
        return outputs, (stored, captures, zero)

    def backward(residuals: PyTree, cotangents: Sequence[jax.Array]) -> PyTree:
        (moved, unmoved, rebuild), captures, zero = residuals
        cotangents = [c for c in cotangents if is_inexact(c)]
        inputs = rebuild(moved, unmoved, cotangents), captures, zero
        leaves, tree = jax.tree.flatten(inputs)
        requested = tuple(is_inexact(leaf) for leaf in leaves[:-1])
        function, operands = restrict_to_requested(run, requested, inputs[:2])

        def recompute() -> list[jax.Array]:
            _, pullback, _ = jax.vjp(function, *operands, has_aux=True)
            return list(pullback(cotangents))

        # The branch that is never taken returns values with the sharding of the gradients.
        remaining = iter(_run_in_branch(zero, lambda: operands, recompute))
        gradients = [next(remaining) if r else None for r in requested]
        return jax.tree.unflatten(tree, [*gradients, None])

    call.defvjp(forward, backward)
    return call
