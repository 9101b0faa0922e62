"""Dispatch of tokens to experts without a capacity: grouped products of choices sorted by expert.

Letters in shapes: S tokens of a device, k choices of each, D features, E experts, N devices that
experts are split over. The number of rows of a device is a value of the program, so each device
allocates space for all N * S * k rows. GPUs and TPUs send only the used rows (`ragged_all_to_all`).
CPUs do not implement this exchange and send the allocated space.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.distribute.parallel import expert_routing
from meshflow.distribute.parallel.expert_dispatch import ExpertSharding, group_tokens, sum_by_token
from meshflow.distribute.parallel.expert_routing import Router, RoutingStatistics
from meshflow.environment.types import PyTree


class DroplessOrder(NamedTuple):
    """Order of the rows on each device.

    Attributes:
      tokens: int32 [G, S * k], the token of each sorted choice, S after the last used choice.
      weights: float32 [G, S * k].
      sizes: int32 [G, experts of a device], number of rows of each local expert.
      order: int32 [G, rows], permutation that sorts the received rows; empty on one device.
      counts: int32 [G, 2, N], rows sent to and received from each device; empty on one device.
    """

    tokens: jax.Array
    weights: jax.Array
    sizes: jax.Array
    order: jax.Array
    counts: jax.Array


def dispatch_tokens(
    x: jax.Array,
    live: jax.Array,
    gate: jax.Array,
    router: Router,
    groups: int,
    exchange: ExpertSharding | None,
) -> tuple[jax.Array, DroplessOrder, RoutingStatistics]:
    """Sort the choices of all tokens by expert, and send them to the experts.

    Args:
      x: Tokens [T, D].
      live: bool [T].
      gate: Kernel of the gate, float32 [D, E].
      router: Rules of routing, without a capacity.
      groups: Number of groups of tokens for the balance loss.
      exchange: Sharding of tokens and experts; None on one device.

    Returns:
      Inputs of the experts, [G, rows, D], grouped by expert, where G is the number of devices;
      their order; statistics [groups].
    """
    (x, _), (live, _) = group_tokens(x, groups), group_tokens(live, groups)

    def local(x: jax.Array, live: jax.Array, gate: jax.Array) -> PyTree:
        logits = expert_routing.compute_logits(x, gate)
        choices = jax.vmap(lambda *token: expert_routing.choose_experts(router, *token))(
            logits, live
        )
        merged = [a.reshape(-1, router.choices) for a in choices[:3]]
        tokens, weights, sizes = expert_routing.sort_choices(
            choices._replace(experts=merged[0], weights=merged[1], taken=merged[2]), router.experts
        )
        rows = x.reshape(-1, x.shape[-1]).at[tokens].get(mode="fill", fill_value=0)
        order = counts = jnp.zeros((0,), jnp.int32)
        if exchange is not None and exchange.experts:
            rows, sizes, order, counts = _send_to_experts(rows, sizes, exchange)
        turn = DroplessOrder(tokens, weights, sizes, order, counts)
        return *jax.tree.map(lambda a: a[None], (rows, turn)), choices.statistics

    if exchange is None:
        return local(x, live, gate)
    group = exchange.group_spec
    return exchange.run_sharded(local, (x, live, gate), (group, group, PartitionSpec()), group)


def multiply_grouped(
    rows: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    sizes: jax.Array,
    exchange: ExpertSharding | None,
) -> jax.Array:
    """Multiply the rows of each expert by its kernel, and add its bias.

    Args:
      rows: [G, rows, D].
      kernel: [E, D, H].
      bias: [E, H], or None.
      sizes: int32 [G, experts of a device].
      exchange: As in `dispatch_tokens`.

    Returns:
      [G, rows, H], with zeros in unused rows.
    """

    def local(
        rows: jax.Array, sizes: jax.Array, kernel: jax.Array, *biases: jax.Array
    ) -> jax.Array:
        experts = _find_experts(sizes[0], rows[0].shape[0])
        is_used = (experts < kernel.shape[0])[:, None]
        results = lax.ragged_dot(rows[0], kernel, sizes[0])
        for expert_bias in biases:
            results = results + expert_bias.at[experts].get(mode="fill", fill_value=0)
        return jnp.where(is_used, results, 0)[None]

    operands = (rows, sizes, kernel) if bias is None else (rows, sizes, kernel, bias)
    if exchange is None:
        return local(*operands)
    group, expert = exchange.group_spec, PartitionSpec(exchange.experts or None)
    specs = (group, group, *[expert] * (len(operands) - 2))
    return exchange.run_sharded(local, operands, specs, group)


def combine_results(
    rows: jax.Array, turn: DroplessOrder, count: int, choices: int, exchange: ExpertSharding | None
) -> jax.Array:
    """Return the results to their tokens, weighted and summed.

    Args:
      rows: [G, rows, D].
      turn: Order of the rows.
      count: Number of tokens T.
      choices: k.
      exchange: As in `dispatch_tokens`.

    Returns:
      [T, D].
    """
    size = turn.tokens.shape[1] // choices

    def local(rows: jax.Array, turn: DroplessOrder) -> jax.Array:
        results, turn = rows[0], jax.tree.map(lambda a: a[0], turn)
        if exchange is not None and exchange.experts:
            results = _return_to_tokens(results, turn, exchange)
        return sum_by_token(results, turn.tokens, turn.weights, size)[None]

    if exchange is None:
        results = local(rows, turn)
    else:
        results = exchange.run_sharded(
            local, (rows, turn), (exchange.group_spec,) * 2, exchange.group_spec
        )
    return results.reshape(-1, rows.shape[-1])[:count]


def _find_experts(sizes: jax.Array, rows: int) -> jax.Array:
    """Return the expert of each sorted row, or the number of experts for unused rows."""
    return jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(rows), side="right").astype(jnp.int32)


def _send_to_experts(
    rows: jax.Array, sizes: jax.Array, exchange: ExpertSharding
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Send sorted rows [S * k, D] to their experts; return them with sizes, order and counts."""
    axes = exchange.experts
    devices = lax.axis_size(axes)
    room = rows.shape[0]
    sizes = sizes.reshape(devices, -1)
    # Shape [sending device, local experts].
    received_sizes = lax.all_to_all(sizes, axes, 0, 0, tiled=True)
    counts = jnp.stack([sizes.sum(1), received_sizes.sum(1)]).astype(jnp.int32)
    received = _exchange_forward(rows, counts, exchange)
    experts = jax.vmap(lambda s: _find_experts(s, room))(received_sizes).reshape(-1)
    order = jnp.argsort(experts, stable=True).astype(jnp.int32)
    return received[order], received_sizes.sum(0).astype(jnp.int32), order, counts


def _return_to_tokens(rows: jax.Array, turn: DroplessOrder, exchange: ExpertSharding) -> jax.Array:
    unsorted = jnp.zeros_like(rows).at[turn.order].set(rows, unique_indices=True)
    return _exchange_backward(unsorted, turn.counts, turn.tokens.shape[0], exchange)


def _exchange_forward(rows: jax.Array, counts: jax.Array, exchange: ExpertSharding) -> jax.Array:
    """Send rows [S * k, D] to devices; return [N * S * k, D], padded after the rows of each device."""
    axes, (send, receive) = exchange.experts, counts
    room, devices = rows.shape[0], send.shape[0]
    first = jnp.cumsum(send, dtype=send.dtype) - send
    if exchange.ragged:
        start = jnp.broadcast_to(lax.axis_index(axes) * room, (devices,)).astype(jnp.int32)
        output = jnp.zeros((devices * room, rows.shape[1]), rows.dtype)
        return lax.ragged_all_to_all(rows, output, first, send, start, receive, axis_name=axes)
    source = first[:, None] + jnp.arange(room)
    source = jnp.where(jnp.arange(room) < send[:, None], source, room)
    spread = rows.at[source.reshape(-1)].get(mode="fill", fill_value=0)
    return lax.all_to_all(spread, axes, 0, 0, tiled=True)


def _exchange_backward(
    rows: jax.Array, counts: jax.Array, room: int, exchange: ExpertSharding
) -> jax.Array:
    """Undo `_exchange_forward`."""
    axes, (send, receive) = exchange.experts, counts
    devices = send.shape[0]
    first = jnp.cumsum(send, dtype=send.dtype) - send
    if exchange.ragged:
        # The receiver stores the rows of each device at the offset from which it sent them.
        start = lax.all_to_all(first, axes, 0, 0, tiled=True)
        offsets = (jnp.arange(devices) * room).astype(jnp.int32)
        output = jnp.zeros((room, rows.shape[1]), rows.dtype)
        return lax.ragged_all_to_all(rows, output, offsets, receive, start, send, axis_name=axes)
    spread = lax.all_to_all(rows, axes, 0, 0, tiled=True)
    device = _find_experts(send, room)
    source = jnp.where(
        device < devices,
        device * room + jnp.arange(room) - first.at[device].get(mode="clip"),
        devices * room,
    )
    return spread.at[source].get(mode="fill", fill_value=0)
