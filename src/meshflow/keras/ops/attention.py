"""Attention.

Example:
  >>> from meshflow.keras import ops
  >>> x = ops.ones([1, 2, 1, 4])
  >>> ops.dot_product_attention(x, x, x).shape
  TensorShape([1, 2, 1, 4])
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.promotion import common, tensor
from meshflow.kernels import flash_attention as by_cudnn
from meshflow.ops import casting

__all__ = ["dot_product_attention"]


@op(same=("query", "key", "value"), name="dot_product_attention", heavy=True)
def _attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: TensorLike | None,
    mask: TensorLike | None,
    scale: Any,
    is_causal: bool,
    cap: Any,
    flash: bool | None,
) -> Any:
    some = bias is not None or mask is not None
    if flash is not False and cap is None and by_cudnn.is_usable(query, key, value, some):
        scale = float(scale)
        plain = functools.partial(_plain, scale=scale, is_causal=is_causal, cap=None)
        own_bias, own_mask = _four_axes(bias), _four_axes(mask)
        return by_cudnn.attention(plain, query, key, value, own_bias, own_mask, scale, is_causal)
    return _plain(query, key, value, bias, mask, scale, is_causal, cap)


def _four_axes(array: Any) -> Any:
    """A bias or mask with all axes of the logits, of size 1 where it has none."""
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + array.shape)


def _plain(
    query: Any, key: Any, value: Any, bias: Any, mask: Any, scale: Any, is_causal: bool, cap: Any
) -> Any:
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(v, groups, 2) if groups > 1 else v for v in (key, value))
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
    shares = jax.nn.softmax(logits, -1).astype(key.dtype)
    return jnp.einsum("bnts,bsnh->btnh", shares, value)


@one_layer()
def dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """`softmax(query key^T scale + bias) value` of each head (arXiv:1706.03762).

    Args:
      query: [batch, t, heads, size].
      key: [batch, s, key heads, size]; fewer heads are shared by groups of the queries'.
      value: of the shape of `key`.
      bias: added to the logits, broadcasting to [batch, heads, t, s].
      mask: what takes part, broadcasting to the same.
      scale: the factor; default `1 / sqrt(size)`.
      is_causal: whether nothing sees what comes after it.
      flash_attention: False leaves the computation to XLA; otherwise cuDNN's fused attention is used where it
        can be, for 16-bit floats on NVIDIA GPUs.
      attn_logits_soft_cap: logits are bent to stay within this number.

    Returns:
      [batch, t, heads, size].

    Example:
      >>> from meshflow.keras import ops
      >>> x = ops.ones([1, 2, 1, 4])
      >>> ops.dot_product_attention(x, x, x).shape
      TensorShape([1, 2, 1, 4])
    """
    query, key, value = common(query, key, value, also=float)
    for name, given in (("query", query), ("key", key), ("value", value)):
        if len(given.shape) != 4:
            raise ValueError(
                f"`dot_product_attention` only supports 4D inputs. Received: {name}.shape={tuple(given.shape)}."
            )
    if query.shape[2] % key.shape[2]:
        raise ValueError(
            f"dot_product_attention: {query.shape[2]} heads of the query are no multiple of the {key.shape[2]} of the key."
        )
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    given_mask = None if mask is None else casting.cast(tensor(mask), dtypes.bool_)
    given_bias = None if bias is None else tensor(bias)
    return _attention(
        query,
        key,
        value,
        given_bias,
        given_mask,
        factor,
        is_causal,
        attn_logits_soft_cap,
        flash_attention,
    )
