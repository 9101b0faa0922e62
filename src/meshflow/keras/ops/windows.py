"""Convolutions and pooling, and windows of images as columns.

Example:
  >>> from meshflow.keras import ops
  >>> ops.conv(ops.ones([1, 5, 1]), ops.ones([3, 1, 1])).numpy()[0, :, 0].tolist()
  [3.0, 3.0, 3.0]
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.promotion import as_float, common, tensor
from meshflow.keras.settings import standard_data_format
from meshflow.ops import array as array_ops
from meshflow.ops import math
from meshflow.ops import nn as nn_ops

__all__ = [
    *("adaptive_average_pool", "adaptive_max_pool", "average_pool", "conv", "conv_transpose"),
    *("depthwise_conv", "fold", "max_pool", "separable_conv", "unfold"),
]


def _each(value: Any, rank: int, name: str) -> list[int]:
    """One number for each spatial dimension."""
    found = [value] * rank if isinstance(value, int) else [int(v) for v in value]
    if len(found) != rank:
        raise ValueError(f"`{name}` must be an integer or {rank} of them. Received: {name}={value}")
    return found


def _first(data_format: str | None) -> bool:
    return standard_data_format(data_format) == "channels_first"


def _letters(rank: int, first: bool) -> str:
    space = "DHW"[3 - rank :]
    return f"NC{space}" if first else f"N{space}C"


def _pool(
    kind: str, inputs: Any, pool_size: Any, strides: Any, padding: str, data_format: Any
) -> Any:
    inputs = tensor(inputs)
    rank = len(inputs.shape) - 2
    window = _each(pool_size, rank, "pool_size")
    return nn_ops.pool(
        inputs,
        window,
        kind,
        window if strides is None else _each(strides, rank, "strides"),
        padding.upper(),
        _letters(rank, _first(data_format)),
    )


@one_layer()
def max_pool(
    inputs: TensorLike,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """The greatest element of each window.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      pool_size: the window.
      strides: the step; default the window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.max_pool(ops.ones([1, 4, 4, 1]), 2).shape
      TensorShape([1, 2, 2, 1])
    """
    return _pool("MAX", inputs, pool_size, strides, padding, data_format)


@one_layer()
def average_pool(
    inputs: TensorLike,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """The mean of each window, of what is within the image.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      pool_size: the window.
      strides: the step; default the window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.average_pool(ops.ones([1, 4, 4, 1]), 2).shape
      TensorShape([1, 2, 2, 1])
    """
    return _pool("AVG", as_float(inputs), pool_size, strides, padding, data_format)


def _adaptive(inputs: Any, output_size: Any, data_format: Any, reduce: Any) -> Any:
    inputs = as_float(inputs)
    first = _first(data_format)
    rank = len(inputs.shape) - 2
    for i, count in enumerate(_each(output_size, rank, "output_size")):
        axis = i + (2 if first else 1)
        size = inputs.shape[axis]
        # Windows begin at floor(k n / m) and end at ceil((k + 1) n / m); they may overlap.
        edges = [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]
        parts = [
            reduce(array_ops.gather(inputs, list(range(a, b)), axis=axis), axis, keepdims=True)
            for a, b in edges
        ]
        inputs = array_ops.concat(parts, axis)
    return inputs


@one_layer()
def adaptive_average_pool(
    inputs: TensorLike, output_size: Any, data_format: str | None = None
) -> Tensor:
    """Means of as many windows as the result has sizes.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      output_size: the spatial sizes of the result.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.adaptive_average_pool(ops.ones([1, 5, 7, 1]), 3).shape
      TensorShape([1, 3, 3, 1])
    """
    return _adaptive(inputs, output_size, data_format, math.reduce_mean)


@one_layer()
def adaptive_max_pool(
    inputs: TensorLike, output_size: Any, data_format: str | None = None
) -> Tensor:
    """Greatest elements of as many windows as the result has sizes.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      output_size: the spatial sizes of the result.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.adaptive_max_pool(ops.ones([1, 5, 7, 1]), 3).shape
      TensorShape([1, 3, 3, 1])
    """
    return _adaptive(inputs, output_size, data_format, math.reduce_max)


@one_layer()
def conv(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    """A convolution; channels are in groups when the kernel takes fewer than there are.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      kernel: [*window, channels / groups, filters].
      strides: the step.
      padding: 'valid', 'same' or (of rows) 'causal'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: distance between neighbouring elements of a window.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.conv(ops.ones([1, 4, 4, 2]), ops.ones([3, 3, 2, 5])).shape
      TensorShape([1, 2, 2, 5])
    """
    inputs, kernel = common(inputs, kernel)
    rank = len(inputs.shape) - 2
    first = _first(data_format)
    rates = _each(dilation_rate, rank, "dilation_rate")
    if padding == "causal":
        before = (int(kernel.shape[0]) - 1) * rates[0]
        inputs = array_ops.pad(
            inputs, [[0, 0], *([[0, 0], [before, 0]] if first else [[before, 0], [0, 0]])]
        )
        padding = "valid"
    channels = inputs.shape[1 if first else -1]
    if channels is not None and channels % kernel.shape[-2]:
        raise ValueError(
            f"The number of input channels must be evenly divisible by kernel's in_channels. Received input channels "
            f"{channels} and kernel in_channels {kernel.shape[-2]}. "
        )
    return nn_ops.convolution(
        inputs,
        kernel,
        _each(strides, rank, "strides"),
        padding.upper(),
        _letters(rank, first),
        rates,
    )


def _to_last(x: Any) -> Any:
    return array_ops.transpose(x, [0, *range(2, len(x.shape)), 1])


def _to_first(x: Any) -> Any:
    return array_ops.transpose(x, [0, len(x.shape) - 1, *range(1, len(x.shape) - 1)])


@one_layer()
def depthwise_conv(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    """A convolution of each channel by itself.

    Args:
      inputs: [batch, *spatial, channels] (or channels first), of one or two spatial dimensions.
      kernel: [*window, channels, multiplier].
      strides: the step.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: distance between neighbouring elements of a window.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.depthwise_conv(ops.ones([1, 4, 4, 2]), ops.ones([3, 3, 2, 1])).shape
      TensorShape([1, 2, 2, 2])
    """
    inputs, kernel = common(inputs, kernel)
    rank = len(inputs.shape) - 2
    # A convolution whose groups have one channel each; its filters follow each other by channel.
    laid = array_ops.reshape(kernel, [*kernel.shape[:-2], 1, kernel.shape[-2] * kernel.shape[-1]])
    return conv(inputs, laid, _each(strides, rank, "strides"), padding, data_format, dilation_rate)


@one_layer()
def separable_conv(
    inputs: TensorLike,
    depthwise_kernel: TensorLike,
    pointwise_kernel: TensorLike,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    """A convolution of each channel, and then one of each pixel.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      depthwise_kernel: [*window, channels, multiplier].
      pointwise_kernel: [1.., channels * multiplier, filters].
      strides: the step of the first.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: of the first.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.separable_conv(ops.ones([1, 4, 4, 2]), ops.ones([3, 3, 2, 1]), ops.ones([1, 1, 2, 5])).shape
      TensorShape([1, 2, 2, 5])
    """
    deep = depthwise_conv(inputs, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv(deep, pointwise_kernel, 1, "valid", data_format, 1)


@one_layer()
def conv_transpose(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: Any = 1,
    padding: str = "valid",
    output_padding: Any = None,
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    """What a convolution does, the other way round.

    Args:
      inputs: [batch, *spatial, channels] (or channels first).
      kernel: [*window, filters, channels].
      strides: the step.
      padding: 'valid' or 'same'.
      output_padding: added to the result's size; chosen so that it is unambiguous when None.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      dilation_rate: distance between neighbouring elements of a window.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.conv_transpose(ops.ones([1, 2, 2, 1]), ops.ones([3, 3, 4, 1]), 2).shape
      TensorShape([1, 5, 5, 4])
    """
    inputs, kernel = common(inputs, kernel)
    rank = len(inputs.shape) - 2
    first = _first(data_format)
    steps, rates = _each(strides, rank, "strides"), _each(dilation_rate, rank, "dilation_rate")
    more = (
        [None] * rank if output_padding is None else _each(output_padding, rank, "output_padding")
    )
    sizes = list(inputs.shape[2:] if first else inputs.shape[1:-1])
    if None in sizes:
        dynamic = array_ops.shape(inputs)
        sizes = [dynamic[i + (2 if first else 1)] if s is None else s for i, s in enumerate(sizes)]
    sizes = [
        _grown(size, (int(window) - 1) * rate + 1, step, padding, extra)
        for size, window, step, rate, extra in zip(
            sizes, kernel.shape[:rank], steps, rates, more, strict=True
        )
    ]
    batch = inputs.shape[0] if inputs.shape[0] is not None else array_ops.shape(inputs)[0]
    shape = [batch, kernel.shape[-2], *sizes] if first else [batch, *sizes, kernel.shape[-2]]
    return nn_ops.conv_transpose(
        inputs, kernel, shape, steps, padding.upper(), _letters(rank, first), rates
    )


def _grown(size: Any, reach: int, step: int, padding: str, extra: int | None) -> Any:
    """The size of which a convolution with a window makes `size`."""
    if extra is None:
        return size * step + (max(reach - step, 0) if padding == "valid" else 0)
    within = 0 if padding == "valid" else 2 * (reach // 2)
    return (size - 1) * step + reach - within + extra


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _places(size: int, window: int, rate: int, step: int) -> np.ndarray:
    """Where each window reads, [windows, window]."""
    starts = np.arange(0, size - (window - 1) * rate, step)
    return starts[:, None] + np.arange(window) * rate


@op(same=(), name="unfold")
def _unfold(x: TensorLike, window: Any, rate: Any, padding: Any, step: Any) -> Any:
    x = jnp.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    rows = _places(x.shape[2], window[0], rate[0], step[0])
    columns = _places(x.shape[3], window[1], rate[1], step[1])
    # [batch, channels, windows down, window, windows across, window]
    found = x[:, :, rows][:, :, :, :, columns]
    found = jnp.transpose(found, (0, 1, 3, 5, 2, 4))
    return found.reshape(x.shape[0], x.shape[1] * window[0] * window[1], -1)


@one_layer()
def unfold(
    x: TensorLike, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Windows of images as columns (im2col).

    Args:
      x: [batch, channels, height, width].
      kernel_size: the window.
      dilation: distance between neighbouring elements of a window.
      padding: zeros around the image.
      stride: the step.

    Returns:
      [batch, channels * window, windows].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.unfold(ops.ones([1, 2, 4, 4]), 2, stride=2).shape
      TensorShape([1, 8, 4])
    """
    return _unfold(tensor(x), _pair(kernel_size), _pair(dilation), _pair(padding), _pair(stride))


@op(same=(), name="fold")
def _fold(x: TensorLike, size: Any, window: Any, rate: Any, padding: Any, step: Any) -> Any:
    channels = x.shape[1] // (window[0] * window[1])
    whole = (size[0] + 2 * padding[0], size[1] + 2 * padding[1])
    blank = jnp.zeros((x.shape[0], channels, *whole), x.dtype)
    rows, columns = (_places(whole[i], window[i], rate[i], step[i]) for i in (0, 1))
    parts = x.reshape(x.shape[0], channels, *window, rows.shape[0], columns.shape[0])
    parts = jnp.transpose(parts, (0, 1, 4, 2, 5, 3))
    down, across = rows[:, :, None, None], columns[None, None]
    found = blank.at[:, :, down, across].add(parts)
    return found[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]


@one_layer()
def fold(
    x: TensorLike,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Columns summed into the windows of images that they stand for (col2im).

    Args:
      x: [batch, channels * window, windows].
      output_size: height and width of the images.
      kernel_size: the window.
      dilation: distance between neighbouring elements of a window.
      padding: zeros around the image.
      stride: the step.

    Returns:
      [batch, channels, height, width].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.fold(ops.ones([1, 8, 4]), 4, 2, stride=2).shape
      TensorShape([1, 2, 4, 4])
    """
    return _fold(
        tensor(x),
        _pair(output_size),
        _pair(kernel_size),
        _pair(dilation),
        _pair(padding),
        _pair(stride),
    )
