"""Convolutions of one to three spatial dimensions.

Everything ends in `conv` and `conv_transpose`, which take channels-last or channels-first arrays
and call XLA's general convolution: the one place for other kernels to come in.
"""

from __future__ import annotations

import re
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime.errors import InvalidValueError, UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["atrous_conv2d", "conv1d", "conv2d", "conv3d", "convolution"]


def numbers(channels_first: bool, rank: int) -> tuple[str, str, str]:
    """XLA's dimension numbers for a layout; kernels are [*spatial, in, out]."""
    spatial = "DHW"[3 - rank :]
    data = f"NC{spatial}" if channels_first else f"N{spatial}C"
    return data, f"{spatial}IO", data


def spatial_sizes(value: Any, rank: int, channels_first: bool, name: str) -> tuple[int, ...]:
    """Strides or dilations as one number per spatial dimension.

    Raises:
      ValueError: when their number does not fit.
    """
    value = static_value(value, name)
    if value is None:
        return (1,) * rank
    if isinstance(value, int):
        return (value,) * rank
    if len(value) == 1:
        return tuple(value) * rank
    if len(value) == rank + 2:
        if value[0] != 1 or value[1 if channels_first else -1] != 1:
            raise UnimplementedError(
                f"{name} in the batch and depth dimensions must be 1, got {list(value)}."
            )
        return tuple(value[2:] if channels_first else value[1:-1])
    if len(value) != rank:
        raise ValueError(
            f"{name} should be of length 1, {rank} or {rank + 2}. Received: {name}={value} of length {len(value)}"
        )
    return tuple(value)


def padding_pairs(padding: Any, rank: int, channels_first: bool) -> Any:
    """'SAME', 'VALID', or one pair per spatial dimension.

    Raises:
      ValueError: for anything else.
    """
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise InvalidValueError(
                f"padding must be 'SAME', 'VALID' or a list of pairs, got {padding!r}."
            )
        return padding.upper()
    pairs = tuple(tuple(p) for p in static_value(padding, "padding"))
    return (pairs[2:] if channels_first else pairs[1:-1]) if len(pairs) == rank + 2 else pairs


@op(name="convolution", kinds="if")
def conv(
    input: TensorLike,
    filters: TensorLike,
    strides: Any,
    padding: Any,
    dilations: Any,
    channels_first: bool,
    groups: int,
) -> Tensor:
    """Convolution of a batch: [batch, *spatial, in] (or channels first) with [*spatial, in / groups, out].

    Several leading dimensions count as one batch.
    """
    rank = filters.ndim - 2
    if rank < 1 or input.ndim < rank + 2:
        raise InvalidValueError(
            f"convolution expects input of rank {rank + 2} or more for filters of shape {list(filters.shape)}, got "
            f"input of shape {list(input.shape)}."
        )
    lead = input.shape[: input.ndim - rank - 1]
    x = input if len(lead) == 1 else input.reshape(-1, *input.shape[len(lead) :])
    channels = x.shape[1 if channels_first else -1]
    if channels != filters.shape[-2] * groups:
        raise InvalidValueError(
            f"input depth must be evenly divisible by filter depth: {channels} vs {filters.shape[-2]} (input "
            f"{list(input.shape)}, filters {list(filters.shape)}, groups {groups})."
        )
    if filters.shape[-1] % groups:
        raise InvalidValueError(
            f"the number of filters must be divisible by the number of groups: {filters.shape[-1]} vs {groups}."
        )
    spatial = x.shape[2:] if channels_first else x.shape[1:-1]
    check_window_fits(spatial, filters.shape[:rank], dilations, padding)
    y = jax.lax.conv_general_dilated(
        x,
        filters,
        strides,
        padding,
        rhs_dilation=dilations,
        dimension_numbers=numbers(channels_first, rank),
        feature_group_count=groups,
    )
    return y if len(lead) == 1 else y.reshape(*lead, *y.shape[1:])


def check_window_fits(
    spatial: tuple[int, ...], window: tuple[int, ...], dilations: Any, padding: Any
) -> None:
    """Refuses a window that is larger than what it slides over: the result would be empty.

    Raises:
      InvalidArgumentError: naming both sizes.
    """
    if padding == "SAME":
        return
    pairs = ((0, 0),) * len(spatial) if padding == "VALID" else padding
    dilations = dilations or (1,) * len(spatial)
    for n, k, d, (low, high) in zip(spatial, window, dilations, pairs, strict=True):
        extent = (k - 1) * d + 1
        if any_symbolic((n, low, high)):
            continue
        if n and n + low + high < extent:
            raise InvalidValueError(
                f"Negative dimension size caused by subtracting {extent} from {n + low + high}: a window of size "
                f"{list(window)} (dilations {list(dilations)}) does not fit into {list(spatial)} with padding {padding}."
            )


def channels_first(data_format: str | None) -> bool:
    """Whether a data format has the channels before the space; InvalidArgumentError when it is none."""
    if data_format is None:
        return False
    if not re.fullmatch("NC?D?H?WC?|CHANNELS_(FIRST|LAST)", data_format.upper()):
        raise InvalidValueError(
            f"data_format must be such as 'NHWC' or 'NCHW', got {data_format!r}."
        )
    return data_format.upper().startswith("NC")


def convolution(
    input: TensorLike,
    filters: TensorLike,
    strides: Any = None,
    padding: Any = "VALID",
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Convolution with as many spatial dimensions as the filters have.

    Args:
      input: tensor of shape [batch, *spatial, in], or [batch, in, *spatial] for 'NC...' formats.
      filters: tensor of shape [*spatial, in / groups, out]; groups follow from the depths.
      strides: step per spatial dimension.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: such as 'NHWC' or 'NCHW'.
      dilations: spacing of filter elements per spatial dimension.
      name: ignored.

    Returns:
      A tensor in the layout of the input.

    Raises:
      InvalidArgumentError: when ranks or depths do not fit.

    Example:
      >>> import meshflow as tf
      >>> signal = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 4, 1])
      >>> differences = tf.reshape([-1.0, 1.0], [2, 1, 1])
      >>> print(tf.nn.convolution(signal, differences)[0, :, 0].numpy())
      [1. 1. 1.]
    """
    filters = convert_to_tensor(filters)
    rank = len(filters.shape) - 2
    first = channels_first(data_format)
    symbolic = hasattr(input, "_keras_history")
    shape = input.shape if symbolic else convert_to_tensor(input).shape
    depth = shape[-(rank + 1) if first else -1] if len(shape) > rank else None
    groups = max(int(depth) // int(filters.shape[-2]), 1) if depth else 1
    return conv(
        input,
        filters,
        spatial_sizes(strides, rank, first, "strides"),
        padding_pairs(padding, rank, first),
        spatial_sizes(dilations, rank, first, "dilations"),
        first,
        groups,
    )


def conv1d(
    input: TensorLike,
    filters: TensorLike,
    stride: Any,
    padding: Any,
    data_format: str = "NWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Convolution over one spatial dimension; see `convolution`.

    Args:
      input: tensor of shape [batch, width, in], or [batch, in, width] for 'NCW'.
      filters: tensor of shape [width, in / groups, out].
      stride: the step.
      padding: 'SAME', 'VALID' or an explicit pair.
      data_format: 'NWC' or 'NCW'.
      dilations: spacing of filter elements; default 1.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 4, 1])
      >>> sums = tf.ones([2, 1, 1])
      >>> print(tf.nn.conv1d(x, sums, stride=2, padding="VALID")[0, :, 0].numpy())
      [3. 7.]
    """
    return convolution(input, filters, stride, padding, data_format, dilations)


def conv2d(
    input: TensorLike,
    filters: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Convolution over two spatial dimensions; see `convolution`.

    Input (..., height, width, in), filters (height, width, in / groups, out), result (..., new_height, new_width,
    out); with 'NCHW' the channels come second.

    Example:
      >>> import meshflow as tf
      >>> tf.nn.conv2d(tf.ones([1, 4, 4, 1]), tf.ones([3, 3, 1, 2]), 1, "SAME").shape
      TensorShape([1, 4, 4, 2])
    """
    return convolution(input, filters, strides, padding, data_format, dilations)


def conv3d(
    input: TensorLike,
    filters: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Convolution over three spatial dimensions; see `convolution`.

    Args:
      input: tensor of shape [batch, depth, height, width, in], or channels first for 'NCDHW'.
      filters: tensor of shape [depth, height, width, in / groups, out].
      strides: one step, or one for each dimension.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: 'NDHWC' or 'NCDHW'.
      dilations: spacing of filter elements; default 1.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> y = tf.nn.conv3d(tf.ones([1, 3, 3, 3, 1]), tf.ones([2, 2, 2, 1, 4]), [1] * 5, "VALID")
      >>> y.shape, tf.reduce_max(y).numpy().item()
      (TensorShape([1, 2, 2, 2, 4]), 8.0)
    """
    return convolution(input, filters, strides, padding, data_format, dilations)


def atrous_conv2d(
    value: TensorLike, filters: TensorLike, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """2-D convolution with filter elements `rate` apart.

    Args:
      value: tensor of shape [batch, height, width, in].
      filters: tensor of shape [height, width, in, out].
      rate: spacing of filter elements.
      padding: 'SAME' or 'VALID'.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape(tf.range(5.0), [1, 1, 5, 1])
      >>> filters = tf.ones([1, 2, 1, 1])
      >>> print(tf.nn.atrous_conv2d(x, filters, rate=3, padding="VALID")[0, 0, :, 0].numpy())
      [3. 5.]
    """
    return convolution(value, filters, 1, padding, "NHWC", rate)
