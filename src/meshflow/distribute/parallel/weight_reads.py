"""Reads of sharded weights in a region with activation recomputation.

Each read of a sharded weight is an all-gather inside the layer that uses it, so that recomputing
the layer gathers the weight again instead of keeping the full weight in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.zero import resolve_region_sharding
from meshflow.distribute.replicas.shares import BatchShares, current_shares

__all__ = ["find_shard_map_mesh", "gather_weights_on_read", "manual_axes_scope"]

_gather = Op(
    "gather_weight", lambda operands, static: static[0].gather_value(operands[0]), is_foldable=False
)


@contextlib.contextmanager
def gather_weights_on_read(shares: BatchShares) -> Iterator[None]:
    """Gather sharded weights at each read while the context is open, if layers are recomputed.

    Args:
      shares: Shares that are traced.
    """
    if not shares.recompute or shares.strategy.options.pipeline is not None:
        # A pipeline gathers the weights of its stages once in a step.
        yield
        return
    gathered: dict[tuple[int, int], Tensor] = {}

    def read(variable: Variable) -> Tensor:
        scope: Any = context.trace
        sharding = resolve_region_sharding(shares.strategy, variable)
        if sharding.gathers is None:
            return scope.read(variable)
        key = id(scope), id(variable)
        if key not in gathered:
            gathered[key] = apply(_gather, (shares.get_local_part(variable),), (sharding,))
        return gathered[key]

    saved, context.override_read = context.override_read, read
    try:
        yield
    finally:
        context.override_read = saved


@contextlib.contextmanager
def manual_axes_scope(shares: BatchShares) -> Iterator[None]:
    """Trace programs for one device along the dimensions of the batch, as inside `jax.shard_map`.

    In a pipeline the programs are for one device along all dimensions except those over which rules
    split weights.

    Args:
      shares: Shares that are traced.
    """
    mesh, names = shares.strategy.mesh.jax_mesh.abstract_mesh, _list_manual_axes(shares)
    if not names:
        yield
        return
    kinds = dict.fromkeys(names, jax.sharding.AxisType.Manual)
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(kinds)):
        yield


def _list_manual_axes(shares: BatchShares) -> tuple[str, ...]:
    strategy = shares.strategy
    if strategy.options.pipeline is None:
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
