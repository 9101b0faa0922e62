"""Reads of sharded weights in a region: ZeRO 3 gathers the weights of a layer for each pass.

A layer's program gathers its weights before the forward pass and again before the backward pass,
and releases them in between. Only the smallest weights, within the budget of live parameters, remain
gathered during a step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, get_value_shape
from meshflow.distribute.parallel.program import LossProgram, RegionStrategy
from meshflow.distribute.parallel.zero import (
    gather_values,
    resolve_region_sharding,
    select_live_weights,
)
from meshflow.distribute.replicas.shares import BatchShares, GatheredWeight, current_shares

_gather = Op(
    "gather_weight", lambda operands, static: gather_values(static, operands)[0], is_foldable=False
)


@contextlib.contextmanager
def gather_weights_on_read(shares: BatchShares, program: LossProgram) -> Iterator[None]:
    """Gather sharded weights where they are read while the context is open.

    Args:
      shares: Shares that are traced.
      program: The traced program.
    """
    strategy = shares.strategy
    live = {id(v) for v in _select_live_weights(strategy, program)}
    shares.released = {
        id(v)
        for v in program.variables
        if id(v) not in live and resolve_region_sharding(strategy, v).gathers is not None
    }
    # The norms and the codes of gradients need their sums over sequences.
    shares.copies_kernels = not (
        strategy.options.pipeline or strategy.options.compress or program.needs_gradient_norms
    )
    if not shares.released:
        yield
        return
    gathered: dict[tuple[int, int], Tensor] = {}

    def read(variable: Variable) -> Tensor:
        scope: Any = context.trace
        if id(variable) not in shares.released or _is_written(variable, scope):
            return scope.read(variable)
        if shares.in_rematerialized_layer:
            # Programs inside of the layer receive the weight that the layer has gathered.
            is_unit = scope is shares.unit_trace
            return scope.read(shares.get_gathered_weight(variable) if is_unit else variable)
        key = id(scope), id(variable)
        if key not in gathered:
            sharding = resolve_region_sharding(shares.strategy, variable)
            gathered[key] = apply(_gather, (shares.get_local_part(variable),), (sharding,))
        return gathered[key]

    saved, context.override_read = context.override_read, read
    try:
        yield
    finally:
        context.override_read = saved


def _is_written(variable: Variable, scope: Any) -> bool:
    """Check whether a trace or an enclosing one has assigned a variable; its value is that of the full weight then."""
    while scope is not None and id(variable) not in scope.writes:
        scope = scope.parent
    return scope is not None


def _select_live_weights(strategy: RegionStrategy, program: LossProgram) -> list[Variable]:
    """Select the weights that remain gathered during a step: the smallest ones, within the budget."""
    options, variables = strategy.options, list(program.variables)
    needs_full_gradients = options.compress or program.needs_gradient_norms
    if options.zero != 3 or options.pipeline or (needs_full_gradients and not options.recompute):
        # A pipeline gathers the weights of its stages once in a step.
        return variables
    sizes = [math.prod(get_value_shape(v)) for v in variables]
    return [variables[i] for i in select_live_weights(sizes, options.max_live_parameters)]


def make_weight_fetch(
    strategy: RegionStrategy, captures: Sequence[object]
) -> Callable[[list[jax.Array]], list[jax.Array]] | None:
    """Return the function that gathers the weights among the captures of a layer, or None.

    Args:
      strategy: The strategy.
      captures: The captured objects.

    Returns:
      A function from the captured arrays to those with full weights.
    """
    weights = {
        i: c
        for i, c in enumerate(captures)
        if isinstance(c, GatheredWeight) and id(c.variable) in c.shares.released
    }
    if not weights:
        return None
    indices = list(weights)
    shardings = [resolve_region_sharding(strategy, weight) for weight in weights.values()]

    def fetch(values: list[jax.Array]) -> list[jax.Array]:
        full = gather_values(shardings, [values[i] for i in indices])
        supply = dict(zip(indices, full, strict=True))
        return [supply.get(i, value) for i, value in enumerate(values)]

    return fetch


@contextlib.contextmanager
def manual_axes_scope(shares: BatchShares) -> Iterator[None]:
    """Trace programs for one device along the dimensions of the batch, as inside `jax.shard_map`.

    In a pipeline the programs are for one device along all dimensions except those over which rules
    split weights.

    Args:
      shares: Shares that are traced.
    """
    names = _list_manual_axes(shares)
    if not names:
        yield
        return
    mesh = shares.strategy.mesh.jax_mesh.abstract_mesh
    kinds = dict.fromkeys(names, jax.sharding.AxisType.Manual)
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(kinds)):
        yield


def _list_manual_axes(shares: BatchShares) -> tuple[str, ...]:
    strategy = shares.strategy
    if not shares.in_pipeline:
        return shares.axes
    names = strategy.mesh.jax_mesh.axis_names
    return tuple(n for n in names if n not in strategy.rule_dimensions)


def find_shard_map_mesh(strategy: Any) -> jax.sharding.Mesh | None:
    """Return the mesh for a layer's `jax.shard_map`, or None inside another `jax.shard_map`.

    Args:
      strategy: Strategy of the layer's weights.

    Returns:
      The JAX mesh, or None.
    """
    shares = current_shares()
    return None if shares is not None and _list_manual_axes(shares) else strategy.mesh.jax_mesh
