"""Moments and normalization."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import op
from meshflow.core.tensor import Tensor, TensorLike
from meshflow.ops.math import in_top_k, l2_normalize, top_k, zero_fraction

__all__ = [
    "batch_norm_with_global_normalization",
    "batch_normalization",
    "in_top_k",
    "l2_normalize",
    "local_response_normalization",
    "lrn",
    "moments",
    "normalize_moments",
    "sufficient_statistics",
    "top_k",
    "weighted_moments",
    "zero_fraction",
]


@op(name="moments", kinds="ifc")
def _moments(x: TensorLike, axes: Any, keepdims: bool) -> Any:
    if x.dtype.kind in "iu":  # whole numbers, cut off as TensorFlow's integer means are
        mean = jnp.mean(x, axis=axes, keepdims=True).astype(x.dtype)
        variance = jnp.mean(jnp.square(x - mean), axis=axes, keepdims=keepdims)
        return mean if keepdims else jnp.squeeze(mean, axes), variance.astype(x.dtype)
    # float16 sums overflow early; TensorFlow computes these in float32 too.
    wide = x.astype(jnp.float32) if x.dtype.itemsize == 2 else x
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(wide - mean), axis=axes, keepdims=keepdims)
    mean = mean if keepdims else jnp.squeeze(mean, axes)
    return mean.astype(x.dtype), variance.astype(x.dtype)


def moments(
    x: TensorLike, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """Mean and variance over dimensions.

    Args:
      x: a tensor.
      axes: dimensions.
      shift: ignored.
      keepdims: whether the dimensions stay, with size 1.
      name: ignored.

    Returns:
      (mean, variance).
    """
    return tuple(_moments(x, axes if isinstance(axes, int) else list(axes), keepdims))


def weighted_moments(
    x: TensorLike,
    axes: Any,
    frequency_weights: TensorLike,
    keepdims: bool = False,
    name: str | None = None,
) -> Any:
    """Mean and variance in which elements count by weight."""
    from meshflow.ops.math import cast, divide_no_nan, reduce_sum, square

    x = convert_to_tensor(x)
    weights = cast(convert_to_tensor(frequency_weights), x.dtype) + x * 0
    total = reduce_sum(weights, axes, True)
    mean = divide_no_nan(reduce_sum(weights * x, axes, True), total)
    variance = divide_no_nan(
        reduce_sum(weights * square(x - mean), axes, keepdims), reduce_sum(weights, axes, keepdims)
    )
    if not keepdims:
        mean = reduce_sum(mean, axes)
    return mean, variance


def sufficient_statistics(
    x: TensorLike, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """Count, sum, sum of squares and shift, from which `normalize_moments` makes mean and variance."""
    from meshflow.ops.math import reduce_sum, square

    x = convert_to_tensor(x)
    moved = x if shift is None else x - shift
    count = 1
    for axis in [axes] if isinstance(axes, int) else axes:
        count *= x.shape[axis]
    return (
        convert_to_tensor(count, dtype=x.dtype),
        reduce_sum(moved, axes, keepdims),
        reduce_sum(square(moved), axes, keepdims),
        None if shift is None else convert_to_tensor(shift, dtype=x.dtype),
    )


def normalize_moments(
    counts: TensorLike,
    mean_ss: TensorLike,
    variance_ss: TensorLike,
    shift: Any,
    name: str | None = None,
) -> Any:
    """Mean and variance from sufficient statistics."""
    from meshflow.ops.math import square

    mean_ss, variance_ss = convert_to_tensor(mean_ss), convert_to_tensor(variance_ss)
    counts = convert_to_tensor(counts, dtype=mean_ss.dtype)
    shifted = mean_ss / counts
    mean = shifted if shift is None else shifted + shift
    return mean, variance_ss / counts - square(shifted)


@op(name="batch_normalization", same=("x",))
def _batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: float,
) -> Tensor:
    factor = 1 / jnp.sqrt(variance + jnp.asarray(variance_epsilon, variance.dtype))
    if scale is not None:
        factor = factor * scale
    shift = -mean * factor if offset is None else offset - mean * factor
    return (x * factor.astype(x.dtype) + shift.astype(x.dtype)).astype(x.dtype)


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: Any,
    scale: Any,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * scale + offset`.

    Args:
      x: a tensor.
      mean: mean, broadcasting to `x`.
      variance: variance, likewise.
      offset: likewise, or None.
      scale: likewise, or None.
      variance_epsilon: a small number against division by zero.
      name: ignored.
    """
    return _batch_normalization(x, mean, variance, offset, scale, float(variance_epsilon))


def batch_norm_with_global_normalization(
    input: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    beta: TensorLike,
    gamma: TensorLike,
    variance_epsilon: float,
    scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:
    """An older form of `batch_normalization`: offset `beta`, and scale `gamma` only when asked for."""
    scale = gamma if scale_after_normalization else None
    return batch_normalization(input, mean, variance, beta, scale, variance_epsilon)


@op(kinds="f")
def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Divides by the summed squares of neighbouring channels (Krizhevsky et al. 2012)."""
    squares = jnp.pad(
        jnp.square(input), [(0, 0)] * (input.ndim - 1) + [(depth_radius, depth_radius)]
    )
    depth = input.shape[-1]
    total = sum(squares[..., i : i + depth] for i in range(2 * depth_radius + 1))
    return input / (bias + alpha * total) ** beta


lrn = local_response_normalization
