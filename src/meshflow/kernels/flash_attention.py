"""Attention by cuDNN on NVIDIA GPUs, without writing the scores to memory; on CPUs, see `attention`.

The choice is made twice: while a function is traced, for the shapes and the default device, and
while it is lowered, for the platform. A program traced on a machine with a GPU and exported for
CPUs therefore uses XLA's code there. `MESHFLOW_ATTENTION=xla` disables cuDNN, which has no
higher-order gradients, and tiles on CPUs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from meshflow.kernels.library import Aval

VARIABLE = "MESHFLOW_ATTENTION"

# cuDNN's maximum head sizes before and from compute capability 9.0, and the divisor of all.
_MAX_HEAD_SIZE, _MAX_HEAD_SIZE_ON_HOPPER, _HEAD_SIZE_DIVISOR = 128, 256, 8
# Shorter sequences have so few scores that XLA's fused softmax is as fast.
_MIN_SEQUENCE = 64


def is_usable(query: Aval | Array, key: Aval | Array, value: Aval | Array, has_mask: bool) -> bool:
    """Check whether cuDNN can compute attention of these arrays on the default device.

    Args:
      query: Array or type of shape [batch, t, heads, size].
      key: Array or type of shape [batch, s, key heads, size].
      value: Array or type of the shape of `key`.
      has_mask: Whether there is a mask or a bias.

    Raises:
      ValueError: If the variable MESHFLOW_ATTENTION has an unknown value.
    """
    if not is_enabled() or not _has_cudnn():
        return False
    types = [(tuple(a.shape), np.dtype(a.dtype)) for a in (query, key, value)]
    if not all(isinstance(n, int) for shape, _ in types for n in shape):
        return False
    return _is_supported(tuple(types), has_mask)


def is_enabled() -> bool:
    """Check whether the environment allows fused attention: MESHFLOW_ATTENTION is not "xla".

    Raises:
      ValueError: If the variable is not "auto" (the default) or "xla".
    """
    value = os.environ.get(VARIABLE, "auto")
    if value not in ("auto", "xla"):
        raise ValueError(f"{VARIABLE} must be 'auto' or 'xla', got {value!r}.")
    return value == "auto"


def _has_cudnn() -> bool:
    """Check whether programs run on an NVIDIA GPU with compute capability 8.0 or higher."""
    return _get_compute_capability() >= 8.0


def _get_compute_capability() -> float:
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
def _is_supported(types: tuple[Any, ...], has_mask: bool) -> bool:
    """Check whether cuDNN supports these shapes and dtypes."""
    (query, dtype), (key, key_dtype), (value, value_dtype) = types
    if {dtype, key_dtype, value_dtype} - {np.dtype("float16"), np.dtype(jax.numpy.bfloat16)}:
        return False
    if not dtype == key_dtype == value_dtype or any(len(s) != 4 for s in (query, key, value)):
        return False
    (_, t, heads, size), (_, s, key_heads, _) = query, key
    max_size = _MAX_HEAD_SIZE_ON_HOPPER if _get_compute_capability() >= 9.0 else _MAX_HEAD_SIZE
    if size > max_size or size % _HEAD_SIZE_DIVISOR or key != value or heads % key_heads:
        return False
    if min(t, s) < _MIN_SEQUENCE or (has_mask and (t % 2 or s % 2)):
        return False
    return _has_cudnn_gradient(query, key, dtype)


def _has_cudnn_gradient(query: tuple[int, ...], key: tuple[int, ...], dtype: np.dtype) -> bool:
    """Check whether JAX finds a version of cuDNN with a gradient for these shapes."""

    def loss(q: Array, k: Array, v: Array) -> Array:
        scores = _compute_with_cudnn(q, k, v, None, None, scale=1.0, is_causal=True)
        return scores.astype(np.float32).sum()

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in (query, key, key)]
    try:
        jax.eval_shape(jax.grad(loss, (0, 1, 2)), *shapes)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _compute_with_cudnn(*operands: Any, scale: float, is_causal: bool) -> Array:
    return jax.nn.dot_product_attention(
        *operands, scale=scale, is_causal=is_causal, implementation="cudnn"
    )


def compute_attention(
    fallback: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    scale: float = 1.0,
    is_causal: bool = False,
) -> Array:
    """Compute attention by cuDNN if the program is lowered for CUDA; see `is_usable`.

    Args:
      fallback: Computes attention on other platforms, from query, key, value, bias and mask.
      query: [batch, t, heads, size].
      key: [batch, s, key heads, size].
      value: Array of the shape of `key`.
      bias: Added to the logits, broadcast to [batch, heads, t, s], or None.
      mask: Boolean, broadcast to the same shape, or None.
      scale: Factor of the logits.
      is_causal: Whether queries attend only to keys up to their own position.

    Returns:
      [batch, t, heads, size].
    """
    optional = [a for a in (bias, mask) if a is not None]

    def restore_operands(arrays: Sequence[Array]) -> tuple[Any, ...]:
        rest = iter(arrays[3:])
        return (*arrays[:3], *[None if a is None else next(rest) for a in (bias, mask)])

    def compute_with_cudnn(*arrays: Array) -> Array:
        return _compute_with_cudnn(*restore_operands(arrays), scale=scale, is_causal=is_causal)

    def compute_with_xla(*arrays: Array) -> Array:
        return fallback(*restore_operands(arrays))

    return jax.lax.platform_dependent(
        query, key, value, *optional, cuda=compute_with_cudnn, default=compute_with_xla
    )


def compute_xla_attention(*operands: Array | None, scale: float, is_causal: bool) -> Array:
    """Compute attention by XLA from query, key, value, bias and mask; see `compute_attention`."""
    implementation: Any = functools.partial(jax.nn.dot_product_attention, implementation="xla")
    return implementation(*operands, scale=scale, is_causal=is_causal)
