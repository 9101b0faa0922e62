"""Attention over sequences that are split over devices (sequence parallelism).

T is the bytes of the queries of all devices, N the number of devices along the mesh dimension.

* Ring attention (Liu et al. 2023, arXiv:2310.01889): keys and values rotate, and each device keeps
  its queries. A device sends 2 (N - 1) / N T bytes in the forward pass and 4 (N - 1) / N T in the
  backward pass, where the gradients of keys and values rotate with them. Causal attention skips
  blocks of future keys.
* Gathered attention replaces the ring in pipeline stages, because a permutation involves all
  devices, but only some of them compute a layer. A device gathers the keys and values of 1/N of the
  heads at a time. It sends and holds as many bytes as in a ring if N divides the number of heads.
* Ulysses (Jacobs et al. 2023, arXiv:2309.14509): each device receives full sequences for its share of the heads. The number of heads must be divisible. A device sends 4 (N - 1) / N**2 T bytes in the
  forward pass, and the same in the backward pass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.distribute.parallel import blockwise
from meshflow.distribute.parallel.blockwise import (
    AttentionOptions,
    AttentionResiduals,
    BlockOffsets,
    PartialAttention,
)
from meshflow.environment.types import PyTree


@dataclasses.dataclass(frozen=True)
class SequenceSharding:
    """Sharding of sequences over devices, and the algorithm of attention over them.

    Attributes:
      algorithm: "ring", "gathered" or "ulysses".
      mesh: JAX mesh, or None for the mesh of the surrounding program.
      axes: Mesh dimensions that sequences are split over.
      batch: Mesh dimensions that examples are split over.
      heads: Mesh dimensions that heads are split over.
    """

    algorithm: str
    mesh: Any
    axes: tuple[str, ...]
    batch: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    @property
    def option_value(self) -> str:
        """Return the value of `ParallelOptions.sequence` that selects the algorithm."""
        return "ring" if self.algorithm == "gathered" else self.algorithm

    def count_devices(self, names: tuple[str, ...]) -> int:
        """Return the number of devices along mesh dimensions."""
        mesh = jax.sharding.get_abstract_mesh() if self.mesh is None else self.mesh
        return math.prod(mesh.shape[name] for name in names)

    def drop_indivisible(self, batch: int, heads: int) -> SequenceSharding:
        """Return the sharding without the dimensions that do not divide batch or heads."""
        fits = lambda names, size: names if size % self.count_devices(names) == 0 else ()
        return dataclasses.replace(
            self, batch=fits(self.batch, batch), heads=fits(self.heads, heads)
        )


def attend(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    queries: jax.Array | None,
    key: jax.Array | None,
    sequences: SequenceSharding | None,
) -> jax.Array:
    """Compute attention on one device or over several.

    Sequences are padded if the number of devices does not divide their length.
    A query without visible keys attends to all keys with equal weights, as if a large negative
    number were added to all scores. Its gradient reaches only the values.

    Args:
      options: Options of attention.
      q: Queries [b, t, n, h], scaled.
      k: Keys [b, s, n, h].
      v: Values [b, s, n, h of values].
      mask: bool [b, 1 or t, s], True where a query may attend to a key, or None.
      queries: bool [b, t], False for queries that may attend to no key, or None.
      key: int64 [3], a random generator state for dropout, or None.
      sequences: Sharding of the sequences; None on one device.

    Returns:
      Values [b, t, n, h of values].

    Raises:
      ValueError: If the number of heads is not divisible by the number of devices of Ulysses.
    """
    if sequences is None:
        values = blockwise.attend_blockwise(options, q, k, v, mask, key)
    else:
        values = _attend_over_devices(options, q, k, v, mask, key, sequences)
    has_visible_key = _find_attending_queries(options, mask, q.shape[1])
    if queries is not None:
        has_visible_key = queries if has_visible_key is None else has_visible_key & queries
    if has_visible_key is None:
        return values
    mean = v.astype(jnp.promote_types(v.dtype, jnp.float32)).mean(1, keepdims=True)
    return jnp.where(has_visible_key[..., None, None], values, mean.astype(v.dtype))


def _find_attending_queries(
    options: AttentionOptions, mask: jax.Array | None, queries: int
) -> jax.Array | None:
    """Return which queries have a visible key: bool [b, t], or None if all have."""
    if mask is None:
        return None
    if not options.causal:
        return jnp.broadcast_to(mask.any(-1), (mask.shape[0], queries))
    if mask.shape[1] == 1:
        until = lax.cummax(mask[:, 0].astype(jnp.int32), axis=1) > 0
        return until[:, jnp.minimum(jnp.arange(queries), mask.shape[2] - 1)]
    past = jnp.arange(queries)[:, None] >= jnp.arange(mask.shape[2])
    return (mask & past).any(-1)


def _attend_over_devices(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
    sequences: SequenceSharding,
) -> jax.Array:
    parts, queries = sequences.count_devices(sequences.axes), q.shape[1]
    sharding = sequences.drop_indivisible(q.shape[0], q.shape[2])
    heads = q.shape[2] // sharding.count_devices(sharding.heads)
    if sharding.algorithm == "ulysses" and heads % parts:
        raise ValueError(
            f'sequence="ulysses" gives each device its share of the heads: {heads} heads do not divide among the {parts} '
            f'devices of {", ".join(sharding.axes)}. Use a multiple of {parts} heads, or sequence="ring".'
        )
    options = dataclasses.replace(options, keys=k.shape[1])
    q, k, v = (_pad_axis(x, 1, parts) for x in (q, k, v))
    if mask is not None:
        mask = _pad_axis(mask, 2, parts)
        mask = mask if mask.shape[1] == 1 else _pad_axis(mask, 1, parts)
    others = (*sharding.batch, *sharding.heads)

    def run(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: jax.Array | None,
        key: jax.Array | None,
    ) -> jax.Array:
        if key is not None and others:
            key = key.at[1].add(lax.axis_index(others).astype(key.dtype) * np.uint32(0x9E3779B9))
        return _ALGORITHMS[sharding.algorithm]((options, sharding.axes), q, k, v, mask, key)

    split = PartitionSpec(sharding.batch or None, sharding.axes, sharding.heads or None)
    by_rows = sharding.algorithm != "ulysses" and mask is not None and mask.shape[1] > 1
    mask_spec = PartitionSpec(sharding.batch or None, sharding.axes if by_rows else None)
    mapped = jax.shard_map(
        run,
        mesh=sharding.mesh,
        in_specs=(split, split, split, mask_spec, PartitionSpec()),
        out_specs=split,
        axis_names={*sharding.axes, *others},
        check_vma=False,
    )
    return mapped(q, k, v, mask, key)[:, :queries]


def _pad_axis(x: jax.Array, axis: int, parts: int) -> jax.Array:
    padding = -x.shape[axis] % parts
    return jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)]) if padding else x


# ---- ring attention --------------------------------------------------------------------------


def _rotate(arrays: PyTree, axes: tuple[str, ...]) -> PyTree:
    """Return the arrays of the previous device in the ring."""
    count = lax.axis_size(axes)
    return jax.tree.map(
        lambda x: lax.ppermute(x, axes, [(i, (i + 1) % count) for i in range(count)]), arrays
    )


class _RingPositions:
    """Offsets of a device's queries and of the keys that it holds in each step of the ring."""

    def __init__(
        self,
        options: AttentionOptions,
        axes: tuple[str, ...],
        q: jax.Array,
        k: jax.Array,
        mask: jax.Array | None,
    ) -> None:
        self.options, self.mask = options, mask
        self.device, self.count = lax.axis_index(axes), lax.axis_size(axes)
        self.queries, self.keys = q.shape[1], k.shape[1]

    def get_offsets(self, step: jax.Array | int) -> BlockOffsets:
        """Return the offsets after a number of steps."""
        return BlockOffsets(
            self.device * self.queries, (self.device - step) % self.count * self.keys
        )

    def slice_mask(self, offsets: BlockOffsets) -> jax.Array | None:
        """Return the mask of the keys that this device holds."""
        if self.mask is None:
            return None
        return lax.dynamic_slice_in_dim(self.mask, offsets.key, self.keys, axis=2)

    def run_if_visible(
        self, offsets: BlockOffsets, function: Callable[[], PyTree], otherwise: PyTree
    ) -> PyTree:
        """Return `function()`, or `otherwise` if causal attention masks all of the current keys."""
        if not self.options.causal:
            return function()
        return lax.cond(offsets.query + self.queries > offsets.key, function, lambda: otherwise)


def _run_ring_forward(
    options: AttentionOptions,
    axes: tuple[str, ...],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Compute attention of this device's queries to all keys by rotating keys and values.

    Args:
      options: Options of attention.
      axes: Mesh dimensions of the ring; they must be manual axes of the surrounding program.
      q: This device's queries [b, t / N, n, h], scaled.
      k: This device's keys.
      v: This device's values.
      mask: bool [b, 1 or t / N, s], for all keys, or None.
      key: Random generator state for dropout, equal on all devices, or None.

    Returns:
      Values [b, t / N, n, h of values], and the logarithms of the sums of the exponentials of the scores.
    """
    ring = _RingPositions(options, axes, q, k, mask)

    def add_keys(
        done: PartialAttention, k: jax.Array, v: jax.Array, step: jax.Array | int
    ) -> PartialAttention:
        offsets = ring.get_offsets(step)

        def attend() -> PartialAttention:
            more = blockwise.attend_partial(
                options, q, k, v, ring.slice_mask(offsets), key, offsets
            )
            return blockwise.merge(done, more)

        return ring.run_if_visible(offsets, attend, done)

    def run_step(carry: tuple[PartialAttention, jax.Array, jax.Array], step: jax.Array) -> PyTree:
        done, k, v = carry
        k, v = _rotate((k, v), axes)
        return (add_keys(done, k, v, step), k, v), None

    done = add_keys(blockwise.make_empty(q, v), k, v, 0)
    (done, _, _), _ = lax.scan(run_step, (done, k, v), jnp.arange(1, ring.count))
    return blockwise.normalize(done, v.dtype)


def _run_ring_backward(
    options: AttentionOptions,
    axes: tuple[str, ...],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
    saved: AttentionResiduals,
) -> tuple[jax.Array, ...]:
    ring = _RingPositions(options, axes, q, k, mask)

    def differentiate(k: jax.Array, v: jax.Array, step: jax.Array | int) -> PyTree:
        offsets = ring.get_offsets(step)
        run = lambda: blockwise.differentiate_partial(
            options, q, k, v, ring.slice_mask(offsets), key, saved, offsets
        )
        kind = saved.log_sums.dtype
        return ring.run_if_visible(offsets, run, tuple(jnp.zeros(x.shape, kind) for x in (q, k, v)))

    own = differentiate(k, v, 0)
    if ring.count > 1:
        # The gradients of the first received keys start here. Those of the device's own keys do not rotate.
        k, v = _rotate((k, v), axes)
        dq, dk, dv = differentiate(k, v, 1)

        def run_step(carry: tuple[jax.Array, ...], step: jax.Array) -> PyTree:
            dq, k, v, dk, dv = carry
            k, v, dk, dv = _rotate((k, v, dk, dv), axes)
            more = differentiate(k, v, step)
            return (dq + more[0], k, v, dk + more[1], dv + more[2]), None

        (dq, _, _, dk, dv), _ = lax.scan(run_step, (dq, k, v, dk, dv), jnp.arange(2, ring.count))
        dk, dv = _rotate((dk, dv), axes)
        own = own[0] + dq, own[1] + dk, own[2] + dv
    return own


_ring = blockwise.define_attention(_run_ring_forward, _run_ring_backward)


# ---- gathered attention ----------------------------------------------------------------------


class _HeadGroups:
    """Groups of heads; all devices gather the keys and values of one group at a time."""

    def __init__(self, axes: tuple[str, ...], q: jax.Array, key: jax.Array | None) -> None:
        self.axes, self.key = axes, key
        self.count = math.gcd(q.shape[2], lax.axis_size(axes))
        self.offsets = BlockOffsets(lax.axis_index(axes) * q.shape[1], 0)

    def split_heads(self, x: jax.Array, axis: int = 2) -> jax.Array:
        """Split the axis of heads into groups, which become the first axis."""
        shape = (*x.shape[:axis], self.count, -1, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    def join_heads(self, parts: jax.Array, axis: int = 2) -> jax.Array:
        """Undo `split_heads`."""
        x = jnp.moveaxis(parts, 0, axis)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    def gather_keys(self, x: jax.Array) -> jax.Array:
        """All-gather the keys of all devices."""
        return lax.all_gather(x, self.axes, axis=1, tiled=True)

    def scatter_gradients(self, x: jax.Array) -> jax.Array:
        """Reduce-scatter gradients of all devices' keys to this device's keys."""
        return lax.psum_scatter(x, self.axes, scatter_dimension=1, tiled=True)

    def derive_key(self, group: jax.Array) -> jax.Array | None:
        """Return the random generator state for the dropout of a group."""
        if self.key is None:
            return None
        return self.key.at[1].add(group.astype(self.key.dtype) * np.uint32(0x85EBCA6B))


def _run_gathered_forward(
    options: AttentionOptions,
    axes: tuple[str, ...],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the same as `_run_ring_forward` by all-gathers of the keys and values of groups of heads."""
    groups = _HeadGroups(axes, q, key)

    def attend_group(heads: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        group, q, k, v = heads
        k, v = groups.gather_keys(k), groups.gather_keys(v)
        done = blockwise.attend_partial(
            options, q, k, v, mask, groups.derive_key(group), groups.offsets
        )
        return blockwise.normalize(done, v.dtype)

    parts = (
        jnp.arange(groups.count),
        groups.split_heads(q),
        groups.split_heads(k),
        groups.split_heads(v),
    )
    values, sums = lax.map(attend_group, parts)
    return groups.join_heads(values), groups.join_heads(sums, 1)


def _run_gathered_backward(
    options: AttentionOptions,
    axes: tuple[str, ...],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
    saved: AttentionResiduals,
) -> Iterable[jax.Array]:
    groups = _HeadGroups(axes, q, key)

    def differentiate_group(heads: PyTree) -> tuple[jax.Array, ...]:
        group, q, k, v, saved = heads
        keys, values = groups.gather_keys(k), groups.gather_keys(v)
        group_key = groups.derive_key(group)
        dq, *rest = blockwise.differentiate_partial(
            options, q, keys, values, mask, group_key, saved, groups.offsets
        )
        return dq, *map(groups.scatter_gradients, rest)

    residuals = AttentionResiduals(*map(groups.split_heads, saved, (1, 2, 1)))
    parts = (
        jnp.arange(groups.count),
        groups.split_heads(q),
        groups.split_heads(k),
        groups.split_heads(v),
        residuals,
    )
    return map(groups.join_heads, lax.map(differentiate_group, parts))


_gathered = blockwise.define_attention(_run_gathered_forward, _run_gathered_backward)


# ---- Ulysses ---------------------------------------------------------------------------------


def _attend_ulysses(
    static: tuple[AttentionOptions, tuple[str, ...]],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
) -> jax.Array:
    """Compute attention with full sequences of a share of the heads, exchanged by all-to-all.

    The arguments are those of `_run_ring_forward`; the mask is that of all queries.
    """
    options, axes = static
    gather_sequences = lambda x: lax.all_to_all(x, axes, 2, 1, tiled=True)
    if key is not None:
        # Devices have different heads, so they need different keys.
        key = key.at[1].add(lax.axis_index(axes).astype(key.dtype))
    values = blockwise.attend_blockwise(
        options, gather_sequences(q), gather_sequences(k), gather_sequences(v), mask, key
    )
    return lax.all_to_all(values, axes, 1, 2, tiled=True)


_ALGORITHMS: dict[str, Any] = {
    "ring": _ring,
    "gathered": _gathered,
    "ulysses": _attend_ulysses,
}
