"""Attention without a full matrix of scores: by cuDNN, in tiles, in blocks, or over sharded sequences."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel import sequence_attention
from meshflow.distribute.parallel.blockwise import AttentionOptions
from meshflow.distribute.parallel.sequence_attention import SequenceSharding
from meshflow.distribute.parallel.weight_reads import find_shard_map_mesh
from meshflow.distribute.strategy import get_strategy, has_strategy
from meshflow.kernels import attention, flash_attention
from meshflow.kernels.attention import AttentionOperands, ScoreOptions
from meshflow.ops import array, math
from meshflow.ops.random import count_counters

# Maximum number of scores for each example and head that are held at once: 64 MB of float32.
MAX_SCORES = 1 << 24
# Maximum number of features of pairs of queries and keys that are held at once.
MAX_PAIR_FEATURES = 1 << 24


def find_sequence_sharding() -> SequenceSharding | None:
    """Return how the current strategy shards sequences for attention, or None."""
    strategy = get_strategy() if has_strategy() else None
    algorithm = getattr(getattr(strategy, "options", None), "sequence", None)
    if algorithm not in ("ring", "ulysses"):
        return None
    axes = strategy.rules.dimensions("sequence")  # type: ignore[union-attr]
    mesh = strategy.mesh  # type: ignore[union-attr]
    heads = tuple(n for n in strategy.rules.dimensions("heads") if n not in axes)  # type: ignore[union-attr]
    if all(mesh.dim_size(name) == 1 for name in axes):
        return None
    named = find_shard_map_mesh(strategy)
    if named is not None:
        return SequenceSharding(algorithm, named, axes, strategy.batch_dimensions, heads)  # type: ignore[union-attr]
    if algorithm == "ring" and strategy.options.pipeline is not None:  # type: ignore[union-attr]
        algorithm = "gathered"
    return SequenceSharding(algorithm, None, axes, (), heads)


def compute_blockwise_attention(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: Sequence[Tensor],
    queries: Tensor | None,
    causal: bool,
    training: Any,
    return_scores: bool,
    masking: str = "add",
) -> Tensor | None:
    """Compute attention without a full matrix of scores, if it is possible and useful.

    Args:
      layer: The layer, with its `_dropout_layer`.
      q: Queries [b, t, n, h], scaled.
      k: Keys [b, s, n, h].
      v: Values [b, s, n, h].
      masks: Bool tensors that broadcast to [b, t, s]; a query attends to a key if all are True.
      queries: Bool tensor [b, t], False for queries that are padding, or None.
      causal: Whether queries attend only to keys at the same or earlier positions.
      training: Whether to apply dropout.
      return_scores: Whether the caller requires the attention weights.
      masking: How scores are masked; see `kernels.attention.ScoreOptions`.

    Returns:
      The outputs [b, t, n, h], or None if the layer has to compute the scores.

    Raises:
      ValueError: If a strategy shards sequences and the arguments require all scores.
    """
    sequences = find_sequence_sharding()
    rate = _get_dropout_rate(layer, training)
    obstacle = _find_obstacle(layer, rate, training, return_scores)
    if sequences is None and not obstacle:
        specs = _to_shape_struct(q), _to_shape_struct(k), _to_shape_struct(v)
        if attention.is_worthwhile(*specs):
            options = ScoreOptions(1.0, causal, masking, -1e9, rate, q.dtype.name)
            return _attend_in_tiles(layer, q, k, v, masks, queries, options)
    if any(len(m.shape) > 3 for m in masks):
        obstacle = obstacle or "an attention_mask for each head"
    if sequences is None:
        if obstacle:
            return None
        if flash_attention.is_usable(*specs, bool(masks)) and not rate:
            return apply(_cudnn_attention_op, (q, k, v, _combine_masks(masks, q, k)), (causal,))
        sizes = q.shape[1], k.shape[1]
        # Lengths are symbolic while a shape-polymorphic function is exported.
        if not all(isinstance(n, int) for n in sizes) or sizes[0] * sizes[1] <= MAX_SCORES:
            return None
    elif obstacle:
        raise ValueError(
            f"{type(layer).__name__} {layer.name}: {obstacle} needs the scores of whole sequences, but the strategy "
            f"splits them over devices (sequence={sequences.option_value!r}). Remove one of the two options."
        )
    key = layer._dropout_layer._stream.next_key(count_counters(*q.shape)) if rate else None
    block_options = AttentionOptions(causal, rate)
    mask = _combine_masks(masks, q, k)
    return apply(_blockwise_attention_op, (q, k, v, mask, queries, key), (block_options, sequences))


def _attend_in_tiles(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: Sequence[Tensor],
    queries: Tensor | None,
    options: ScoreOptions,
) -> Tensor:
    """Compute attention in tiles of the scores; the arguments are those of the caller."""
    key = _draw_noise_key(layer, q, k, options)
    return apply(_tiled_attention_op, (q, k, v, None, _to_rank4(masks), queries, key), (options,))


def _draw_noise_key(layer: Any, q: Tensor, k: Tensor, options: ScoreOptions) -> Tensor | None:
    """Draw the key of dropout of an array of all weights, or return None without dropout."""
    if not options.rate:
        return None
    (b, t, n, _), s = q.shape, k.shape[1]
    count = count_counters(*(1 if size is None else size for size in (b, n, t, s)))
    return layer._dropout_layer._stream.draw_op_key(count, f"uniform {options.noise}")


def _to_rank4(masks: Sequence[Tensor]) -> Tensor | None:
    """Combine masks; those without an axis of heads apply to all of them."""
    return _intersect_masks(masks, 4, -3)


def _intersect_masks(masks: Sequence[Tensor], rank: int, axis: int) -> Tensor | None:
    """Return True where all masks are True, with axes of size 1 inserted up to a rank; None without masks."""
    if not masks:
        return None
    mask = functools.reduce(math.logical_and, masks)
    while len(mask.shape) < rank:
        mask = array.expand_dims(mask, axis)
    return mask


def attend_additively(
    layer: Any,
    operands: Sequence[Tensor],
    factors: Sequence[Variable | None],
    masks: Sequence[Tensor],
    causal: bool,
    training: Any,
    return_scores: bool,
) -> Tensor | None:
    """Compute attention by sums of queries and keys in blocks of queries, if it is useful.

    Args:
      layer: The layer, with its `_dropout_layer`.
      operands: Queries [b, t, h], keys [b, s, h] and values [b, s, h of values].
      factors: Factors of the sums and of their hyperbolic tangents, or None.
      masks: Bool tensors that broadcast to [b, t, s].
      causal: Whether queries attend only to keys at the same or earlier positions.
      training: Whether to apply dropout.
      return_scores: Whether the caller requires the attention weights.

    Returns:
      The outputs [b, t, h of values], or None if the layer has to compute the scores.
    """
    query, key, _ = operands
    rate = _get_dropout_rate(layer, training)
    sizes = (*query.shape, key.shape[1])
    if (
        any(len(x.shape) != 3 for x in operands)
        or not all(isinstance(n, int) for n in sizes)
        or prod(sizes) <= MAX_PAIR_FEATURES
        or _find_obstacle(layer, rate, training, return_scores)
    ):
        return None
    options = ScoreOptions(1.0, causal, "add_each", -1e9, rate, query.dtype.name)
    q, k, v = (array.expand_dims(x, 2) for x in operands)
    noise_key = _draw_noise_key(layer, q, k, options)
    inputs = (
        q,
        k,
        v,
        _to_rank4(masks),
        noise_key,
        *(None if f is None else f.value() for f in factors),
    )
    return array.squeeze(apply(_additive_attention_op, inputs, (options,)), 2)


def _attend_to_sums(
    options: ScoreOptions,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    noise_key: jax.Array | None,
    inner: jax.Array | None,
    outer: jax.Array | None,
) -> jax.Array:
    def compute_scores(query: jax.Array, key: jax.Array) -> jax.Array:
        sums = query.transpose(0, 2, 1, 3)[:, :, :, None] + key.transpose(0, 2, 1, 3)[:, :, None]
        features = jnp.tanh(sums if inner is None else sums * inner)
        return (features if outer is None else features * outer).sum(-1, dtype=np.float32)

    operands = AttentionOperands(q, k, v, None, mask, None, noise_key)
    return attention.attend_in_blocks(options, operands, compute_scores)


_additive_attention_op = Op(
    "additive_attention_in_blocks",
    lambda operands, static: _attend_to_sums(*static, *operands),
    is_foldable=False,
)


def _to_shape_struct(tensor: Tensor) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of a tensor; unknown sizes are symbolic."""
    return jax.ShapeDtypeStruct(tuple(tensor.array.shape), tensor.array.dtype)


def _get_dropout_rate(layer: Any, training: Any) -> float:
    """Return the rate of dropout, or 0 if the layer is not trained; a tensor `training` may be True."""
    return float(layer._dropout_layer.rate) if isinstance(training, Tensor) or training else 0.0


def _find_obstacle(layer: Any, dropout_rate: float, training: Any, return_scores: bool) -> str:
    """Return the name of the option that requires all scores, or ""."""
    if return_scores:
        return "return_attention_scores=True"
    if layer.dtype_policy.uses_float8:
        return "the policy mixed_float8"
    if isinstance(training, Tensor) and dropout_rate:
        return "dropout by a tensor `training`"
    return "dropout of all weights" if dropout_rate >= 1 else ""


def _combine_masks(masks: Sequence[Tensor], q: Tensor, k: Tensor) -> Tensor | None:
    """Return one mask [b, 1 or t, s], or None."""
    mask = _intersect_masks(masks, 3, 0)
    if mask is None:
        return None
    rows = 1 if mask.shape[1] == 1 else q.shape[1]
    return array.broadcast_to(mask, [q.shape[0], rows, k.shape[1]])


def _attend_by_cudnn(
    static: tuple[bool], q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None
) -> jax.Array:
    (causal,) = static
    fallback = functools.partial(flash_attention.compute_xla_attention, scale=1.0, is_causal=causal)
    mask = None if mask is None else mask[:, None]
    return flash_attention.compute_attention(fallback, q, k, v, None, mask, 1.0, causal)


_cudnn_attention_op = Op(
    "attention_by_cudnn",
    lambda operands, static: _attend_by_cudnn(static, *operands),
    is_foldable=False,
)


_tiled_attention_op = Op(
    "attention_in_tiles",
    lambda operands, static: attention.attend(static[0], AttentionOperands(*operands)),
    is_foldable=False,
)


def _attend_in_blocks(
    static: tuple[AttentionOptions, SequenceSharding | None],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None,
    queries: jax.Array | None,
    key: jax.Array | None,
) -> jax.Array:
    options, sequences = static
    return sequence_attention.attend(options, q, k, v, mask, queries, key, sequences)


_blockwise_attention_op = Op(
    "attention_in_parts",
    lambda operands, static: _attend_in_blocks(static, *operands),
    is_foldable=False,
)
