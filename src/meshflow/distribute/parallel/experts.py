"""Tokens sent to experts and back, on one device or many: pure functions of arrays.

Letters in shapes: G groups of S tokens, D features, E experts, C slots of an expert in each group. With experts split
over devices the slots of each expert travel to its device and back (`all_to_all`); weights of experts never do.
A step sends 4 * E * C * D * (N - 1) / N elements from each of N devices that have one group each. `dropless` is the
other way: as many slots as choices.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.distribute.parallel import routing
from meshflow.distribute.parallel.routing import Router, Statistics

__all__ = ["Exchange", "collect", "dispatch", "grouped", "summed"]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Where tokens and experts lie.

    Attributes:
      mesh: a JAX mesh; None inside a program of one device of it, whose axes are known.
      tokens: the mesh dimensions that the groups are split over, those of the experts among them.
      experts: the mesh dimensions that the experts are split over; none where each device has all.
      devices: over how many devices the groups are split.
      ragged: whether the devices can exchange numbers of rows that only the running program knows.
    """

    mesh: Any
    tokens: tuple[str, ...]
    experts: tuple[str, ...]
    devices: int
    ragged: bool = False

    def run(self, local: Any, operands: Any, specs: Any, results: Any) -> Any:
        """Runs a function of one device's parts on all devices.

        Args:
          local: the function.
          operands: its operands, whole.
          specs: their partition specs.
          results: those of its results.
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
    def by_group(self) -> PartitionSpec:
        """Of arrays whose first axis is that of groups or tokens."""
        return PartitionSpec(self.tokens)

    @property
    def by_expert(self) -> PartitionSpec:
        """Of arrays [E, slots of all groups, ...]."""
        rest = tuple(name for name in self.tokens if name not in self.experts)
        return PartitionSpec(self.experts or None, rest or None)


def grouped(x: Any, groups: int) -> tuple[Any, Any]:
    """Tokens in groups of one size, with padding at the end where they do not divide.

    Args:
      x: [tokens, ...].
      groups: G.

    Returns:
      [G, S, ...], and how many tokens are padding.
    """
    more = 0 if groups == 1 else -x.shape[0] % groups
    if more:
        x = jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(groups, -1, *x.shape[1:]), more


def dispatch(
    x: Any,
    live: Any,
    gate: Any,
    chance: Any,
    router: Router,
    groups: int,
    exchange: Exchange | None,
) -> tuple[Any, Any, Any, Statistics]:
    """The tokens in the slots of their experts.

    Args:
      x: tokens [T, D].
      live: bool [T].
      gate: the gate's kernel, float32 [D, E].
      chance: uniform numbers [T], or None.
      router: who goes where.
      groups: G; tokens of a group compete for slots.
      exchange: where tokens and experts lie; None on one device.

    Returns:
      What experts get, [E, G * C, D]; the token of each slot, int32 [G, E, C], and its weight; statistics [G].
    """
    (x, _), (live, _) = grouped(x, groups), grouped(live, groups)
    chances = () if chance is None else (grouped(chance, groups)[0],)

    def local(x: Any, live: Any, gate: Any, *chances: Any) -> Any:
        slots = jax.vmap(
            lambda *one: _slots(router, *one), in_axes=(0, 0, None, *[0] * len(chances))
        )(x, live, gate, *chances)
        rows = jax.vmap(lambda t, at: t.at[at].get(mode="fill", fill_value=0))(x, slots.tokens)
        # [g, E, C, D] to [E, g * C, D].
        rows = rows.transpose(1, 0, 2, 3).reshape(router.experts, -1, x.shape[-1])
        if exchange is not None and exchange.experts:
            rows = lax.all_to_all(rows, exchange.experts, 0, 1, tiled=True)
        return rows, slots.tokens, slots.weights, slots.statistics

    operands = (x, live, gate, *chances)
    if exchange is None:
        return local(*operands)
    group, expert = exchange.by_group, exchange.by_expert
    specs = (group, group, PartitionSpec(), *[group] * len(chances))
    return exchange.run(local, operands, specs, (expert, group, group, group))


def _slots(router: Router, x: Any, live: Any, gate: Any, chance: Any = None) -> routing.Slots:
    logits = routing.logits_of(x, gate)
    if not router.choices:
        return routing.of_experts(router, logits, live)
    choices = routing.choose(router, logits, live, chance)
    return routing.in_slots(choices, router.experts, router.slots(x.shape[0]))


def collect(rows: Any, tokens: Any, weights: Any, count: Any, exchange: Exchange | None) -> Any:
    """The experts' results back at their tokens, weighted and summed in float32.

    Args:
      rows: [E, G * C, D].
      tokens: int32 [G, E, C].
      weights: float32 [G, E, C].
      count: number of tokens T, without padding.
      exchange: as in `dispatch`.

    Returns:
      [T, D].
    """
    groups = tokens.shape[0]
    size = -(-count // groups) if groups > 1 else count

    def local(rows: Any, tokens: Any, weights: Any) -> Any:
        if exchange is not None and exchange.experts:
            rows = lax.all_to_all(rows, exchange.experts, 1, 0, tiled=True)
        here, experts, slots = tokens.shape
        rows = rows.reshape(experts, here, slots, -1).transpose(1, 0, 2, 3)
        return jax.vmap(lambda r, t, w: summed(r, t, w, size))(rows, tokens, weights)

    if exchange is None:
        found = local(rows, tokens, weights)
    else:
        group = exchange.by_group
        specs = (exchange.by_expert, group, group)
        found = exchange.run(local, (rows, tokens, weights), specs, group)
    return found.reshape(-1, rows.shape[-1])[:count]


def summed(rows: Any, tokens: Any, weights: Any, size: Any) -> Any:
    """Weighted rows added up at their tokens: [..., D] to [size, D]."""
    weighted = rows.astype(jnp.promote_types(rows.dtype, jnp.float32)) * weights[..., None]
    zeros = jnp.zeros((size, rows.shape[-1]), weighted.dtype)
    return zeros.at[tokens].add(weighted, mode="drop").astype(rows.dtype)
