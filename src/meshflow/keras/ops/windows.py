"""Convolutions, pooling, and windows of images as columns.

Example:
  >>> ops.conv(ops.ones([1, 5, 1]), ops.ones([3, 1, 1])).numpy()[0, :, 0].tolist()
  [3.0, 3.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import Sizes, as_float, as_tensor, promote
from meshflow.keras.settings import normalize_data_format
from meshflow.ops import array as array_ops
from meshflow.ops import math
from meshflow.ops import nn as nn_ops

__all__ = [
    *("adaptive_average_pool", "adaptive_max_pool", "average_pool", "conv", "conv_transpose"),
    *("depthwise_conv", "fold", "max_pool", "separable_conv", "unfold"),
]


def _expand_setting(value: Sizes, rank: int, name: str) -> list[int]:
    """Expand a setting to one integer for each spatial axis."""
    values = [value] * rank if isinstance(value, int) else [int(v) for v in value]
    if len(values) != rank:
        raise ValueError(f"`{name}` must be an integer or {rank} of them. Received: {name}={value}")
    return values


def _is_channels_first(data_format: str | None) -> bool:
    return normalize_data_format(data_format) == "channels_first"


def _make_tf_format(rank: int, is_channels_first: bool) -> str:
    space = "DHW"[3 - rank :]
    return f"NC{space}" if is_channels_first else f"N{space}C"


def _pool(
    pooling: str,
    inputs: TensorLike,
    pool_size: Sizes,
    strides: Sizes | None,
    padding: str,
    data_format: str | None,
) -> Tensor:
    inputs = as_tensor(inputs)
    rank = len(inputs.shape) - 2
    window = _expand_setting(pool_size, rank, "pool_size")
    return nn_ops.pool(
        inputs,
        window,
        pooling,
        window if strides is None else _expand_setting(strides, rank, "strides"),
        padding.upper(),
        _make_tf_format(rank, _is_channels_first(data_format)),
    )


@as_single_layer()
def max_pool(
    inputs: TensorLike,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Compute the maximum of each window.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      pool_size: Size of the window.
      strides: Step of the window; default the window size.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.max_pool(ops.ones([1, 4, 4, 1]), 2).shape
      TensorShape([1, 2, 2, 1])
    """
    return _pool("MAX", inputs, pool_size, strides, padding, data_format)


@as_single_layer()
def average_pool(
    inputs: TensorLike,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Compute the mean of each window, without padding.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      pool_size: Size of the window.
      strides: Step of the window; default the window size.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.average_pool(ops.ones([1, 4, 4, 1]), 2).shape
      TensorShape([1, 2, 2, 1])
    """
    return _pool("AVG", as_float(inputs), pool_size, strides, padding, data_format)


def _adaptive_pool(
    inputs: TensorLike, output_size: Sizes, data_format: str | None, reduce: Callable[..., Tensor]
) -> Tensor:
    inputs = as_float(inputs)
    is_channels_first = _is_channels_first(data_format)
    rank = len(inputs.shape) - 2
    for i, count in enumerate(_expand_setting(output_size, rank, "output_size")):
        axis = i + (2 if is_channels_first else 1)
        size = inputs.shape[axis]
        # Window k starts at floor(k n / m) and ends at ceil((k + 1) n / m); windows may overlap.
        edges = [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]
        parts = [
            reduce(array_ops.gather(inputs, list(range(a, b)), axis=axis), axis, keepdims=True)
            for a, b in edges
        ]
        inputs = array_ops.concat(parts, axis)
    return inputs


@as_single_layer()
def adaptive_average_pool(
    inputs: TensorLike, output_size: Sizes, data_format: str | None = None
) -> Tensor:
    """Compute means over a fixed number of windows.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      output_size: Number of windows along each spatial axis.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.adaptive_average_pool(ops.ones([1, 5, 7, 1]), 3).shape
      TensorShape([1, 3, 3, 1])
    """
    return _adaptive_pool(inputs, output_size, data_format, math.reduce_mean)


@as_single_layer()
def adaptive_max_pool(
    inputs: TensorLike, output_size: Sizes, data_format: str | None = None
) -> Tensor:
    """Compute maxima over a fixed number of windows.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      output_size: Number of windows along each spatial axis.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.adaptive_max_pool(ops.ones([1, 5, 7, 1]), 3).shape
      TensorShape([1, 3, 3, 1])
    """
    return _adaptive_pool(inputs, output_size, data_format, math.reduce_max)


@as_single_layer()
def conv(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> Tensor:
    """Compute a convolution; it is grouped if the kernel has fewer input channels.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      kernel: [*window, channels / groups, filters].
      strides: Step of the window along each spatial axis.
      padding: 'valid', 'same' or, for one spatial axis, 'causal'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: Distance between neighboring elements of a window.

    Example:
      >>> ops.conv(ops.ones([1, 4, 4, 2]), ops.ones([3, 3, 2, 5])).shape
      TensorShape([1, 2, 2, 5])
    """
    inputs, kernel = promote(inputs, kernel)
    rank = len(inputs.shape) - 2
    is_channels_first = _is_channels_first(data_format)
    rates = _expand_setting(dilation_rate, rank, "dilation_rate")
    if padding == "causal":
        before = (int(kernel.shape[0]) - 1) * rates[0]
        inputs = array_ops.pad(
            inputs,
            [[0, 0], *([[0, 0], [before, 0]] if is_channels_first else [[before, 0], [0, 0]])],
        )
        padding = "valid"
    channels = inputs.shape[1 if is_channels_first else -1]
    if channels is not None and channels % kernel.shape[-2]:
        raise ValueError(
            f"The number of input channels must be evenly divisible by kernel's in_channels. Received input channels "
            f"{channels} and kernel in_channels {kernel.shape[-2]}. "
        )
    return nn_ops.convolution(
        inputs,
        kernel,
        _expand_setting(strides, rank, "strides"),
        padding.upper(),
        _make_tf_format(rank, is_channels_first),
        rates,
    )


@as_single_layer()
def depthwise_conv(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> Tensor:
    """Compute a convolution of each channel separately.

    Args:
      inputs: [batch, *spatial, channels] (or channels first), of one or two spatial dimensions.
      kernel: [*window, channels, multiplier].
      strides: Step of the window along each spatial axis.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: Distance between neighboring elements of a window.

    Example:
      >>> ops.depthwise_conv(ops.ones([1, 4, 4, 2]), ops.ones([3, 3, 2, 1])).shape
      TensorShape([1, 2, 2, 2])
    """
    inputs, kernel = promote(inputs, kernel)
    rank = len(inputs.shape) - 2
    # This is a grouped convolution with one channel per group; the filters are ordered by channel.
    grouped_kernel = array_ops.reshape(
        kernel, [*kernel.shape[:-2], 1, kernel.shape[-2] * kernel.shape[-1]]
    )
    return conv(
        inputs,
        grouped_kernel,
        _expand_setting(strides, rank, "strides"),
        padding,
        data_format,
        dilation_rate,
    )


@as_single_layer()
def separable_conv(
    inputs: TensorLike,
    depthwise_kernel: TensorLike,
    pointwise_kernel: TensorLike,
    strides: Sizes = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> Tensor:
    """Compute a depthwise convolution followed by a pointwise convolution.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      depthwise_kernel: [*window, channels, multiplier].
      pointwise_kernel: [1.., channels * multiplier, filters].
      strides: Step of the depthwise window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: Dilation of the depthwise window.

    Example:
      >>> ops.separable_conv(ops.ones([1, 4, 4, 2]), ops.ones([3, 3, 2, 1]), ops.ones([1, 1, 2, 5])).shape
      TensorShape([1, 2, 2, 5])
    """
    depthwise = depthwise_conv(
        inputs, depthwise_kernel, strides, padding, data_format, dilation_rate
    )
    return conv(depthwise, pointwise_kernel, 1, "valid", data_format, 1)


@as_single_layer()
def conv_transpose(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: Sizes = 1,
    padding: str = "valid",
    output_padding: Sizes | None = None,
    data_format: str | None = None,
    dilation_rate: Sizes = 1,
) -> Tensor:
    """Compute a transposed convolution.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      kernel: [*window, filters, channels].
      strides: Step of the window along each spatial axis.
      padding: 'valid' or 'same'.
      output_padding: Amount that is added to the result's size; None infers an unambiguous size.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: Distance between neighboring elements of a window.

    Example:
      >>> ops.conv_transpose(ops.ones([1, 2, 2, 1]), ops.ones([3, 3, 4, 1]), 2).shape
      TensorShape([1, 5, 5, 4])
    """
    inputs, kernel = promote(inputs, kernel)
    rank = len(inputs.shape) - 2
    is_channels_first = _is_channels_first(data_format)
    steps, rates = (
        _expand_setting(strides, rank, "strides"),
        _expand_setting(dilation_rate, rank, "dilation_rate"),
    )
    output_paddings = (
        [None] * rank
        if output_padding is None
        else _expand_setting(output_padding, rank, "output_padding")
    )
    sizes = list(inputs.shape[2:] if is_channels_first else inputs.shape[1:-1])
    if None in sizes:
        dynamic_shape = array_ops.shape(inputs)
        sizes = [
            dynamic_shape[i + (2 if is_channels_first else 1)] if s is None else s
            for i, s in enumerate(sizes)
        ]
    sizes = [
        _compute_transposed_size(size, (int(window) - 1) * rate + 1, step, padding, extra)
        for size, window, step, rate, extra in zip(
            sizes, kernel.shape[:rank], steps, rates, output_paddings, strict=True
        )
    ]
    batch = inputs.shape[0] if inputs.shape[0] is not None else array_ops.shape(inputs)[0]
    shape = (
        [batch, kernel.shape[-2], *sizes]
        if is_channels_first
        else [batch, *sizes, kernel.shape[-2]]
    )
    return nn_ops.conv_transpose(
        inputs,
        kernel,
        shape,
        steps,
        padding.upper(),
        _make_tf_format(rank, is_channels_first),
        rates,
    )


def _compute_transposed_size(
    size: Any, reach: int, step: int, padding: str, extra: int | None
) -> Any:
    """Compute the size of the transposed convolution's result along one axis."""
    if extra is None:
        return size * step + (max(reach - step, 0) if padding == "valid" else 0)
    total_padding = 0 if padding == "valid" else 2 * (reach // 2)
    return (size - 1) * step + reach - total_padding + extra


def _as_pair(value: Sizes) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _compute_window_indices(size: int, window: int, rate: int, step: int) -> np.ndarray:
    """Compute the indices that each window reads, [windows, window]."""
    starts = np.arange(0, size - (window - 1) * rate, step)
    return starts[:, None] + np.arange(window) * rate


@op(same=(), name="unfold")
def _unfold(
    x: TensorLike,
    window: tuple[int, int],
    rate: tuple[int, int],
    padding: tuple[int, int],
    step: tuple[int, int],
) -> Any:
    x = jnp.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    rows = _compute_window_indices(x.shape[2], window[0], rate[0], step[0])
    columns = _compute_window_indices(x.shape[3], window[1], rate[1], step[1])
    # The shape is [batch, channels, windows down, window, windows across, window].
    patches = x[:, :, rows][:, :, :, :, columns]
    patches = jnp.transpose(patches, (0, 1, 3, 5, 2, 4))
    return patches.reshape(x.shape[0], x.shape[1] * window[0] * window[1], -1)


@as_single_layer()
def unfold(
    x: TensorLike, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Convert windows of images to columns (im2col).

    Args:
      x: [batch, channels, height, width].
      kernel_size: Size of the window.
      dilation: Distance between neighboring elements of a window.
      padding: Zero padding on each side of the image.
      stride: Step of the window along each spatial axis.

    Returns:
      [batch, channels * window, windows].

    Example:
      >>> ops.unfold(ops.ones([1, 2, 4, 4]), 2, stride=2).shape
      TensorShape([1, 8, 4])
    """
    return _unfold(
        as_tensor(x), _as_pair(kernel_size), _as_pair(dilation), _as_pair(padding), _as_pair(stride)
    )


@op(same=(), name="fold")
def _fold(
    x: TensorLike,
    size: tuple[int, int],
    window: tuple[int, int],
    rate: tuple[int, int],
    padding: tuple[int, int],
    step: tuple[int, int],
) -> Any:
    channels = x.shape[1] // (window[0] * window[1])
    padded_size = (size[0] + 2 * padding[0], size[1] + 2 * padding[1])
    zeros = jnp.zeros((x.shape[0], channels, *padded_size), x.dtype)
    rows, columns = (
        _compute_window_indices(padded_size[i], window[i], rate[i], step[i]) for i in (0, 1)
    )
    parts = x.reshape(x.shape[0], channels, *window, rows.shape[0], columns.shape[0])
    parts = jnp.transpose(parts, (0, 1, 4, 2, 5, 3))
    down, across = rows[:, :, None, None], columns[None, None]
    images = zeros.at[:, :, down, across].add(parts)
    return images[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]


@as_single_layer()
def fold(
    x: TensorLike,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Sum columns into the windows of images (col2im).

    Args:
      x: [batch, channels * window, windows].
      output_size: Height and width of the images.
      kernel_size: Size of the window.
      dilation: Distance between neighboring elements of a window.
      padding: Zero padding on each side of the image.
      stride: Step of the window along each spatial axis.

    Returns:
      [batch, channels, height, width].

    Example:
      >>> ops.fold(ops.ones([1, 8, 4]), 4, 2, stride=2).shape
      TensorShape([1, 2, 4, 4])
    """
    return _fold(
        as_tensor(x),
        _as_pair(output_size),
        _as_pair(kernel_size),
        _as_pair(dilation),
        _as_pair(padding),
        _as_pair(stride),
    )
