"""Moments, normalization, and rearrangement of channels and pixels.

Example:
  >>> print(ops.normalize([3.0, 4.0]).numpy().round(3))
  [0.6 0.8]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import Axis, Sizes, as_float, as_tensor, promote
from meshflow.keras.settings import epsilon as default_epsilon
from meshflow.keras.settings import normalize_data_format
from meshflow.ops import array as array_ops
from meshflow.ops import casting, math
from meshflow.ops import nn as nn_ops

__all__ = [
    "batch_normalization",
    "depth_to_space",
    "layer_normalization",
    "moments",
    "normalize",
    "psnr",
    "rms_normalization",
    "space_to_depth",
]


@as_single_layer()
def moments(
    x: TensorLike, axes: Sizes, keepdims: bool = False, synchronized: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute mean and variance.

    Args:
      x: A tensor.
      axes: The axes.
      keepdims: Whether to keep reduced axes with size 1.
      synchronized: Accepted and ignored: a batch that is split over devices always has one mean.

    Example:
      >>> [float(v) for v in ops.moments([1.0, 3.0], axes=[0])]
      [2.0, 1.0]
    """
    return nn_ops.moments(as_tensor(x), axes, keepdims=keepdims)


@as_single_layer()
def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    axis: int,
    offset: TensorLike | None = None,
    scale: TensorLike | None = None,
    epsilon: float = 1e-3,
) -> Tensor:
    """Compute `(x - mean) / sqrt(variance + epsilon) * scale + offset`.

    Args:
      x: A tensor.
      mean: Mean of each channel.
      variance: Variance of each channel.
      axis: Axis of the channels.
      offset: Offset of each channel.
      scale: Factor of each channel.
      epsilon: Value that is added to the variance.

    Example:
      >>> ops.batch_normalization([[3.0]], [1.0], [4.0], -1, epsilon=0.0).numpy().tolist()
      [[1.0]]
    """
    x = as_float(x)
    shape = [1] * len(x.shape)
    shape[axis] = -1
    align = lambda v: (
        None if v is None else array_ops.reshape(casting.cast(as_tensor(v), x.dtype), shape)
    )
    return nn_ops.batch_normalization(
        x, align(mean), align(variance), align(offset), align(scale), epsilon
    )


def _widen(x: TensorLike) -> tuple[Tensor, DType]:
    """Convert a tensor to at least 32 bits; return it with its original dtype."""
    x = as_float(x)
    kind = dtypes.as_dtype(x.dtype)
    return (casting.cast(x, "float32") if kind.size < 4 else x), kind


@as_single_layer()
def layer_normalization(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    axis: Sizes = -1,
    epsilon: float | None = None,
    **kwargs: Any,
) -> Tensor:
    """Compute `(x - mean) / sqrt(variance + epsilon) * gamma + beta` (arXiv:1607.06450).

    Args:
      x: A tensor.
      gamma: Factor.
      beta: Offset.
      axis: Axis or axes of mean and variance.
      epsilon: Value that is added to the variance; default `keras.config.epsilon()`.
      **kwargs: `rms_scaling`: whether to only divide by the deviation (use `rms_normalization`
        instead).

    Example:
      >>> ops.layer_normalization([1.0, 3.0]).numpy().round(3).tolist()
      [-1.0, 1.0]
    """
    wide, kind = _widen(x)
    axes = [axis] if isinstance(axis, int) else list(axis)
    variance_epsilon = default_epsilon() if epsilon is None else epsilon
    mean, variance = nn_ops.moments(wide, axes, keepdims=True)
    if kwargs.pop("rms_scaling", False):
        result = wide * math.rsqrt(variance + variance_epsilon)
        if gamma is not None:
            result = result * _align_weights(gamma, wide, axes)
    else:
        result = (wide - mean) * math.rsqrt(variance + variance_epsilon)
        if gamma is not None:
            result = result * _align_weights(gamma, wide, axes)
        if beta is not None:
            result = result + _align_weights(beta, wide, axes)
    return casting.cast(result, kind)


def _align_weights(weights: TensorLike, x: Tensor, axes: list[int]) -> Tensor:
    """Reshape weights to broadcast along their axes."""
    weights = casting.cast(as_tensor(weights), x.dtype)
    if len(weights.shape) == len(x.shape):
        return weights
    shape = [1] * len(x.shape)
    for axis in axes:
        shape[axis] = x.shape[axis]
    return array_ops.reshape(weights, shape)


def rms_normalization(
    x: TensorLike, scale: TensorLike | None = None, axis: Sizes = -1, epsilon: float | None = None
) -> Tensor:
    """Compute `x / sqrt(mean(x^2) + epsilon) * scale` (arXiv:1910.07467).

    Args:
      x: A tensor.
      scale: Factor.
      axis: Axis or axes of the mean.
      epsilon: Value that is added to the mean; default `keras.config.epsilon()`.

    Example:
      >>> ops.rms_normalization([2.0, 2.0]).numpy().round(3).tolist()
      [1.0, 1.0]
    """
    wide, kind = _widen(x)
    axes = [axis] if isinstance(axis, int) else list(axis)
    mean_epsilon = default_epsilon() if epsilon is None else epsilon
    result = wide * math.rsqrt(math.reduce_mean(wide * wide, axes, keepdims=True) + mean_epsilon)
    if scale is not None:
        result = result * _align_weights(scale, wide, axes)
    return casting.cast(result, kind)


def normalize(
    x: TensorLike, axis: Axis = -1, order: int = 2, epsilon: float | None = None
) -> Tensor:
    """Compute `x / max(norm(x), epsilon)`.

    Args:
      x: A tensor.
      axis: Axis or axes of the norm.
      order: Order of the norm, an integer of at least 1.
      epsilon: Minimum divisor; default `keras.config.epsilon()`.

    Example:
      >>> print(ops.normalize([3.0, 4.0]).numpy().round(3))
      [0.6 0.8]
    """
    if not isinstance(order, int) or not order >= 1:
        raise ValueError(f"Argument `order` must be int >= 1. Received: order={order}")
    x = as_float(x)
    min_divisor = default_epsilon() if epsilon is None else epsilon
    if order == 2:
        squares = math.reduce_sum(x * x, axis, keepdims=True)
        return x * math.rsqrt(math.maximum(squares, min_divisor**2))
    norms = math.reduce_sum(math.abs(x) ** order, axis, keepdims=True) ** (1.0 / order)
    return x / math.maximum(norms, min_divisor)


def psnr(x1: TensorLike, x2: TensorLike, max_val: float) -> Tensor:
    """Compute the peak signal-to-noise ratio of all elements, in decibels.

    Args:
      x1: A tensor.
      x2: A tensor of the same shape.
      max_val: Maximum possible value.

    Example:
      >>> round(float(ops.psnr([1.0], [0.9], 1.0)), 2)
      20.0
    """
    x1, x2 = as_tensor(x1), as_tensor(x2)
    if tuple(x1.shape) != tuple(x2.shape):
        raise ValueError(
            f"Input shapes {tuple(x1.shape)} and {tuple(x2.shape)} must match for PSNR calculation. "
        )
    x1, x2 = promote(x1, x2, also=float)
    error = math.reduce_mean((x1 - x2) ** 2)
    max_value = casting.cast(as_tensor(float(max_val)), x1.dtype)
    return (20 * math.log(max_value) - 10 * math.log(error)) / float(np.log(10))


def depth_to_space(
    x: TensorLike, block_size: int, data_format: str | None = "channels_last"
) -> Tensor:
    """Rearrange channels into blocks of pixels.

    Args:
      x: [batch, height, width, channels] (or channels first).
      block_size: Height and width of a block.
      data_format: 'channels_last' or 'channels_first'.

    Example:
      >>> ops.depth_to_space(ops.zeros([1, 2, 2, 4]), 2).shape
      TensorShape([1, 4, 4, 1])
    """
    _check_block(block_size)
    return array_ops.depth_to_space(as_tensor(x), block_size, _get_tf_format(data_format))


def space_to_depth(
    x: TensorLike, block_size: int, data_format: str | None = "channels_last"
) -> Tensor:
    """Rearrange blocks of pixels into channels.

    Args:
      x: [batch, height, width, channels] (or channels first).
      block_size: Height and width of a block.
      data_format: 'channels_last' or 'channels_first'.

    Example:
      >>> ops.space_to_depth(ops.zeros([1, 4, 4, 1]), 2).shape
      TensorShape([1, 2, 2, 4])
    """
    _check_block(block_size)
    return array_ops.space_to_depth(as_tensor(x), block_size, _get_tf_format(data_format))


def _check_block(block_size: int) -> None:
    if block_size < 2:
        raise ValueError(f"`block_size` must be at least 2. Received: block_size={block_size}")


def _get_tf_format(data_format: str | None) -> str:
    return "NHWC" if normalize_data_format(data_format) == "channels_last" else "NCHW"
