"""Compute attention by cuDNN on NVIDIA GPUs, without writing the scores to memory.

The choice is made twice: while a function is traced, for the shapes and the default device, and while it is lowered, for
the platform. A program traced on a machine with a GPU and exported for CPUs therefore has XLA's code there.
`MESHFLOW_ATTENTION=xla` leaves attention to XLA everywhere; cuDNN has no gradients of higher order.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

__all__ = ["VARIABLE", "attention", "is_usable", "plain_attention"]

VARIABLE = "MESHFLOW_ATTENTION"

# cuDNN's limits on the head size, before compute capability 9.0 and from there on.
_LARGEST_HEAD, _LARGEST_HEAD_ON_HOPPER, _HEAD_MULTIPLE = 128, 256, 8
# Shorter sequences have so few scores that XLA's fused softmax is as fast.
_SHORTEST = 64


def is_usable(query: Any, key: Any, value: Any, has_mask: bool) -> bool:
    """Return whether cuDNN computes attention of these arrays on the default device.

    Args:
      query: array or shape [batch, t, heads, size], with a dtype.
      key: the same [batch, s, key heads, size].
      value: of the shape of `key`.
      has_mask: whether there is a mask or a bias.

    Raises:
      ValueError: for an unknown value of the variable MESHFLOW_ATTENTION.
    """
    if not is_wanted() or not _has_cudnn():
        return False
    given = [(tuple(a.shape), np.dtype(a.dtype)) for a in (query, key, value)]
    if not all(isinstance(n, int) for shape, _ in given for n in shape):
        return False
    return _fits(tuple(given), has_mask)


def is_wanted() -> bool:
    """Return whether the environment lets cuDNN compute attention: MESHFLOW_ATTENTION is "auto" (the default), not "xla".

    Raises:
      ValueError: for any other value of the variable.
    """
    value = os.environ.get(VARIABLE, "auto")
    if value not in ("auto", "xla"):
        raise ValueError(f"{VARIABLE} must be 'auto' or 'xla', got {value!r}.")
    return value == "auto"


def _has_cudnn() -> bool:
    """Return whether programs run on an NVIDIA GPU from compute capability 8.0 on."""
    return _capability() >= 8.0


def _capability() -> float:
    """Return the compute capability of the default device, 0 unless it is an NVIDIA GPU."""
    if jax.default_backend() != "gpu":
        return 0.0
    device = jax.local_devices()[0]
    if "cuda" not in str(device.client.platform_version):
        return 0.0
    try:
        return float(device.compute_capability)
    except (AttributeError, ValueError):
        return 0.0


@functools.lru_cache(256)
def _fits(given: tuple[Any, ...], has_mask: bool) -> bool:
    """Return whether cuDNN takes arrays of these shapes and dtypes."""
    (query, dtype), (key, key_dtype), (value, value_dtype) = given
    if {dtype, key_dtype, value_dtype} - {np.dtype("float16"), np.dtype(jax.numpy.bfloat16)}:
        return False
    if not dtype == key_dtype == value_dtype or any(len(s) != 4 for s in (query, key, value)):
        return False
    (_, t, heads, size), (_, s, key_heads, _) = query, key
    largest = _LARGEST_HEAD_ON_HOPPER if _capability() >= 9.0 else _LARGEST_HEAD
    if size > largest or size % _HEAD_MULTIPLE or key != value or heads % key_heads:
        return False
    if min(t, s) < _SHORTEST or (has_mask and (t % 2 or s % 2)):
        return False
    return _is_accepted(query, key, dtype)


def _is_accepted(query: tuple[int, ...], key: tuple[int, ...], dtype: Any) -> bool:
    """Return whether JAX finds a version of cuDNN that has a gradient for these shapes."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return _by_cudnn(q, k, v, None, None, 1.0, True).astype(np.float32).sum()

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in (query, key, key)]
    try:
        jax.eval_shape(jax.grad(loss, (0, 1, 2)), *shapes)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _by_cudnn(q: Any, k: Any, v: Any, bias: Any, mask: Any, scale: float, is_causal: bool) -> Any:
    return jax.nn.dot_product_attention(
        q, k, v, bias, mask, scale=scale, is_causal=is_causal, implementation="cudnn"
    )


def attention(
    plain: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float = 1.0,
    is_causal: bool = False,
) -> Any:
    """Compute attention by cuDNN where a program is lowered for CUDA, for arrays that `is_usable` accepts.

    Args:
      plain: the same for other platforms, called with query, key, value, bias and mask.
      query: [batch, t, heads, size].
      key: [batch, s, key heads, size].
      value: of the shape of `key`.
      bias: added to the logits, broadcasting to [batch, heads, t, s], or None.
      mask: bool, broadcasting to the same, or None.
      scale: the factor of the logits.
      is_causal: whether queries see only keys up to their own position.

    Returns:
      [batch, t, heads, size].
    """
    kept = [a for a in (bias, mask) if a is not None]

    def all_five(arrays: Any) -> Any:
        q, k, v, *rest = arrays
        some = iter(rest)
        return (q, k, v, *[None if a is None else next(some) for a in (bias, mask)])

    def by_cudnn(*arrays: Any) -> Any:
        q, k, v, own_bias, own_mask = all_five(arrays)
        return _by_cudnn(q, k, v, own_bias, own_mask, scale, is_causal)

    def by_xla(*arrays: Any) -> Any:
        return plain(*all_five(arrays))

    return jax.lax.platform_dependent(query, key, value, *kept, cuda=by_cudnn, default=by_xla)


def plain_attention(
    q: Any, k: Any, v: Any, bias: Any, mask: Any, scale: float, is_causal: bool
) -> Any:
    """Compute the same attention by XLA; the arguments are those of `attention`."""
    return jax.nn.dot_product_attention(
        q, k, v, bias, mask, scale=scale, is_causal=is_causal, implementation="xla"
    )
