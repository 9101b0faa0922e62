"""Dispatch of tokens to experts with limited capacity, on one device or several.

Letters in shapes: G groups of S tokens, D features, E experts, C slots of an expert in each group.
If experts are split over devices (expert parallelism), the slots of each expert are exchanged by an
all-to-all; weights of experts are never sent. A step sends 4 * E * C * D * (N - 1) / N elements
from each of N devices with one group each. The module `dropless_experts` has the alternative
without a capacity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.distribute.parallel import expert_routing
from meshflow.distribute.parallel.expert_routing import Router, RoutingStatistics
from meshflow.environment.types import PyTree


@dataclasses.dataclass(frozen=True)
class ExpertSharding:
    """Sharding of tokens and experts over devices.

    Attributes:
      mesh: JAX mesh; None inside a program for one device of it, where its axes are manual.
      tokens: Mesh dimensions that the groups are split over, including those of the experts.
      experts: Mesh dimensions that the experts are split over; empty if each device has all
        experts.
      devices: Number of devices that the groups are split over.
      ragged: Whether the devices can exchange numbers of rows that are values of the program.
    """

    mesh: Any
    tokens: tuple[str, ...]
    experts: tuple[str, ...]
    devices: int
    ragged: bool = False

    def run_sharded(
        self, local: Callable[..., Any], operands: Sequence[Any], specs: PyTree, results: PyTree
    ) -> PyTree:
        """Run a function of one device's parts on all devices.

        Args:
          local: The function.
          operands: Its global operands.
          specs: Partition specs of the operands.
          results: Partition specs of the results.

        Returns:
          The global results.
        """
        if self.mesh is None:
            return local(*operands)
        names = frozenset((*self.tokens, *self.experts))
        mapped = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=results,
            axis_names=names,
            check_vma=False,
        )
        return mapped(*operands)

    @property
    def group_spec(self) -> PartitionSpec:
        """Return the spec of arrays with groups or tokens on the first axis."""
        return PartitionSpec(self.tokens)

    @property
    def expert_spec(self) -> PartitionSpec:
        """Return the spec of arrays [E, slots of all groups, ...]."""
        rest = tuple(name for name in self.tokens if name not in self.experts)
        return PartitionSpec(self.experts or None, rest or None)


def group_tokens(x: jax.Array, groups: int) -> tuple[jax.Array, int]:
    """Split tokens into groups of equal size, padded at the end if necessary.

    Args:
      x: [tokens, ...].
      groups: G.

    Returns:
      [G, S, ...], and the number of padding tokens.
    """
    padding = 0 if groups == 1 else -x.shape[0] % groups
    if padding:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(groups, -1, *x.shape[1:]), padding


def dispatch_tokens(
    x: jax.Array,
    live: jax.Array,
    gate: jax.Array,
    chance: jax.Array | None,
    router: Router,
    groups: int,
    exchange: ExpertSharding | None,
) -> tuple[jax.Array, jax.Array, jax.Array, RoutingStatistics]:
    """Move tokens into the slots of their experts.

    Args:
      x: Tokens [T, D].
      live: bool [T].
      gate: Kernel of the gate, float32 [D, E].
      chance: Uniform random numbers [T], or None.
      router: Rules of routing.
      groups: G; the tokens of a group compete for slots.
      exchange: Sharding of tokens and experts; None on one device.

    Returns:
      Inputs of the experts, [E, G * C, D]; the token of each slot, int32 [G, E, C], and its weight;
      statistics [G].
    """
    (x, _), (live, _) = group_tokens(x, groups), group_tokens(live, groups)
    chances = () if chance is None else (group_tokens(chance, groups)[0],)

    def local(x: jax.Array, live: jax.Array, gate: jax.Array, *chances: jax.Array) -> PyTree:
        slots = jax.vmap(
            lambda *token: _assign_slots(router, *token), in_axes=(0, 0, None, *[0] * len(chances))
        )(x, live, gate, *chances)
        rows = jax.vmap(lambda t, i: t.at[i].get(mode="fill", fill_value=0))(x, slots.tokens)
        # The transpose changes [g, E, C, D] into [E, g * C, D].
        rows = rows.transpose(1, 0, 2, 3).reshape(router.experts, -1, x.shape[-1])
        if exchange is not None and exchange.experts:
            rows = lax.all_to_all(rows, exchange.experts, 0, 1, tiled=True)
        return rows, slots.tokens, slots.weights, slots.statistics

    operands = (x, live, gate, *chances)
    if exchange is None:
        return local(*operands)
    group, expert = exchange.group_spec, exchange.expert_spec
    specs = (group, group, PartitionSpec(), *[group] * len(chances))
    return exchange.run_sharded(local, operands, specs, (expert, group, group, group))


def _assign_slots(
    router: Router,
    x: jax.Array,
    live: jax.Array,
    gate: jax.Array,
    chance: jax.Array | None = None,
) -> expert_routing.ExpertSlots:
    logits = expert_routing.compute_logits(x, gate)
    if not router.choices:
        return expert_routing.choose_tokens(router, logits, live)
    choices = expert_routing.choose_experts(router, logits, live, chance)
    return expert_routing.assign_slots(choices, router.experts, router.count_slots(x.shape[0]))


def combine_results(
    rows: jax.Array,
    tokens: jax.Array,
    weights: jax.Array,
    count: int,
    exchange: ExpertSharding | None,
) -> jax.Array:
    """Return the experts' results to their tokens, weighted and summed in float32.

    Args:
      rows: [E, G * C, D].
      tokens: int32 [G, E, C].
      weights: float32 [G, E, C].
      count: Number of tokens T, without padding.
      exchange: As in `dispatch_tokens`.

    Returns:
      [T, D].
    """
    groups = tokens.shape[0]
    size = -(-count // groups) if groups > 1 else count

    def local(rows: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
        if exchange is not None and exchange.experts:
            rows = lax.all_to_all(rows, exchange.experts, 1, 0, tiled=True)
        here, experts, slots = tokens.shape
        rows = rows.reshape(experts, here, slots, -1).transpose(1, 0, 2, 3)
        return jax.vmap(lambda r, t, w: sum_by_token(r, t, w, size))(rows, tokens, weights)

    if exchange is None:
        results = local(rows, tokens, weights)
    else:
        group = exchange.group_spec
        specs = (exchange.expert_spec, group, group)
        results = exchange.run_sharded(local, (rows, tokens, weights), specs, group)
    return results.reshape(-1, rows.shape[-1])[:count]


def sum_by_token(rows: jax.Array, tokens: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """Sum weighted rows by token: [..., D] to [size, D]."""
    weighted = rows.astype(jnp.promote_types(rows.dtype, jnp.float32)) * weights[..., None]
    zeros = jnp.zeros((size, rows.shape[-1]), weighted.dtype)
    return zeros.at[tokens].add(weighted, mode="drop").astype(rows.dtype)
