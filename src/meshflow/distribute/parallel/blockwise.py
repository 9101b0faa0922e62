"""Blockwise attention, which never holds all scores in memory: pure functions of arrays.

Letters in shapes: b batch, t queries, s keys, n heads, h features of a head. Softmax over blocks of
keys needs only the running maximum and sum (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et
al. 2022, FlashAttention, arXiv:2205.14135). The backward pass recomputes the scores from the
logarithm of the sum of exponentials. Sums are float32 or wider. A query without visible keys has
the result zero.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from meshflow.core.runtime import philox
from meshflow.environment.types import PyTree

# Score of masked keys: its exponential is 0 relative to any other.
_MASKED_SCORE = -1e30


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """Static options of attention.

    Attributes:
      causal: Whether queries attend only to keys of their own and earlier positions.
      rate: Dropout rate of the attention weights.
      block: Number of queries, and of keys, of a block.
      keys: Number of keys; later positions are padding. None if there is no padding.
    """

    causal: bool = False
    rate: float = 0.0
    block: int = 512
    keys: int | None = None


class PartialAttention(NamedTuple):
    """Attention to some of the keys.

    Attributes:
      sums: Unnormalized weighted sums of values [b, t, n, h].
      largest: Maximum score [b, n, t].
      total: Sum of exponentials relative to `largest` [b, n, t].
    """

    sums: jax.Array
    largest: jax.Array
    total: jax.Array


class BlockOffsets(NamedTuple):
    """Offsets of a part of the queries and keys in the full sequences."""

    query: jax.Array | int
    key: jax.Array | int


_ZERO_OFFSETS = BlockOffsets(0, 0)


def _get_accumulation_dtype(array: jax.Array) -> np.dtype:
    return jnp.promote_types(array.dtype, jnp.float32)


def make_empty(q: jax.Array, v: jax.Array) -> PartialAttention:
    """Return attention to no keys.

    Args:
      q: Queries [b, t, n, h].
      v: Values [b, s, n, h of values].

    Returns:
      The empty partial attention.
    """
    b, t, n, _ = q.shape
    dtype = _get_accumulation_dtype(q)
    return PartialAttention(
        jnp.zeros((b, t, n, v.shape[-1]), dtype),
        jnp.full((b, n, t), _MASKED_SCORE, dtype),
        jnp.zeros((b, n, t), dtype),
    )


def merge(a: PartialAttention, b: PartialAttention) -> PartialAttention:
    """Merge attention of the same queries to two sets of keys."""
    largest = jnp.maximum(a.largest, b.largest)
    scale_a, scale_b = jnp.exp(a.largest - largest), jnp.exp(b.largest - largest)
    sums = a.sums * _to_row_axes(scale_a) + b.sums * _to_row_axes(scale_b)
    return PartialAttention(sums, largest, a.total * scale_a + b.total * scale_b)


def normalize(partial: PartialAttention, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """Normalize partial attention.

    Args:
      partial: Attention to all keys.
      dtype: Dtype of the values.

    Returns:
      Values [b, t, n, h], and the logarithm of the sum of exponentials [b, n, t].
    """
    total = jnp.where(partial.total > 0, partial.total, 1)
    return (partial.sums / _to_row_axes(total)).astype(dtype), partial.largest + jnp.log(total)


def _to_row_axes(x: jax.Array) -> jax.Array:
    return x.transpose(0, 2, 1)[..., None]


class _ScoreTiles:
    """Tiles of the scores between a part of the queries and a part of the keys.

    Args:
      options: Options of attention.
      q: Queries [b, t, n, h].
      k: Keys [b, s, n, h].
      mask: bool [b, 1 or t, s], or None.
      key: int64 [3], a random generator state for dropout, or None.
      offsets: Offsets of the parts.
    """

    def __init__(
        self,
        options: AttentionOptions,
        q: jax.Array,
        k: jax.Array,
        mask: jax.Array | None,
        key: jax.Array | None,
        offsets: BlockOffsets,
    ) -> None:
        self.options, self.key, self.offsets = options, key, offsets
        self.queries, self.keys = q.shape[1], k.shape[1]
        self.tile_height, self.tile_width = (
            min(options.block, self.queries),
            min(options.block, self.keys),
        )
        self.num_rows, self.num_columns = (
            -(-self.queries // self.tile_height),
            -(-self.keys // self.tile_width),
        )
        self.mask = mask
        if mask is not None:
            rows = 0 if mask.shape[1] == 1 else self.num_rows * self.tile_height - self.queries
            more = self.num_columns * self.tile_width - self.keys
            self.mask = jnp.pad(mask, [(0, 0), (0, rows), (0, more)])

    def split_blocks(self, x: jax.Array, axis: int, size: int) -> jax.Array:
        """Split an axis into blocks, which become the first axis."""
        padding = -x.shape[axis] % size
        x = jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)])
        shape = (*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    def join_blocks(self, blocks: jax.Array, axis: int, count: int) -> jax.Array:
        """Undo `split_blocks`; `count` is the size of the axis."""
        x = jnp.moveaxis(blocks, 0, axis)
        x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        return lax.slice_in_dim(x, 0, count, axis=axis)

    def get_visibility(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """Return which keys of a tile its queries can attend to: bool [b or 1, 1, height or 1, width]."""
        positions = j * self.tile_width + jnp.arange(self.tile_width)
        key = self.offsets.key + positions
        visible = positions < self.keys
        if self.options.keys is not None:
            visible &= key < self.options.keys
        visible = visible[None, :]
        if self.options.causal:
            query = self.offsets.query + i * self.tile_height + jnp.arange(self.tile_height)
            visible = visible & (query[:, None] >= key)
        visible = visible[None]
        if self.mask is not None:
            part = lax.dynamic_slice_in_dim(self.mask, j * self.tile_width, self.tile_width, axis=2)
            if part.shape[1] > 1:
                part = lax.dynamic_slice_in_dim(
                    part, i * self.tile_height, self.tile_height, axis=1
                )
            visible = visible & part
        return visible[:, None]

    def has_visible(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """Check whether a query of a tile is at or after the position of a key."""
        last = self.offsets.query + (i + 1) * self.tile_height - 1
        return last >= self.offsets.key + j * self.tile_width

    def make_dropout(
        self, i: jax.Array, j: jax.Array, shape: tuple[int, ...], dtype: DTypeLike
    ) -> jax.Array:
        """Return the factors that dropout multiplies the weights of a tile by."""
        offsets = self.offsets.query + i * self.tile_height, self.offsets.key + j * self.tile_width
        assert self.key is not None
        key = self.key
        for offset in offsets:
            key = philox.fold_in(key, offset)
        return (philox.draw_uniform(key, shape, jnp.float32) >= self.options.rate).astype(dtype) / (
            1 - self.options.rate
        )

    def run_if_visible(
        self, i: jax.Array, j: jax.Array, function: Callable[[], PyTree], otherwise: PyTree
    ) -> PyTree:
        """Return `function()`, or `otherwise` if causal attention masks the entire tile."""
        if not self.options.causal:
            return function()
        return lax.cond(self.has_visible(i, j), function, lambda: otherwise)


def _compute_scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=_get_accumulation_dtype(q))


def attend_partial(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
    offsets: BlockOffsets = _ZERO_OFFSETS,
) -> PartialAttention:
    """Compute attention of some queries to some keys.

    Args:
      options: Options of attention.
      q: Queries [b, t, n, h], scaled.
      k: Keys [b, s, n, h].
      v: Values [b, s, n, h of values].
      mask: bool [b, 1 or t, s], True where a query may attend to a key, or None.
      key: int64 [3], a random generator state for dropout, or None.
      offsets: Offsets of these queries and keys in the full sequences.

    Returns:
      The attention to these keys, before normalization.
    """
    tiles = _ScoreTiles(options, q, k, mask, key, offsets)
    keys, values = (
        tiles.split_blocks(k, 1, tiles.tile_width),
        tiles.split_blocks(v, 1, tiles.tile_width),
    )

    def attend_row(block: tuple[jax.Array, jax.Array]) -> PartialAttention:
        i, queries = block

        def step(
            done: PartialAttention, block: tuple[jax.Array, ...]
        ) -> tuple[PartialAttention, None]:
            j, k, v = block

            def attend_tile() -> PartialAttention:
                seen, scores = tiles.get_visibility(i, j), _compute_scores(queries, k)
                scores = jnp.where(seen, scores, _MASKED_SCORE)
                largest = jnp.maximum(done.largest, scores.max(-1))
                weights = jnp.where(seen, jnp.exp(scores - largest[..., None]), 0)
                before = jnp.exp(done.largest - largest)
                total = done.total * before + weights.sum(-1)
                if options.rate:
                    weights = weights * tiles.make_dropout(i, j, weights.shape, weights.dtype)
                found = jnp.einsum(
                    "bnts,bsnh->btnh",
                    weights.astype(v.dtype),
                    v,
                    preferred_element_type=_get_accumulation_dtype(v),
                )
                return PartialAttention(done.sums * _to_row_axes(before) + found, largest, total)

            return tiles.run_if_visible(i, j, attend_tile, done), None

        start = make_empty(queries, v)
        return lax.scan(step, start, (jnp.arange(tiles.num_columns), keys, values))[0]

    partials = lax.map(
        attend_row, (jnp.arange(tiles.num_rows), tiles.split_blocks(q, 1, tiles.tile_height))
    )
    axes = 1, 2, 2
    return PartialAttention(
        *(tiles.join_blocks(f, a, tiles.queries) for f, a in zip(partials, axes, strict=True))
    )


class AttentionResiduals(NamedTuple):
    """Values for the backward pass of attention.

    Attributes:
      log_sums: Logarithm of the sum of exponentials [b, n, t].
      gradient: Gradient of the values [b, t, n, h of values].
      gradient_dot_values: Sum over features of gradient times values [b, n, t].
    """

    log_sums: jax.Array
    gradient: jax.Array
    gradient_dot_values: jax.Array


def differentiate_partial(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
    saved: AttentionResiduals,
    offsets: BlockOffsets = _ZERO_OFFSETS,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute gradients of queries, keys and values from the attention between them.

    The gradients are float32 or wider.

    Args:
      options: Options of attention.
      q: Queries.
      k: Keys.
      v: Values.
      mask: As in `attend_partial`.
      key: As in `attend_partial`.
      saved: Residuals of these queries.
      offsets: Offsets of these queries and keys.

    Returns:
      Gradients of q, k and v.
    """
    tiles = _ScoreTiles(options, q, k, mask, key, offsets)
    by_query = (
        jnp.arange(tiles.num_rows),
        tiles.split_blocks(q, 1, tiles.tile_height),
        AttentionResiduals(
            tiles.split_blocks(saved.log_sums, 2, tiles.tile_height),
            tiles.split_blocks(saved.gradient, 1, tiles.tile_height),
            tiles.split_blocks(saved.gradient_dot_values, 2, tiles.tile_height),
        ),
    )
    dtype = _get_accumulation_dtype(q)

    def differentiate_column(dq: jax.Array, block: tuple[jax.Array, ...]) -> PyTree:
        j, k, v = block

        def step(done: tuple[jax.Array, jax.Array], block: PyTree) -> PyTree:
            i, q, saved = block

            def differentiate_tile() -> PyTree:
                dk, dv = done
                seen = tiles.get_visibility(i, j)
                weights = jnp.where(
                    seen, jnp.exp(_compute_scores(q, k) - saved.log_sums[..., None]), 0
                )
                dw = _compute_scores(saved.gradient, v)
                dropped = weights
                if options.rate:
                    dropout = tiles.make_dropout(i, j, weights.shape, weights.dtype)
                    dropped, dw = weights * dropout, dw * dropout
                ds = weights * (dw - saved.gradient_dot_values[..., None])
                product = functools.partial(jnp.einsum, preferred_element_type=dtype)
                dv = dv + product("bnts,btnh->bsnh", dropped, saved.gradient.astype(dtype))
                dk = dk + product("bnts,btnh->bsnh", ds, q.astype(dtype))
                return (dk, dv), product("bnts,bsnh->btnh", ds, k.astype(dtype))

            return tiles.run_if_visible(i, j, differentiate_tile, (done, jnp.zeros(q.shape, dtype)))

        start = jnp.zeros(k.shape, dtype), jnp.zeros(v.shape, dtype)
        dk_dv, column_dq = lax.scan(step, start, by_query)
        return dq + column_dq, dk_dv

    blocks = (
        jnp.arange(tiles.num_columns),
        tiles.split_blocks(k, 1, tiles.tile_width),
        tiles.split_blocks(v, 1, tiles.tile_width),
    )
    dq, (dk, dv) = lax.scan(differentiate_column, jnp.zeros(by_query[1].shape, dtype), blocks)
    return (
        tiles.join_blocks(dq, 1, tiles.queries),
        tiles.join_blocks(dk, 1, tiles.keys),
        tiles.join_blocks(dv, 1, tiles.keys),
    )


def _make_residuals(values: jax.Array, sums: jax.Array, gradient: jax.Array) -> AttentionResiduals:
    """Compute the residuals from the values, their logarithms of sums, and the incoming gradient."""
    dtype = _get_accumulation_dtype(values)
    paid = jnp.einsum("btnh,btnh->bnt", values.astype(dtype), gradient.astype(dtype))
    return AttentionResiduals(sums, gradient.astype(values.dtype), paid)


def define_attention(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Define attention with a backward pass that uses the values and sums of the forward pass.

    Args:
      forward: Function of static values and (q, k, v, mask, key) that returns values and logarithms
        of sums, as `normalize` does.
      backward: Function of the same and `AttentionResiduals` that returns gradients of q, k and v.

    Returns:
      A function of (tuple of static values, q, k, v, mask, key) that returns the values.
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def attention(
        static: tuple[Any, ...],
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: jax.Array | None,
        key: jax.Array | None,
    ) -> jax.Array:
        return forward(*static, q, k, v, mask, key)[0]

    def run_forward(
        static: tuple[Any, ...],
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: jax.Array | None,
        key: jax.Array | None,
    ) -> PyTree:
        values, sums = forward(*static, q, k, v, mask, key)
        return values, (q, k, v, mask, key, values, sums)

    def run_backward(static: tuple[Any, ...], residuals: PyTree, gradient: jax.Array) -> PyTree:
        *operands, values, sums = residuals
        gradients = backward(*static, *operands, _make_residuals(values, sums, gradient))
        pairs = zip(gradients, operands[:3], strict=True)
        return *(g.astype(x.dtype) for g, x in pairs), None, None

    attention.defvjp(run_forward, run_backward)
    return attention


def _attend_all(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    return normalize(attend_partial(options, q, k, v, mask, key), v.dtype)


_attention = define_attention(_attend_all, differentiate_partial)


def attend_blockwise(
    options: AttentionOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
) -> jax.Array:
    """Compute attention of all queries to all keys, with memory that is linear in their number.

    Args:
      options: Options of attention.
      q: Queries [b, t, n, h], scaled.
      k: Keys [b, s, n, h].
      v: Values [b, s, n, h of values].
      mask: bool [b, 1 or t, s], True where a query may attend to a key, or None.
      key: int64 [3], a random generator state for dropout, or None.

    Returns:
      Values [b, t, n, h of values].
    """
    return _attention((options,), q, k, v, mask, key)
