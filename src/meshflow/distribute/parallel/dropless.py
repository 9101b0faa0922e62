"""Experts without a limit: every choice is computed, sorted by expert, by grouped products.

Letters in shapes: S tokens of a device, k choices of each, D features, E experts, N devices that experts are split
over. Sizes are known when the program runs only, so a device has room for all N * S * k rows that may come. GPUs and
TPUs send the rows that there are (`ragged_all_to_all`); CPUs, which have no such exchange, send the room.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.distribute.parallel import routing
from meshflow.distribute.parallel.experts import Exchange, grouped, summed
from meshflow.distribute.parallel.routing import Router, Statistics

__all__ = ["Turn", "collect", "dispatch", "product"]


class Turn(NamedTuple):
    """How rows came to be in their order, on each device.

    Attributes:
      tokens: int32 [G, S * k], the token of each sorted choice, S behind the last.
      weights: float32 [G, S * k].
      sizes: int32 [G, experts of a device], rows of each expert that is here.
      order: int32 [G, rows], where the rows that came have gone; empty on one device.
      counts: int32 [G, 2, N], rows sent to and received from each device; empty on one device.
    """

    tokens: Any
    weights: Any
    sizes: Any
    order: Any
    counts: Any


def dispatch(
    x: Any, live: Any, gate: Any, router: Router, groups: int, exchange: Exchange | None
) -> tuple[Any, Turn, Statistics]:
    """The choices of all tokens, sorted by expert.

    Args:
      x: tokens [T, D].
      live: bool [T].
      gate: the gate's kernel, float32 [D, E].
      router: who goes where; without a capacity.
      groups: in how many groups of tokens experts are to be balanced.
      exchange: where tokens and experts lie; None on one device.

    Returns:
      What experts get, [G, rows, D] with an expert's rows together, where G is the number of devices; how they came
      there; statistics [groups].
    """
    (x, _), (live, _) = grouped(x, groups), grouped(live, groups)

    def local(x: Any, live: Any, gate: Any) -> Any:
        logits = routing.logits_of(x, gate)
        choices = jax.vmap(lambda *one: routing.choose(router, *one))(logits, live)
        merged = [a.reshape(-1, router.choices) for a in choices[:3]]
        tokens, weights, sizes = routing.in_turn(
            choices._replace(experts=merged[0], weights=merged[1], taken=merged[2]), router.experts
        )
        rows = x.reshape(-1, x.shape[-1]).at[tokens].get(mode="fill", fill_value=0)
        order = counts = jnp.zeros((0,), jnp.int32)
        if exchange is not None and exchange.experts:
            rows, sizes, order, counts = _sent(rows, sizes, exchange)
        turn = Turn(tokens, weights, sizes, order, counts)
        return *jax.tree.map(lambda a: a[None], (rows, turn)), choices.statistics

    if exchange is None:
        return local(x, live, gate)
    group = exchange.by_group
    return exchange.run(local, (x, live, gate), (group, group, PartitionSpec()), group)


def product(rows: Any, kernel: Any, bias: Any, sizes: Any, exchange: Exchange | None) -> Any:
    """Each expert's rows times its kernel, plus its bias.

    Args:
      rows: [G, rows, D].
      kernel: [E, D, H].
      bias: [E, H], or None.
      sizes: int32 [G, experts of a device].
      exchange: as in `dispatch`.
    """

    def local(rows: Any, sizes: Any, kernel: Any, *bias: Any) -> Any:
        here = rows[0].shape[0]
        of = _expert_of(sizes[0], here)
        filled = (of < kernel.shape[0])[:, None]
        results = lax.ragged_dot(rows[0], kernel, sizes[0])
        for one in bias:
            results = results + one.at[of].get(mode="fill", fill_value=0)
        return jnp.where(filled, results, 0)[None]

    operands = (rows, sizes, kernel) if bias is None else (rows, sizes, kernel, bias)
    if exchange is None:
        return local(*operands)
    group, expert = exchange.by_group, PartitionSpec(exchange.experts or None)
    specs = (group, group, *[expert] * (len(operands) - 2))
    return exchange.run(local, operands, specs, group)


def collect(rows: Any, turn: Turn, count: Any, choices: int, exchange: Exchange | None) -> Any:
    """The results back at their tokens, weighted and summed.

    Args:
      rows: [G, rows, D].
      turn: how they came there.
      count: number of tokens T.
      choices: k.
      exchange: as in `dispatch`.

    Returns:
      [T, D].
    """
    size = turn.tokens.shape[1] // choices

    def local(rows: Any, turn: Turn) -> Any:
        here, turn = rows[0], jax.tree.map(lambda a: a[0], turn)
        if exchange is not None and exchange.experts:
            here = _returned(here, turn, exchange)
        return summed(here, turn.tokens, turn.weights, size)[None]

    if exchange is None:
        found = local(rows, turn)
    else:
        found = exchange.run(local, (rows, turn), (exchange.by_group,) * 2, exchange.by_group)
    return found.reshape(-1, rows.shape[-1])[:count]


def _expert_of(sizes: Any, rows: int) -> Any:
    """The expert of each of so many sorted rows; as many as there are experts behind the last."""
    return jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(rows), side="right").astype(jnp.int32)


def _sent(rows: Any, sizes: Any, exchange: Exchange) -> tuple[Any, Any, Any, Any]:
    """Sorted rows [S * k, D] at the devices of their experts, sorted there; sizes, order and counts of `Turn`."""
    axes = exchange.experts
    devices = lax.axis_size(axes)
    room = rows.shape[0]
    sizes = sizes.reshape(devices, -1)
    there = lax.all_to_all(sizes, axes, 0, 0, tiled=True)  # [from, experts here]
    counts = jnp.stack([sizes.sum(1), there.sum(1)]).astype(jnp.int32)
    came = _forth(rows, counts, exchange)
    of = jax.vmap(lambda s: _expert_of(s, room))(there).reshape(-1)
    order = jnp.argsort(of, stable=True).astype(jnp.int32)
    return came[order], there.sum(0).astype(jnp.int32), order, counts


def _returned(rows: Any, turn: Turn, exchange: Exchange) -> Any:
    back = jnp.zeros_like(rows).at[turn.order].set(rows, unique_indices=True)
    return _back(back, turn.counts, turn.tokens.shape[0], exchange)


def _forth(rows: Any, counts: Any, exchange: Exchange) -> Any:
    """[S * k, D], the rows for each device together, to [N * S * k, D]: from each device first its rows, then room."""
    axes, (send, receive) = exchange.experts, counts
    room, devices = rows.shape[0], send.shape[0]
    first = jnp.cumsum(send, dtype=send.dtype) - send
    if exchange.ragged:
        start = jnp.broadcast_to(lax.axis_index(axes) * room, (devices,)).astype(jnp.int32)
        output = jnp.zeros((devices * room, rows.shape[1]), rows.dtype)
        return lax.ragged_all_to_all(rows, output, first, send, start, receive, axis_name=axes)
    at = first[:, None] + jnp.arange(room)
    at = jnp.where(jnp.arange(room) < send[:, None], at, room)
    spread = rows.at[at.reshape(-1)].get(mode="fill", fill_value=0)
    return lax.all_to_all(spread, axes, 0, 0, tiled=True)


def _back(rows: Any, counts: Any, room: int, exchange: Exchange) -> Any:
    """What `_forth` undid."""
    axes, (send, receive) = exchange.experts, counts
    devices = send.shape[0]
    first = jnp.cumsum(send, dtype=send.dtype) - send
    if exchange.ragged:
        # A device's rows begin there where it took them from.
        start = lax.all_to_all(first, axes, 0, 0, tiled=True)
        begins = (jnp.arange(devices) * room).astype(jnp.int32)
        output = jnp.zeros((room, rows.shape[1]), rows.dtype)
        return lax.ragged_all_to_all(rows, output, begins, receive, start, send, axis_name=axes)
    spread = lax.all_to_all(rows, axes, 0, 0, tiled=True)
    of = _expert_of(send, room)
    at = jnp.where(
        of < devices, of * room + jnp.arange(room) - first.at[of].get(mode="clip"), devices * room
    )
    return spread.at[at].get(mode="fill", fill_value=0)
