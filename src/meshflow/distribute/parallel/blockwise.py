"""Attention in blocks, whose scores are never in memory all at once: pure functions of arrays.

Letters in shapes: b batch, t queries, s keys, n heads, h features of a head. Softmax over blocks of keys needs only the
largest score and the sum so far (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, FlashAttention,
arXiv:2205.14135); the backward pass computes the scores again from the logarithm of that sum. Sums are float32 at least.
A query that may see no key gets zeros.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshflow.core.runtime import philox

__all__ = [
    "Attend",
    "Partial",
    "Places",
    "Saved",
    "attend",
    "backward",
    "finished",
    "forward",
    "merged",
    "nothing",
    "with_backward",
]

# The score of what is not seen: its exponential is 0 beside any other.
_UNSEEN = -1e30


@dataclasses.dataclass(frozen=True)
class Attend:
    """What attention does.

    Attributes:
      causal: whether queries see only keys of earlier positions and their own.
      rate: dropout of the attention weights.
      block: queries and keys of a block.
      keys: how many keys there are; what lies behind them is padding.
    """

    causal: bool = False
    rate: float = 0.0
    block: int = 512
    keys: int | None = None


class Partial(NamedTuple):
    """Attention to some of the keys: `sums` [b, t, n, h] of values, `largest` score and `total` weight [b, n, t]."""

    sums: Any
    largest: Any
    total: Any


class Places(NamedTuple):
    """Where a part of the queries and keys begins in the whole sequences."""

    query: Any
    key: Any


_START = Places(0, 0)


def _kind(array: Any) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)


def nothing(q: Any, v: Any) -> Partial:
    """Attention to no key yet."""
    b, t, n, _ = q.shape
    kind = _kind(q)
    return Partial(
        jnp.zeros((b, t, n, v.shape[-1]), kind),
        jnp.full((b, n, t), _UNSEEN, kind),
        jnp.zeros((b, n, t), kind),
    )


def merged(a: Partial, b: Partial) -> Partial:
    """Attention to the keys of both."""
    largest = jnp.maximum(a.largest, b.largest)
    of_a, of_b = jnp.exp(a.largest - largest), jnp.exp(b.largest - largest)
    sums = a.sums * _by_row(of_a) + b.sums * _by_row(of_b)
    return Partial(sums, largest, a.total * of_a + b.total * of_b)


def finished(partial: Partial, dtype: Any) -> tuple[Any, Any]:
    """The attention's values [b, t, n, h], and the logarithm of the sum of exponentials [b, n, t]."""
    total = jnp.where(partial.total > 0, partial.total, 1)
    return (partial.sums / _by_row(total)).astype(dtype), partial.largest + jnp.log(total)


def _by_row(x: Any) -> Any:
    return x.transpose(0, 2, 1)[..., None]


class _Tiles:
    """The tiles of scores between a part of the queries and a part of the keys.

    Args:
      what: what attention does.
      q: queries [b, t, n, h].
      k: keys [b, s, n, h].
      mask: bool [b, 1 or t, s], or None.
      key: int64 [3], where a generator stands, for dropout, or None.
      places: where the parts begin.
    """

    def __init__(self, what: Attend, q: Any, k: Any, mask: Any, key: Any, places: Places) -> None:
        self.what, self.key, self.places = what, key, places
        self.queries, self.keys = q.shape[1], k.shape[1]
        self.tall, self.wide = min(what.block, self.queries), min(what.block, self.keys)
        self.down, self.across = -(-self.queries // self.tall), -(-self.keys // self.wide)
        self.mask = mask
        if mask is not None:
            rows = 0 if mask.shape[1] == 1 else self.down * self.tall - self.queries
            more = self.across * self.wide - self.keys
            self.mask = jnp.pad(mask, [(0, 0), (0, rows), (0, more)])

    def cut(self, x: Any, axis: int, size: int) -> Any:
        """An array in blocks along an axis, which come first."""
        more = -x.shape[axis] % size
        x = jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])
        shape = (*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    def joined(self, blocks: Any, axis: int, count: int) -> Any:
        """The array that `cut` had."""
        x = jnp.moveaxis(blocks, 0, axis)
        x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        return lax.slice_in_dim(x, 0, count, axis=axis)

    def seen(self, i: Any, j: Any) -> Any:
        """Which keys each query of a tile sees: bool, broadcasts to [b, n, tall, wide]."""
        across = j * self.wide + jnp.arange(self.wide)
        key = self.places.key + across
        keep = across < self.keys
        if self.what.keys is not None:
            keep &= key < self.what.keys
        keep = keep[None, :]
        if self.what.causal:
            query = self.places.query + i * self.tall + jnp.arange(self.tall)
            keep = keep & (query[:, None] >= key)
        keep = keep[None]
        if self.mask is not None:
            part = lax.dynamic_slice_in_dim(self.mask, j * self.wide, self.wide, axis=2)
            if part.shape[1] > 1:
                part = lax.dynamic_slice_in_dim(part, i * self.tall, self.tall, axis=1)
            keep = keep & part
        return keep[:, None]

    def is_past(self, i: Any, j: Any) -> Any:
        """Whether any query of a tile comes after any of its keys."""
        last = self.places.query + (i + 1) * self.tall - 1
        return last >= self.places.key + j * self.wide

    def kept(self, i: Any, j: Any, shape: tuple[int, ...], kind: Any) -> Any:
        """What dropout multiplies the weights of a tile by."""
        at = self.places.query + i * self.tall, self.places.key + j * self.wide
        key = self.key
        for number in at:
            key = philox.folded(key, number)
        return (philox.uniform(key, shape, jnp.float32) >= self.what.rate).astype(kind) / (
            1 - self.what.rate
        )

    def when_past(self, i: Any, j: Any, function: Any, otherwise: Any) -> Any:
        """`function()`, or `otherwise` where causal attention has nothing to see."""
        if not self.what.causal:
            return function()
        return lax.cond(self.is_past(i, j), function, lambda: otherwise)


def _scores(q: Any, k: Any) -> Any:
    return jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=_kind(q))


def forward(
    what: Attend, q: Any, k: Any, v: Any, mask: Any, key: Any, places: Places = _START
) -> Partial:
    """Attention of some queries to some keys.

    Args:
      what: what attention does.
      q: queries [b, t, n, h], scaled.
      k: keys [b, s, n, h].
      v: values [b, s, n, h of values].
      mask: bool [b, 1 or t, s], True where attention may go, or None.
      key: int64 [3], where a generator stands, for dropout, or None.
      places: where these queries and keys begin in the whole sequences.
    """
    tiles = _Tiles(what, q, k, mask, key, places)
    keys, values = tiles.cut(k, 1, tiles.wide), tiles.cut(v, 1, tiles.wide)

    def rows(block: Any) -> Partial:
        i, queries = block

        def step(done: Partial, block: Any) -> Any:
            j, k, v = block

            def more() -> Partial:
                seen, scores = tiles.seen(i, j), _scores(queries, k)
                scores = jnp.where(seen, scores, _UNSEEN)
                largest = jnp.maximum(done.largest, scores.max(-1))
                weights = jnp.where(seen, jnp.exp(scores - largest[..., None]), 0)
                before = jnp.exp(done.largest - largest)
                total = done.total * before + weights.sum(-1)
                if what.rate:
                    weights = weights * tiles.kept(i, j, weights.shape, weights.dtype)
                found = jnp.einsum(
                    "bnts,bsnh->btnh", weights.astype(v.dtype), v, preferred_element_type=_kind(v)
                )
                return Partial(done.sums * _by_row(before) + found, largest, total)

            return tiles.when_past(i, j, more, done), None

        start = nothing(queries, v)
        return lax.scan(step, start, (jnp.arange(tiles.across), keys, values))[0]

    found = lax.map(rows, (jnp.arange(tiles.down), tiles.cut(q, 1, tiles.tall)))
    axes = Partial(1, 2, 2)
    return Partial(*(tiles.joined(f, a, tiles.queries) for f, a in zip(found, axes, strict=True)))


class Saved(NamedTuple):
    """What the backward pass knows: `sums` is the logarithm of the sum of exponentials, `given` the gradient of the
    values, and `paid` its product with the values, [b, n, t]."""

    sums: Any
    given: Any
    paid: Any


def backward(
    what: Attend,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    key: Any,
    saved: Saved,
    places: Places = _START,
) -> tuple[Any, Any, Any]:
    """Gradients of some queries, keys and values, by attention between them, in float32 at least.

    Args:
      what: what attention does.
      q: queries.
      k: keys.
      v: values.
      mask: as in `forward`.
      key: as in `forward`.
      saved: of these queries.
      places: where these queries and keys begin.
    """
    tiles = _Tiles(what, q, k, mask, key, places)
    by_query = (
        jnp.arange(tiles.down),
        tiles.cut(q, 1, tiles.tall),
        Saved(
            tiles.cut(saved.sums, 2, tiles.tall),
            tiles.cut(saved.given, 1, tiles.tall),
            tiles.cut(saved.paid, 2, tiles.tall),
        ),
    )
    kind = _kind(q)

    def columns(dq: Any, block: Any) -> Any:
        j, k, v = block

        def step(done: Any, block: Any) -> Any:
            i, q, saved = block

            def more() -> Any:
                dk, dv = done
                seen = tiles.seen(i, j)
                weights = jnp.where(seen, jnp.exp(_scores(q, k) - saved.sums[..., None]), 0)
                dw = _scores(saved.given, v)
                dropped = weights
                if what.rate:
                    kept = tiles.kept(i, j, weights.shape, weights.dtype)
                    dropped, dw = weights * kept, dw * kept
                ds = weights * (dw - saved.paid[..., None])
                into = functools.partial(jnp.einsum, preferred_element_type=kind)
                dv = dv + into("bnts,btnh->bsnh", dropped, saved.given.astype(kind))
                dk = dk + into("bnts,btnh->bsnh", ds, q.astype(kind))
                return (dk, dv), into("bnts,bsnh->btnh", ds, k.astype(kind))

            return tiles.when_past(i, j, more, (done, jnp.zeros(q.shape, kind)))

        start = jnp.zeros(k.shape, kind), jnp.zeros(v.shape, kind)
        found, more = lax.scan(step, start, by_query)
        return dq + more, found

    blocks = jnp.arange(tiles.across), tiles.cut(k, 1, tiles.wide), tiles.cut(v, 1, tiles.wide)
    dq, (dk, dv) = lax.scan(columns, jnp.zeros(by_query[1].shape, kind), blocks)
    return (
        tiles.joined(dq, 1, tiles.queries),
        tiles.joined(dk, 1, tiles.keys),
        tiles.joined(dv, 1, tiles.keys),
    )


def _saved_of(values: Any, sums: Any, given: Any) -> Saved:
    """What `backward` needs of the values of attention, their sums, and the gradient that arrives."""
    kind = _kind(values)
    paid = jnp.einsum("btnh,btnh->bnt", values.astype(kind), given.astype(kind))
    return Saved(sums, given.astype(values.dtype), paid)


def with_backward(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose backward pass knows the values and sums of the forward pass.

    Args:
      forward: of static values and (q, k, v, mask, key); gives values and logarithms of sums, as `finished` does.
      backward: of the same and `Saved`; gives gradients of q, k and v.

    Returns:
      A function of (a tuple of the static values, q, k, v, mask, key).
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def attention(static: tuple[Any, ...], q: Any, k: Any, v: Any, mask: Any, key: Any) -> Any:
        return forward(*static, q, k, v, mask, key)[0]

    def kept(static: tuple[Any, ...], q: Any, k: Any, v: Any, mask: Any, key: Any) -> Any:
        values, sums = forward(*static, q, k, v, mask, key)
        return values, (q, k, v, mask, key, values, sums)

    def pulled(static: tuple[Any, ...], kept: Any, given: Any) -> Any:
        *operands, values, sums = kept
        gradients = backward(*static, *operands, _saved_of(values, sums, given))
        pairs = zip(gradients, operands[:3], strict=True)
        return *(g.astype(x.dtype) for g, x in pairs), None, None

    attention.defvjp(kept, pulled)
    return attention


def _whole_forward(what: Attend, q: Any, k: Any, v: Any, mask: Any, key: Any) -> Any:
    return finished(forward(what, q, k, v, mask, key), v.dtype)


_attention = with_backward(_whole_forward, backward)


def attend(what: Attend, q: Any, k: Any, v: Any, mask: Any, key: Any) -> Any:
    """Attention of all queries to all keys, in memory that grows with their number and not with its square.

    Args:
      what: what attention does.
      q: queries [b, t, n, h], scaled.
      k: keys [b, s, n, h].
      v: values [b, s, n, h of values].
      mask: bool [b, 1 or t, s], True where attention may go, or None.
      key: int64 [3], where a generator stands, for dropout, or None.

    Returns:
      Values [b, t, n, h of values].
    """
    return _attention((what,), q, k, v, mask, key)
