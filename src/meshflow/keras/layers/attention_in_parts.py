"""How attention layers run in parts: by cuDNN, in blocks on one device, or over sequences that lie on several."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.parallel import sequence
from meshflow.distribute.parallel.blockwise import Attend
from meshflow.distribute.parallel.reading import mesh_to_name
from meshflow.distribute.parallel.sequence import Sequences
from meshflow.distribute.strategy import get_strategy, has_strategy
from meshflow.kernels import flash_attention
from meshflow.ops import array, math
from meshflow.ops.random import counts_of

__all__ = ["attention_in_parts", "sequences_in_parts"]

# More scores than this for a head of an example, 64 MB of float32, are computed in blocks.
LONG = 1 << 24


def sequences_in_parts() -> Sequences | None:
    """How the current strategy has attention run over sequences on several devices; None where it does not."""
    strategy = get_strategy() if has_strategy() else None
    way = getattr(getattr(strategy, "options", None), "sequence", None)
    if way not in ("ring", "ulysses"):
        return None
    axes = strategy.rules.dimensions("sequence")  # type: ignore[union-attr]
    mesh = strategy.mesh  # type: ignore[union-attr]
    heads = tuple(n for n in strategy.rules.dimensions("heads") if n not in axes)  # type: ignore[union-attr]
    if all(mesh.dim_size(name) == 1 for name in axes):
        return None
    named = mesh_to_name(strategy)
    if named is not None:
        return Sequences(way, named, axes, strategy.batch_dimensions, heads)  # type: ignore[union-attr]
    if way == "ring" and strategy.options.pipeline is not None:  # type: ignore[union-attr]
        way = "gathered"
    return Sequences(way, None, axes, (), heads)


def attention_in_parts(
    layer: Any,
    q: Any,
    k: Any,
    v: Any,
    masks: Sequence[Any],
    queries: Any,
    causal: bool,
    training: Any,
    return_scores: bool,
) -> Any:
    """Attention whose scores are never whole, or None where the layer is to compute them.

    Args:
      layer: the layer, with its `_dropout_layer`.
      q: queries [b, t, n, h], scaled.
      k: keys [b, s, n, h].
      v: values [b, s, n, h].
      masks: what must be True for a query to see a key: bool tensors that broadcast to [b, t, s].
      queries: bool [b, t], False for queries that are padding, or None.
      causal: whether queries see only keys of earlier positions and their own.
      training: whether dropout is on.
      return_scores: whether the weights are wanted.

    Raises:
      ValueError: when a strategy splits sequences and the layer's arguments need all scores.
    """
    sequences = sequences_in_parts()
    refused = _refusal(layer, masks, training, return_scores)
    if sequences is None:
        drops = bool(layer._dropout_layer.rate) and training is not None and training is not False
        described = _described(q), _described(k), _described(v)
        usable = flash_attention.is_usable(*described, bool(masks))
        if usable and not refused and not drops:
            return apply(_by_cudnn, (q, k, v, _combined(masks, q, k)), (causal,))
        sizes = q.shape[1], k.shape[1]
        # Lengths are symbols while a function for any of them is saved.
        long = all(isinstance(n, int) for n in sizes) and sizes[0] * sizes[1] > LONG
        if not long or refused:
            return None
    elif refused:
        raise ValueError(
            f"{type(layer).__name__} {layer.name}: {refused} needs the scores of whole sequences, but the strategy "
            f"splits them over devices (sequence={sequences.option!r}). Leave it out, or leave sequence= out."
        )
    rate = float(layer._dropout_layer.rate) if training else 0.0
    key = layer._dropout_layer._stream.next_key(counts_of(*q.shape)) if rate else None
    what = Attend(causal, rate)
    mask = _combined(masks, q, k)
    return apply(_attention, (q, k, v, mask, queries, key), (what, sequences))


def _described(tensor: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a tensor; an unknown size is no number."""
    return jax.ShapeDtypeStruct(tuple(tensor._value.shape), tensor._value.dtype)


def _refusal(layer: Any, masks: Sequence[Any], training: Any, return_scores: bool) -> str:
    if return_scores:
        return "return_attention_scores=True"
    if any(len(m.shape) > 3 for m in masks):
        return "an attention_mask for each head"
    if layer.dtype_policy.float8:
        return "the policy mixed_float8"
    if isinstance(training, Tensor) and layer._dropout_layer.rate:
        return "dropout by a tensor `training`"
    return "dropout of all weights" if layer._dropout_layer.rate >= 1 and training else ""


def _combined(masks: Sequence[Any], q: Any, k: Any) -> Any:
    """One mask [b, 1 or t, s], or None."""
    result = None
    for mask in masks:
        result = mask if result is None else math.logical_and(result, mask)
    if result is None:
        return None
    while len(result.shape) < 3:
        result = array.expand_dims(result, 0)
    rows = 1 if result.shape[1] == 1 else q.shape[1]
    return array.broadcast_to(result, [q.shape[0], rows, k.shape[1]])


def _fused(static: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    (causal,) = static
    plain = functools.partial(flash_attention.plain_attention, scale=1.0, is_causal=causal)
    mask = None if mask is None else mask[:, None]
    return flash_attention.attention(plain, q, k, v, None, mask, 1.0, causal)


_by_cudnn = Op(
    "attention_by_cudnn",
    lambda operands, static: _fused(static, *operands),
    is_foldable=False,
)


def _attend(static: Any, q: Any, k: Any, v: Any, mask: Any, queries: Any, key: Any) -> Any:
    what, sequences = static
    return sequence.attention(what, q, k, v, mask, queries, key, sequences)


_attention = Op(
    "attention_in_parts",
    lambda operands, static: _attend(static, *operands),
    is_foldable=False,
)
