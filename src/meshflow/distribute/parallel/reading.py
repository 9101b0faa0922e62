"""Reading weights where they are used: a layer that is computed again brings its weights together again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.parallel.zero import kept_like
from meshflow.distribute.replicas.shares import Shares, current_shares

__all__ = ["manual", "mesh_to_name", "reading_parts"]

_gather = Op(
    "gather_weight", lambda operands, static: static[0].whole(operands[0]), is_foldable=False
)


@contextlib.contextmanager
def reading_parts(shares: Shares) -> Iterator[None]:
    """While it is open, and layers are computed again, a read of a split weight is a gather of its own."""
    if not shares.recompute or shares.strategy.options.pipeline is not None:
        # A pipeline's stages find their weights together.
        yield
        return
    gathered: dict[tuple[int, int], Tensor] = {}

    def read(variable: Any) -> Tensor:
        scope: Any = context.trace
        kept = kept_like(shares.strategy, variable)
        if kept.gathers is None:
            return scope.read(variable)
        key = id(scope), id(variable)
        if key not in gathered:
            gathered[key] = apply(_gather, (shares.local(variable),), (kept,))
        return gathered[key]

    saved, context.reading = context.reading, read
    try:
        yield
    finally:
        context.reading = saved


@contextlib.contextmanager
def manual(shares: Shares) -> Iterator[None]:
    """Programs traced inside are for one device along the dimensions of the batch, as in `jax.shard_map`.

    In a pipeline they are for one device altogether, but for dimensions over which rules split weights.
    """
    mesh, names = shares.strategy.mesh.jax_mesh.abstract_mesh, _manual_names(shares)
    if not names:
        yield
        return
    kinds = dict.fromkeys(names, jax.sharding.AxisType.Manual)
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(kinds)):
        yield


def _manual_names(shares: Shares) -> tuple[str, ...]:
    strategy = shares.strategy
    if strategy.options.pipeline is None:
        return shares.axes
    names = strategy.mesh.jax_mesh.axis_names
    return tuple(n for n in names if n not in strategy.rule_dimensions)


def mesh_to_name(strategy: Any) -> Any:
    """The JAX mesh that a layer names which divides its work itself; None where the program around has one already."""
    shares = current_shares()
    return None if shares is not None and _manual_names(shares) else strategy.mesh.jax_mesh
