"""Rematerialization: `recompute_grad` runs a function again for its gradient to save memory."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import (
    Op,
    compute_with_pullback,
    is_inexact,
    restrict_to_requested,
)
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import is_array_like, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import JaxprEqn, PyTree, Var
from meshflow.passes.jaxprs import extract_program, inline_calls, select_variables

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
      >>> f = tf.recompute_grad(lambda x: tf.sin(x) ** 2)
      >>> x = tf.Variable(0.0)
      >>> with tf.GradientTape() as tape:
      ...     y = f(x)
      >>> tape.gradient(y, x).numpy().item()
      0.0
    """
    return wrap_traced(f, make_recompute_transform())


# Function from the captures of a program, as arrays, to those with fetched values, such as gathered
# weights.
_Fetch = Callable[[list[jax.Array]], list[jax.Array]]
_OpTransform = Callable[[Callable[..., Any], "_Fetch | None"], Callable[..., Any]]


class FetchChain:
    """Zeros by which functions that fetch values wait for each other.

    The zero that a function returns exists as soon as its arguments do. The next function fetches
    when it receives this zero, so that it neither waits for the result of the first function nor
    fetches earlier. In the backward pass the cotangents of the zeros have the same effect.
    """

    def __init__(self) -> None:
        self._last: tuple[object, Tensor] = None, OPAQUE_ZERO

    def get_zero(self) -> Tensor:
        """Return the zero of the last function in this trace."""
        scope, zero = self._last
        return zero if scope is context.trace else OPAQUE_ZERO

    def append(self, zero: Tensor) -> None:
        """Add a function that returned a zero."""
        self._last = context.trace, zero


def wrap_traced(
    f: Callable[..., Any],
    transform: _OpTransform,
    has_extra_results: bool = False,
    make_fetch: Callable[[Sequence[object]], _Fetch | None] = lambda captures: None,
    chain: FetchChain | None = None,
) -> Callable[..., Any]:
    """Wrap a function of tensors so that its traced program is transformed.

    Args:
      f: The function.
      transform: Maps the traced array function, and the function that fetches its captures, to the
        array function of an op with the operands arguments, captures and a zero.
      has_extra_results: Whether the function returns a result and a list of tensors that a
        separate, untransformed program computes.
      make_fetch: Maps the captured objects to the function that fetches their values, or to None.
      chain: Order in which functions fetch; None if only one does.
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
        fetch = make_fetch(traced.captures)
        run = transform(traced.run_on_arrays, fetch)
        op = Op(f"recomputed_{traced.name}", run, heavy=True, is_opaque=True)
        zero = OPAQUE_ZERO if chain is None else chain.get_zero()
        outputs = apply(op, (tensors, traced.get_captured_tensors(), zero))
        end = traced.num_results + len(traced.writes)
        if chain is not None and len(outputs) > end:
            chain.append(outputs[end])
        traced.assign_variables(outputs[traced.num_results : end])
        result = traced.rebuild_result(outputs[: traced.num_results])
        indices = [slot.index for slot in traced.structure[1]] if has_extra_results else []
        if not indices:
            return result
        extra = Op(
            f"extra_results_{traced.name}",
            lambda o, _: traced.run_for_results(indices, o[0], fetch(o[1]) if fetch else o[1]),
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
    policy: Callable[..., Any] | None,
    storage: ResidualStorage | None = None,
    prefetch_size: int = 0,
) -> _OpTransform:
    """Create a transform for `wrap_traced` with a policy for residuals.

    Fetched captures, and values that follow from these alone, are no residuals: they are fetched
    and computed again in the backward pass.

    Args:
      policy: A policy of `jax.checkpoint_policies`; None stores all residuals.
      storage: Storage of residuals other than captures; by default the device's memory.
      prefetch_size: Number of elements up to which captures are fetched while the previous function
        of a `FetchChain` runs. The result of a program with fetched captures has one more element, the
        zero of this chain.
    """

    def transform(run: Callable[..., Any], fetch: _Fetch | None = None) -> Callable[..., Any]:
        checkpointed = run if policy is None else jax.checkpoint(run, policy=policy)
        has_barrier = policy is not None and jax.default_backend() == "cpu"
        if storage is not None or fetch is not None or has_barrier:
            call = _recompute_rest_in_branch(checkpointed, storage, fetch, prefetch_size)
            return lambda operands, _: call(*operands)
        return lambda operands, _: checkpointed(*operands[:2])

    return transform


def make_recompute_transform(storage: ResidualStorage | None = None) -> _OpTransform:
    """Create a transform for `wrap_traced` that runs a function again for its gradient.

    The arguments are stored in `storage`, by default in the device's memory.
    """

    def transform(run: Callable[..., Any], fetch: _Fetch | None = None) -> Callable[..., Any]:
        if storage is not None or jax.default_backend() == "cpu":
            call = _recompute_in_branch(run, storage, fetch)
            return lambda operands, _: call(*operands)
        checkpointed = jax.checkpoint(_combine(run, fetch))
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
    run: Callable[..., Any],
    storage: ResidualStorage | None,
    fetch: _Fetch | None,
    prefetch_size: int,
) -> Callable[..., Any]:
    """Return a checkpointed function with a gradient that recomputes in a separate branch."""
    fetch_all = fetch or (lambda captures: captures)

    @jax.custom_vjp
    def call(arguments: PyTree, captures: list[jax.Array], zero: jax.Array) -> PyTree:
        return [*run(arguments, fetch_all(captures)), *([zero] if fetch else [])]

    def forward(
        arguments: PyTree, captures: list[jax.Array], zero: jax.Array
    ) -> tuple[PyTree, PyTree]:
        fetched = jax.eval_shape(fetch_all, captures)
        leaves, tree = jax.tree.flatten((arguments, fetched))
        first_zero, prefetches = zero, True
        if fetch is not None:
            pairs = zip(fetched, captures, strict=True)
            prefetches = sum(f.size for f, c in pairs if f.shape != c.shape) <= prefetch_size
            inputs = jax.tree.leaves(arguments)
            captures, _ = _order(captures, [zero] if prefetches else inputs)
            (first_zero,), _ = _order([zero], inputs)
        requested = tuple(is_inexact(leaf) for leaf in leaves)
        # It is traced once, so that both branches return the same structure with its programs.
        first = functools.partial(compute_with_pullback, run, requested)
        program, shapes = jax.make_jaxpr(first, return_shape=True)(arguments, fetched)
        outputs, structure = jax.tree.structure(shapes[0]), jax.tree.structure(shapes[1])
        count = len(jax.tree.leaves(shapes[0]))
        atoms = program.jaxpr.outvars
        captured = program.jaxpr.invars[len(leaves) - len(fetched) :]
        # States of random generators are integers; random numbers are stored.
        sources = [v for v in captured if is_inexact(v.aval)] if fetch else []
        derived = _DerivedValues.find(program, sources, count)
        kept = [i for i in range(len(atoms)) if i - count not in derived.indices]

        def compute() -> list[jax.Array]:
            operands = *jax.tree.leaves(arguments), *fetch_all(captures)
            results = jex_core.jaxpr_as_fun(program)(*operands)
            return [results[i] for i in kept]

        avals = [program.out_avals[i] for i in kept]
        values = _run_in_branch(zero, lambda: [jnp.zeros(a.shape, a.dtype) for a in avals], compute)
        # Captures are mostly weights, which exist until the backward pass anyway.
        is_moved = [
            isinstance(atoms[i], jex_core.Var) and atoms[i] not in captured and is_inexact(value)
            for i, value in zip(kept[count:], values[count:], strict=True)
        ]
        residuals, residuals_structure = values[count:], jax.tree.structure(values[count:])
        stored, zero = _store_residuals(storage, residuals, is_moved, residuals_structure, zero)
        rest = functools.partial(_pull_back, fetch, prefetches, derived, structure, tree, requested)
        results = [*jax.tree.unflatten(outputs, values[:count]), *([first_zero] if fetch else [])]
        return results, (stored, captures if fetch else [], jax.tree_util.Partial(rest), zero)

    def backward(residuals: PyTree, cotangents: Sequence[jax.Array]) -> tuple[PyTree, ...]:
        (moved, unmoved, rebuild), captures, pull_back, zero = residuals
        cotangents = [c for c in cotangents if is_inexact(c)]
        kept = rebuild(moved, unmoved, cotangents)
        return pull_back(kept, captures, cotangents, zero)

    call.defvjp(forward, backward)
    return call


@dataclasses.dataclass(frozen=True)
class _DerivedValues:
    """Residuals in a program that follow only from some of its inputs.

    Attributes:
      indices: Indices of these among the residuals, which are the program's last results.
      program: Program from the inputs to the results.
    """

    indices: tuple[int, ...]
    program: jex_core.ClosedJaxpr

    @classmethod
    def find(
        cls, closed: jex_core.ClosedJaxpr, inputs: Sequence[Var], start: int
    ) -> _DerivedValues:
        """Find the residuals, which are the results from an index on."""
        derived, eqns = {*inputs}, []
        for eqn in closed.jaxpr.eqns if inputs else ():
            read = set(select_variables(eqn.invars)) - {*closed.jaxpr.constvars}
            if read <= derived and not eqn.effects:
                derived.update(eqn.outvars)
                eqns.append(eqn)
        atoms = closed.jaxpr.outvars
        indices = [
            i
            for i in range(start, len(atoms))
            if not isinstance(atoms[i], jex_core.Literal) and atoms[i] in derived
        ]
        outputs = [atoms[i] for i in indices]
        program = extract_program(closed, inputs, outputs, eqns)
        return cls(tuple(i - start for i in indices), program)


def _order(
    values: list[jax.Array], earlier: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return values that exist after others, and the others; XLA for CPUs ignores the order."""
    return jax.lax.optimization_barrier((values, list(earlier)))


def _pull_back(
    fetch: _Fetch | None,
    prefetches: bool,
    derived: _DerivedValues,
    structure: PyTreeDef,
    tree: PyTreeDef,
    requested: tuple[bool, ...],
    kept: list[jax.Array],
    captures: list[jax.Array],
    cotangents: list[jax.Array],
    zero: jax.Array,
) -> PyTree:
    """Compute the gradients of the arguments, the captures and the zero of a function.

    Args:
      fetch: Function that fetches the captures, or None.
      prefetches: Whether to fetch when the zero's cotangent exists, before those of the results.
      derived: Residuals that follow from the fetched captures.
      structure: Structure of the pullback of the function.
      tree: Structure of arguments and captures.
      requested: For each leaf of `tree`, whether it has a gradient.
      kept: The other residuals.
      captures: The captures; empty without `fetch`.
      cotangents: Cotangents of the inexact results, and with `fetch` of the zero.
      zero: A zero that no compiler knows.
    """

    def run(compute: Callable[[], list[jax.Array]]) -> list[jax.Array]:
        make_zeros = lambda: [jnp.zeros(s.shape, s.dtype) for s in jax.eval_shape(compute)]
        return _run_in_branch(zero, make_zeros, compute)

    if fetch is None:
        pullback = jax.tree.unflatten(structure, kept)
        return (*_insert_nones(tree, requested, run(lambda: list(pullback(cotangents)))), None)
    # Without an order XLA would keep the values that were fetched for the forward pass.
    captures, _ = _order(captures, cotangents[-1:] if prefetches else cotangents)
    (of_zero,), cotangents = _order([jnp.zeros_like(zero)], cotangents[:-1])
    has_gradient = requested[len(requested) - len(captures) :]

    def pull_back(kept: list[Any], cotangents: list[Any], values: list[Any]) -> list[Any]:
        leaves = list(kept)
        for i, value in zip(derived.indices, values, strict=True):
            leaves.insert(i, value)
        return list(jax.tree.unflatten(structure, leaves)(cotangents))

    def derive(values: list[jax.Array]) -> list[jax.Array]:
        sources = [v for v, r in zip(values, has_gradient, strict=True) if r]
        return jex_core.jaxpr_as_fun(derived.program)(*sources)

    avals = derived.program.out_avals
    backward = _SplitPullback.create(pull_back, kept, cotangents, avals, sum(has_gradient))
    operands = *kept, *cotangents
    results = backward.run(fetch, derive, captures, has_gradient, operands, zero)
    return (*_insert_nones(tree, requested, results), of_zero)


@dataclasses.dataclass(frozen=True)
class _SplitPullback:
    """A pullback as two programs, of which the second does not read fetched values.

    Attributes:
      first: Program from kept residuals, cotangents and derived residuals to the gradients of
        arguments and to the values that the second program needs.
      second: Program from kept residuals, cotangents and these values to the gradients of fetched
        values.
      num_needed: Number of these values.
    """

    first: jex_core.ClosedJaxpr
    second: jex_core.ClosedJaxpr
    num_needed: int

    @classmethod
    def create(
        cls,
        pull_back: Callable[[list[Any], list[Any], list[Any]], list[Any]],
        kept: list[jax.Array],
        cotangents: list[jax.Array],
        values: Sequence[Any],
        num_fetched: int,
    ) -> _SplitPullback:
        """Trace a pullback and split its program; the last results are those of fetched values.

        Args:
          pull_back: Function of the kept residuals, the cotangents and the derived residuals.
          kept: Kept residuals.
          cotangents: Cotangents.
          values: Shapes and dtypes of the derived residuals.
          num_fetched: Number of fetched values that have a gradient.
        """
        avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
        closed = inline_calls(jax.make_jaxpr(pull_back)(kept, cotangents, avals))
        jaxpr = closed.jaxpr
        count = len(jaxpr.invars) - len(avals)
        inputs, fetched = jaxpr.invars[:count], {*jaxpr.invars[count:]}
        end = len(jaxpr.outvars) - num_fetched
        pending = {*select_variables(jaxpr.outvars[:end])}
        late: list[JaxprEqn] = []
        for eqn in reversed(jaxpr.eqns):
            read = select_variables(eqn.invars)
            if eqn.effects or not pending.isdisjoint(eqn.outvars) or not fetched.isdisjoint(read):
                pending.update(read)
            else:
                late.insert(0, eqn)
        made = {v for eqn in late for v in eqn.outvars}
        gradients = jaxpr.outvars[end:]
        late_inputs = dict.fromkeys(
            v for atoms in (*(e.invars for e in late), gradients) for v in select_variables(atoms)
        )
        known = made | {*inputs, *jaxpr.constvars}
        needed = [v for v in late_inputs if v not in known]
        early = [eqn for eqn in jaxpr.eqns if made.isdisjoint(eqn.outvars)]
        first = extract_program(closed, jaxpr.invars, [*jaxpr.outvars[:end], *needed], early)
        return cls(first, extract_program(closed, [*inputs, *needed], gradients, late), len(needed))

    @property
    def needed_bytes(self) -> int:
        """Return the bytes of the values that the second program needs."""
        avals = self.first.out_avals
        return sum(a.size * a.dtype.itemsize for a in avals[len(avals) - self.num_needed :])

    def run(
        self,
        fetch: _Fetch,
        derive: _Fetch,
        captures: list[jax.Array],
        has_gradient: tuple[bool, ...],
        operands: Sequence[jax.Array],
        zero: jax.Array,
        limit: float = math.inf,
    ) -> list[jax.Array]:
        """Return the gradients of the arguments, and those of the captures.

        Args:
          fetch: Function that fetches the captures.
          derive: Function from the fetched values to the derived residuals.
          captures: The captures.
          has_gradient: For each capture whether it has a gradient.
          operands: Kept residuals and cotangents.
          zero: A zero that no compiler knows.
          limit: Bytes of needed values above which both programs run together.
        """

        def compute_first() -> list[jax.Array]:
            return jex_core.jaxpr_as_fun(self.first)(*operands, *derive(fetch(captures)))

        def compute_second(needed: list[jax.Array]) -> list[jax.Array]:
            gradients = jex_core.jaxpr_as_fun(self.second)(*operands, *needed)
            _, release = compute_with_pullback(fetch, has_gradient, captures)
            return list(release(gradients))

        def compute_both() -> list[jax.Array]:
            results = compute_first()
            return [*results[:count], *compute_second(results[count:])]

        def make_zeros() -> list[jax.Array]:
            return [jnp.zeros(a.shape, a.dtype) for a in self.first.out_avals]

        count = len(self.first.out_avals) - self.num_needed
        # The branch that is never taken returns values with the sharding of the gradients.
        unused = [c for c, r in zip(captures, has_gradient, strict=True) if r]
        if self.needed_bytes > limit:
            return _run_in_branch(zero, lambda: [*make_zeros()[:count], *unused], compute_both)
        results = _run_in_branch(zero, make_zeros, compute_first)
        second = lambda: compute_second(results[count:])
        return [*results[:count], *_run_in_branch(zero, lambda: unused, second)]


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


def _combine(run: Callable[..., Any], fetch: _Fetch | None) -> Callable[..., Any]:
    """Return a function that fetches its captures and runs `run`."""
    return run if fetch is None else lambda arguments, captures: run(arguments, fetch(captures))


def _recompute_in_branch(
    run: Callable[..., Any], storage: ResidualStorage | None, fetch: _Fetch | None
) -> Callable[..., Any]:
    """Return a function with a gradient that fetches captures and runs it again in a separate branch."""
    fetch_and_run = _combine(run, fetch)

    @jax.custom_vjp
    def call(arguments: PyTree, captures: PyTree, zero: jax.Array) -> PyTree:
        return fetch_and_run(arguments, captures)

    def forward(arguments: PyTree, captures: PyTree, zero: jax.Array) -> tuple[PyTree, PyTree]:
        def make_zeros() -> list[jax.Array]:
            outputs = jax.eval_shape(fetch_and_run, arguments, captures)
            return [jnp.zeros(o.shape, o.dtype) for o in outputs]

        values, structure = jax.tree.flatten(arguments)
        stored, zero = _store_residuals(
            storage, values, [is_inexact(v) for v in values], structure, zero
        )
        # The branch delays values that depend on no argument, such as random numbers: without it, XLA
        # would compute those of all blocks at once.
        outputs = _run_in_branch(zero, make_zeros, lambda: fetch_and_run(arguments, captures))
        return outputs, (stored, captures, zero)

    def backward(residuals: PyTree, cotangents: Sequence[jax.Array]) -> PyTree:
        (moved, unmoved, rebuild), captures, zero = residuals
        cotangents = [c for c in cotangents if is_inexact(c)]
        inputs = rebuild(moved, unmoved, cotangents), captures, zero
        leaves, tree = jax.tree.flatten(inputs)
        requested = tuple(is_inexact(leaf) for leaf in leaves[:-1])
        if fetch is not None:
            return _pull_back_recomputed(
                run, fetch, tree, requested, inputs[0], captures, cotangents, zero
            )
        function, operands = restrict_to_requested(fetch_and_run, requested, inputs[:2])

        def recompute() -> list[jax.Array]:
            _, pullback, _ = jax.vjp(function, *operands, has_aux=True)
            return list(pullback(cotangents))

        # The branch that is never taken returns values with the sharding of the gradients.
        remaining = iter(_run_in_branch(zero, lambda: operands, recompute))
        gradients = [next(remaining) if r else None for r in requested]
        return jax.tree.unflatten(tree, [*gradients, None])

    call.defvjp(forward, backward)
    return call


def _pull_back_recomputed(
    run: Callable[..., Any],
    fetch: _Fetch,
    tree: PyTreeDef,
    requested: tuple[bool, ...],
    arguments: PyTree,
    captures: list[jax.Array],
    cotangents: list[jax.Array],
    zero: jax.Array,
) -> PyTree:
    """Run a function of fetched captures again, and return its gradients.

    The fetched captures are released before their gradients are computed, if they are larger than the
    values that must be kept for this.
    """
    leaves, structure = jax.tree.flatten(arguments)

    def pull_back(leaves: list[Any], cotangents: list[Any], values: list[Any]) -> list[Any]:
        operands = jax.tree.unflatten(structure, leaves), values
        function, chosen = restrict_to_requested(run, requested, operands)
        _, pullback, _ = jax.vjp(function, *chosen, has_aux=True)
        return list(pullback(cotangents))

    fetched = jax.eval_shape(fetch, captures)
    has_gradient = requested[len(requested) - len(captures) :]
    backward = _SplitPullback.create(pull_back, leaves, cotangents, fetched, sum(has_gradient))
    pairs = zip(fetched, captures, strict=True)
    gathered = sum(f.size * f.dtype.itemsize for f, c in pairs if f.shape != c.shape)
    operands = *leaves, *cotangents
    results = backward.run(fetch, list, captures, has_gradient, operands, zero, gathered)
    return _insert_nones(tree, (*requested, False), results)
