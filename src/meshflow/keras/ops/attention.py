"""Dot-product attention.

Example:
  >>> x = ops.ones([1, 2, 1, 4])
  >>> ops.dot_product_attention(x, x, x).shape
  TensorShape([1, 2, 1, 4])
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import as_tensor, promote
from meshflow.kernels import attention as tiled_attention
from meshflow.kernels import flash_attention as cudnn_attention
from meshflow.ops import casting

__all__ = ["dot_product_attention"]


@op(same=("query", "key", "value"), name="dot_product_attention", heavy=True)
def _attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: TensorLike | None,
    mask: TensorLike | None,
    scale: float,
    is_causal: bool,
    cap: float | None,
    flash: bool | None,
) -> Any:
    has_mask = bias is not None or mask is not None
    if (
        flash is not False
        and cap is None
        and cudnn_attention.is_usable(query, key, value, has_mask)
    ):
        scale = float(scale)
        compute = functools.partial(_compute_attention, scale=scale, is_causal=is_causal, cap=None)
        return cudnn_attention.compute_attention(
            compute,
            query,
            key,
            value,
            _expand_to_rank4(bias),
            _expand_to_rank4(mask),
            scale,
            is_causal,
        )
    key, value = _repeat_heads(query, key, value)
    if flash is not False and cap is None and tiled_attention.is_worthwhile(query, key, value):
        fill = -0.7 * float(np.finfo(np.float32).max)
        options = tiled_attention.ScoreOptions(float(scale), is_causal, "replace", fill)
        masks = _expand_to_rank4(bias), _expand_to_rank4(mask)
        operands = tiled_attention.AttentionOperands(query, key, value, *masks)
        return tiled_attention.attend(options, operands)
    return _compute_attention(query, key, value, bias, mask, scale, is_causal, cap)


def _repeat_heads(
    query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Repeat the heads of keys and values for the queries of their groups."""
    groups = query.shape[2] // key.shape[2]
    return (
        (key, value) if groups == 1 else (jnp.repeat(key, groups, 2), jnp.repeat(value, groups, 2))
    )


def _expand_to_rank4(array: jax.Array | None) -> jax.Array | None:
    """Expand a bias or mask to the rank of the logits, with leading axes of size 1."""
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + array.shape)


def _compute_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    scale: float,
    is_causal: bool,
    cap: float | None,
) -> jax.Array:
    key, value = _repeat_heads(query, key, value)
    logits = jnp.einsum("btnh,bsnh->bnts", query, key).astype(
        jnp.promote_types(query.dtype, jnp.float32)
    )
    logits = logits * scale
    if cap is not None:
        logits = jnp.tanh(logits / cap) * cap
    if bias is not None:
        logits = logits + bias.astype(logits.dtype)
    if is_causal:
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        mask = causal if mask is None else jnp.logical_and(mask, causal)
    if mask is not None:
        logits = jnp.where(
            mask, logits, jnp.asarray(-0.7 * jnp.finfo(logits.dtype).max, logits.dtype)
        )
    weights = jax.nn.softmax(logits, -1).astype(key.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


@as_single_layer()
def dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: TensorLike | None = None,
    mask: TensorLike | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Compute `softmax(query key^T scale + bias) value` for each head (arXiv:1706.03762).

    Args:
      query: [batch, t, heads, size].
      key: [batch, s, key heads, size]; each key head serves an equal group of query heads.
      value: Tensor of the shape of `key`.
      bias: Tensor that is added to the logits, broadcast to [batch, heads, t, s].
      mask: True for the keys to attend to, broadcast to [batch, heads, t, s].
      scale: Scale of the logits; default `1 / sqrt(size)`.
      is_causal: Whether a query attends only to keys up to its own position.
      flash_attention: False uses XLA's operations. Otherwise cuDNN's fused attention is used for
        16-bit floats on NVIDIA GPUs, and tiles of the logits for long sequences of float32 or
        bfloat16 on CPUs, if possible.
      attn_logits_soft_cap: Bound for the absolute values of the logits, applied by tanh.

    Returns:
      [batch, t, heads, size].

    Example:
      >>> x = ops.ones([1, 2, 1, 4])
      >>> ops.dot_product_attention(x, x, x).shape
      TensorShape([1, 2, 1, 4])
    """
    query, key, value = promote(query, key, value, also=float)
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if len(operand.shape) != 4:
            raise ValueError(
                f"`dot_product_attention` only supports 4D inputs. Received: {name}.shape={tuple(operand.shape)}."
            )
    if query.shape[2] % key.shape[2]:
        raise ValueError(
            f"dot_product_attention: the number of query heads must be a multiple of the number of key heads, got {query.shape[2]} and {key.shape[2]}."
        )
    scale_factor = query.shape[-1] ** -0.5 if scale is None else scale
    bool_mask = None if mask is None else casting.cast(as_tensor(mask), dtypes.bool_)
    bias_tensor = None if bias is None else as_tensor(bias)
    return _attention(
        query,
        key,
        value,
        bias_tensor,
        bool_mask,
        scale_factor,
        is_causal,
        attn_logits_soft_cap,
        flash_attention,
    )
