"""Attention between parts of sequences that lie on different devices.

T is the bytes of the queries of all devices, N the number of devices of the dimension.

* Ring (Liu et al. 2023, arXiv:2310.01889): keys and values go round, each device keeps its queries. Sent by a device:
  2 (N - 1) / N T forwards, 4 (N - 1) / N T backwards, where the gradients of keys and values go round with them.
  Blocks of the future cost causal attention nothing.
* Gathered, in place of rings in the stages of pipelines: there only some devices compute a layer, and a step from neighbour
  to neighbour is one of all devices. A device brings the keys and values of 1/N of the heads together at a time. It sends
  and holds what a ring's does, where N divides the heads.
* Ulysses (Jacobs et al. 2023, arXiv:2309.14509): each device gets the whole sequence of its share of the heads, which
  must divide. Sent: 4 (N - 1) / N**2 T forwards, as much again backwards.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.distribute.parallel import blockwise
from meshflow.distribute.parallel.blockwise import Attend, Places, Saved

__all__ = ["Sequences", "attention", "gathered", "ring", "ulysses"]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """How sequences lie on devices, and how attention runs over them.

    Attributes:
      way: "ring", "gathered" or "ulysses".
      mesh: a JAX mesh; None for that of the program around.
      axes: the mesh dimensions that sequences are split over.
      batch: those that examples are split over.
      heads: those that heads are split over.
    """

    way: str
    mesh: Any
    axes: tuple[str, ...]
    batch: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """What `ParallelOptions.sequence` calls the way."""
        return "ring" if self.way == "gathered" else self.way

    def devices(self, names: tuple[str, ...]) -> int:
        """How many parts some of the dimensions make."""
        mesh = jax.sharding.get_abstract_mesh() if self.mesh is None else self.mesh
        return math.prod(mesh.shape[name] for name in names)

    def fitting(self, batch: int, heads: int) -> Sequences:
        """Without the dimensions that do not divide."""
        fits = lambda names, size: names if size % self.devices(names) == 0 else ()
        return dataclasses.replace(
            self, batch=fits(self.batch, batch), heads=fits(self.heads, heads)
        )


def attention(
    what: Attend,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    queries: Any,
    key: Any,
    sequences: Sequences | None,
) -> Any:
    """Attention, on one device or several, where sequences are padded if they do not divide.

    A query that sees no key attends to all keys alike, as adding a large negative number to all scores has it; its
    gradient reaches the values only.

    Args:
      what: what attention does.
      q: queries [b, t, n, h], scaled.
      k: keys [b, s, n, h].
      v: values [b, s, n, h of values].
      mask: bool [b, 1 or t, s], True where attention may go, or None.
      queries: bool [b, t], False for queries that may see nothing, or None.
      key: int64 [3], where a generator stands, for dropout, or None.
      sequences: where the sequences lie; None on one device.

    Returns:
      Values [b, t, n, h of values].

    Raises:
      ValueError: when Ulysses' devices do not divide the heads.
    """
    if sequences is None:
        values = blockwise.attend(what, q, k, v, mask, key)
    else:
        values = _over_devices(what, q, k, v, mask, key, sequences)
    seen = _seen(what, mask, q.shape[1])
    if queries is not None:
        seen = queries if seen is None else seen & queries
    if seen is None:
        return values
    alike = v.astype(jnp.promote_types(v.dtype, jnp.float32)).mean(1, keepdims=True)
    return jnp.where(seen[..., None, None], values, alike.astype(v.dtype))


def _seen(what: Attend, mask: Any, queries: int) -> Any:
    """Which queries see a key: bool [b, t], or None where all do."""
    if mask is None:
        return None
    if not what.causal:
        return jnp.broadcast_to(mask.any(-1), (mask.shape[0], queries))
    if mask.shape[1] == 1:
        until = lax.cummax(mask[:, 0].astype(jnp.int32), axis=1) > 0
        return until[:, jnp.minimum(jnp.arange(queries), mask.shape[2] - 1)]
    past = jnp.arange(queries)[:, None] >= jnp.arange(mask.shape[2])
    return (mask & past).any(-1)


def _over_devices(
    what: Attend, q: Any, k: Any, v: Any, mask: Any, key: Any, sequences: Sequences
) -> Any:
    parts, queries = sequences.devices(sequences.axes), q.shape[1]
    place = sequences.fitting(q.shape[0], q.shape[2])
    heads = q.shape[2] // place.devices(place.heads)
    if place.way == "ulysses" and heads % parts:
        raise ValueError(
            f'sequence="ulysses" gives each device its share of the heads: {heads} heads do not divide among the {parts} '
            f'devices of {", ".join(place.axes)}. Use a multiple of {parts} heads, or sequence="ring".'
        )
    what = dataclasses.replace(what, keys=k.shape[1])
    q, k, v = (_padded(x, 1, parts) for x in (q, k, v))
    if mask is not None:
        mask = _padded(mask, 2, parts)
        mask = mask if mask.shape[1] == 1 else _padded(mask, 1, parts)
    others = (*place.batch, *place.heads)

    def run(q: Any, k: Any, v: Any, mask: Any, key: Any) -> Any:
        if key is not None and others:
            key = key.at[1].add(lax.axis_index(others).astype(key.dtype) * np.uint32(0x9E3779B9))
        return _WAYS[place.way](what, place.axes, q, k, v, mask, key)

    split = PartitionSpec(place.batch or None, place.axes, place.heads or None)
    by_rows = place.way != "ulysses" and mask is not None and mask.shape[1] > 1
    of_mask = PartitionSpec(place.batch or None, place.axes if by_rows else None)
    mapped = jax.shard_map(
        run,
        mesh=place.mesh,
        in_specs=(split, split, split, of_mask, PartitionSpec()),
        out_specs=split,
        axis_names={*place.axes, *others},
        check_vma=False,
    )
    return mapped(q, k, v, mask, key)[:, :queries]


def _padded(x: Any, axis: int, parts: int) -> Any:
    more = -x.shape[axis] % parts
    return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)]) if more else x


# ---- ring ------------------------------------------------------------------------------------


def _on(arrays: Any, axes: tuple[str, ...]) -> Any:
    """Arrays from the device before."""
    count = lax.axis_size(axes)
    return jax.tree.map(
        lambda x: lax.ppermute(x, axes, [(i, (i + 1) % count) for i in range(count)]), arrays
    )


class _Round:
    """Where the parts of a device's queries and of the keys that visit it begin."""

    def __init__(self, what: Attend, axes: tuple[str, ...], q: Any, k: Any, mask: Any) -> None:
        self.what, self.mask = what, mask
        self.me, self.count = lax.axis_index(axes), lax.axis_size(axes)
        self.queries, self.keys = q.shape[1], k.shape[1]

    def places(self, step: Any) -> Places:
        """Where they begin after so many steps."""
        return Places(self.me * self.queries, (self.me - step) % self.count * self.keys)

    def columns(self, places: Places) -> Any:
        """The mask of the keys that are here."""
        if self.mask is None:
            return None
        return lax.dynamic_slice_in_dim(self.mask, places.key, self.keys, axis=2)

    def when_past(self, places: Places, function: Any, otherwise: Any) -> Any:
        """`function()`, or `otherwise` when all keys here are of the future."""
        if not self.what.causal:
            return function()
        return lax.cond(places.query + self.queries > places.key, function, lambda: otherwise)


def _ring_forward(
    what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any
) -> Any:
    turn = _Round(what, axes, q, k, mask)

    def attended(done: Any, k: Any, v: Any, step: Any) -> Any:
        places = turn.places(step)

        def more() -> Any:
            found = blockwise.forward(what, q, k, v, turn.columns(places), key, places)
            return blockwise.merged(done, found)

        return turn.when_past(places, more, done)

    def go(carry: Any, step: Any) -> Any:
        done, k, v = carry
        k, v = _on((k, v), axes)
        return (attended(done, k, v, step), k, v), None

    done = attended(blockwise.nothing(q, v), k, v, 0)
    (done, _, _), _ = lax.scan(go, (done, k, v), jnp.arange(1, turn.count))
    return blockwise.finished(done, v.dtype)


def _ring_backward(
    what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any, saved: Saved
) -> Any:
    turn = _Round(what, axes, q, k, mask)

    def gradients(k: Any, v: Any, step: Any) -> Any:
        places = turn.places(step)
        found = lambda: blockwise.backward(what, q, k, v, turn.columns(places), key, saved, places)
        kind = saved.sums.dtype
        return turn.when_past(places, found, tuple(jnp.zeros(x.shape, kind) for x in (q, k, v)))

    own = gradients(k, v, 0)
    if turn.count > 1:
        # The gradients of the keys that come first begin here; those of one's own stay at home.
        k, v = _on((k, v), axes)
        dq, dk, dv = gradients(k, v, 1)

        def go(carry: Any, step: Any) -> Any:
            dq, k, v, dk, dv = carry
            k, v, dk, dv = _on((k, v, dk, dv), axes)
            more = gradients(k, v, step)
            return (dq + more[0], k, v, dk + more[1], dv + more[2]), None

        (dq, _, _, dk, dv), _ = lax.scan(go, (dq, k, v, dk, dv), jnp.arange(2, turn.count))
        dk, dv = _on((dk, dv), axes)
        own = own[0] + dq, own[1] + dk, own[2] + dv
    return own


_ring = blockwise.with_backward(_ring_forward, _ring_backward)


def ring(what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any) -> Any:
    """Attention of this device's queries to the keys of all devices.

    Args:
      what: what attention does.
      axes: the mesh dimensions of the ring, which the program must know.
      q: this device's queries [b, t / N, n, h], scaled.
      k: this device's keys.
      v: this device's values.
      mask: bool [b, 1 or t / N, s], of all keys, or None.
      key: two uint32 numbers for dropout, the same on all devices, or None.
    """
    return _ring((what, axes), q, k, v, mask, key)


# ---- gathered --------------------------------------------------------------------------------


class _Turns:
    """A few heads at a time, of which all devices bring keys and values together."""

    def __init__(self, axes: tuple[str, ...], q: Any, key: Any) -> None:
        self.axes, self.key = axes, key
        self.count = math.gcd(q.shape[2], lax.axis_size(axes))
        self.places = Places(lax.axis_index(axes) * q.shape[1], 0)

    def cut(self, x: Any, axis: int = 2) -> Any:
        """An array with a first axis of turns in place of all heads."""
        shape = (*x.shape[:axis], self.count, -1, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    def joined(self, parts: Any, axis: int = 2) -> Any:
        """The array that `cut` had."""
        x = jnp.moveaxis(parts, 0, axis)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    def together(self, x: Any) -> Any:
        """The keys of all devices."""
        return lax.all_gather(x, self.axes, axis=1, tiled=True)

    def apart(self, x: Any) -> Any:
        """The sum of all devices' gradients of this device's keys."""
        return lax.psum_scatter(x, self.axes, scatter_dimension=1, tiled=True)

    def drawn(self, turn: Any) -> Any:
        """The numbers that a turn's dropout follows from."""
        if self.key is None:
            return None
        return self.key.at[1].add(turn.astype(self.key.dtype) * np.uint32(0x85EBCA6B))


def _gathered_forward(
    what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any
) -> Any:
    turns = _Turns(axes, q, key)

    def one(heads: Any) -> Any:
        turn, q, k, v = heads
        k, v = turns.together(k), turns.together(v)
        found = blockwise.forward(what, q, k, v, mask, turns.drawn(turn), turns.places)
        return blockwise.finished(found, v.dtype)

    parts = jnp.arange(turns.count), turns.cut(q), turns.cut(k), turns.cut(v)
    values, sums = lax.map(one, parts)
    return turns.joined(values), turns.joined(sums, 1)


def _gathered_backward(
    what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any, saved: Saved
) -> Any:
    turns = _Turns(axes, q, key)

    def one(heads: Any) -> Any:
        turn, q, k, v, saved = heads
        wide = turns.together(k), turns.together(v)
        drawn = turns.drawn(turn)
        dq, *rest = blockwise.backward(what, q, *wide, mask, drawn, saved, turns.places)
        return dq, *map(turns.apart, rest)

    of_heads = Saved(*map(turns.cut, saved, (1, 2, 1)))
    parts = jnp.arange(turns.count), turns.cut(q), turns.cut(k), turns.cut(v), of_heads
    return map(turns.joined, lax.map(one, parts))


_gathered = blockwise.with_backward(_gathered_forward, _gathered_backward)


def gathered(
    what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any
) -> Any:
    """Attention of this device's queries to the keys of all devices, without sending to neighbours.

    Args:
      what: what attention does.
      axes: the mesh dimensions of the sequence, which the program must know.
      q: this device's queries [b, t / N, n, h], scaled.
      k: this device's keys.
      v: this device's values.
      mask: bool [b, 1 or t / N, s], of all keys, or None.
      key: two uint32 numbers for dropout, the same on all devices, or None.
    """
    return _gathered((what, axes), q, k, v, mask, key)


# ---- ulysses ---------------------------------------------------------------------------------


def ulysses(
    what: Attend, axes: tuple[str, ...], q: Any, k: Any, v: Any, mask: Any, key: Any
) -> Any:
    """Attention with sequences brought together and heads split.

    Args:
      what: what attention does.
      axes: the mesh dimensions of the sequence, which the program must know.
      q: this device's queries [b, t / N, n, h], scaled.
      k: this device's keys.
      v: this device's values.
      mask: bool [b, 1 or t, s], whole, or None.
      key: int64 [3], where a generator stands, for dropout, or None.
    """
    together = lambda x: lax.all_to_all(x, axes, 2, 1, tiled=True)
    if key is not None:
        # Heads are on different devices.
        key = key.at[1].add(lax.axis_index(axes).astype(key.dtype))
    values = blockwise.attend(what, together(q), together(k), together(v), mask, key)
    return lax.all_to_all(values, axes, 1, 2, tiled=True)


_WAYS: dict[str, Any] = {"ring": ring, "gathered": gathered, "ulysses": ulysses}
