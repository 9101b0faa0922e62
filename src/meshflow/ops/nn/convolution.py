"""Convolutions of one to three spatial dimensions.

Everything ends in `conv` and `conv_transpose`, which take channels-last or channels-first arrays
and call XLA's general convolution: the one place for other kernels to come in.
"""

from __future__ import annotations

import re
from typing import Any

import jax

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import op
from meshflow.core.errors import InvalidValueError, UnimplementedError
from meshflow.core.operands import static_value
from meshflow.core.tensor import Tensor, TensorLike

__all__ = [
    "atrous_conv2d",
    "atrous_conv2d_transpose",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "conv_transpose",
    "convolution",
    "depthwise_conv2d",
    "depthwise_conv2d_backprop_filter",
    "depthwise_conv2d_backprop_input",
    "separable_conv2d",
]


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
        if n and n + low + high < extent:
            raise InvalidValueError(
                f"Negative dimension size caused by subtracting {extent} from {n + low + high}: a window of size "
                f"{list(window)} (dilations {list(dilations)}) does not fit into {list(spatial)} with padding {padding}."
            )


def _channels_first(data_format: str | None) -> bool:
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
    """
    filters = convert_to_tensor(filters)
    rank = len(filters.shape) - 2
    first = _channels_first(data_format)
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
    """Convolution over one spatial dimension; see `convolution`."""
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
    """Convolution over three spatial dimensions; see `convolution`."""
    return convolution(input, filters, strides, padding, data_format, dilations)


def atrous_conv2d(
    value: TensorLike, filters: TensorLike, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """2-D convolution with filter elements `rate` apart."""
    return convolution(value, filters, 1, padding, "NHWC", rate)


def atrous_conv2d_transpose(
    value: TensorLike,
    filters: TensorLike,
    output_shape: Any,
    rate: int,
    padding: str,
    name: str | None = None,
) -> Tensor:
    """The transpose of `atrous_conv2d`; filters are [height, width, out, in]."""
    return conv_transpose(value, filters, output_shape, 1, padding, "NHWC", rate)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """2-D convolution of each channel by itself.

    Args:
      input: tensor of shape [batch, height, width, in] (or channels first).
      filter: tensor of shape [height, width, in, multiplier].
      strides: step per spatial dimension.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: 'NHWC' or 'NCHW'.
      dilations: spacing of filter elements.
      name: ignored.

    Returns:
      A tensor with in * multiplier channels.
    """
    from meshflow.ops.array import reshape

    first = _channels_first(data_format)
    filter = convert_to_tensor(filter)
    h, w, depth, multiplier = filter.shape
    kernel = reshape(filter, [h, w, 1, depth * multiplier])
    return conv(
        input,
        kernel,
        spatial_sizes(strides, 2, first, "strides"),
        padding_pairs(padding, 2, first),
        spatial_sizes(dilations, 2, first, "dilations"),
        first,
        int(depth),
    )


def depthwise_conv2d_backprop_input(
    input_sizes: Any,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """Gradient of `depthwise_conv2d` with respect to an input of shape `input_sizes`."""
    from meshflow.ops.array import zeros

    sizes = static_value(input_sizes, "input_sizes")
    like = zeros(sizes, convert_to_tensor(out_backprop).dtype)
    return _pull(
        lambda x: depthwise_conv2d(x, filter, strides, padding, data_format, dilations),
        like,
        out_backprop,
    )


def depthwise_conv2d_backprop_filter(
    input: TensorLike,
    filter_sizes: Any,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """Gradient of `depthwise_conv2d` with respect to a filter of shape `filter_sizes`."""
    from meshflow.ops.array import zeros

    sizes = static_value(filter_sizes, "filter_sizes")
    like = zeros(sizes, convert_to_tensor(out_backprop).dtype)
    return _pull(
        lambda w: depthwise_conv2d(input, w, strides, padding, data_format, dilations),
        like,
        out_backprop,
    )


def _pull(function: Any, at: Tensor, seed: Any) -> Any:
    from meshflow.core.tape import GradientTape

    with GradientTape() as tape:
        tape.watch(at)
        y = function(at)
    return tape.gradient(y, at, output_gradients=convert_to_tensor(seed))


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """A depthwise convolution, then one over channels only."""
    x = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return convolution(x, pointwise_filter, 1, "VALID", data_format)


@op(name="conv_transpose", kinds="f")
def _conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_sizes: Any,
    strides: Any,
    padding: Any,
    dilations: Any,
    channels_first: bool,
    wanted: int | None,
) -> Tensor:
    """The gradient of `conv` with respect to its input; filters are [*spatial, out, in]."""
    rank = filters.ndim - 2
    channels = filters.shape[-2]
    if wanted is not None and wanted != channels:
        raise InvalidValueError(
            f"conv_transpose: output_shape has {wanted} channels, the filters {channels}."
        )
    batch = input.shape[0]
    shape = (batch, channels, *output_sizes) if channels_first else (batch, *output_sizes, channels)

    def forward(x: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            filters,
            strides,
            padding,
            rhs_dilation=dilations,
            dimension_numbers=numbers(channels_first, rank),
        )

    like = jax.ShapeDtypeStruct(shape, input.dtype)
    expected = jax.eval_shape(forward, like)
    if expected.shape != input.shape:
        raise InvalidValueError(
            f"conv_transpose: an output of shape {list(shape)} belongs to an input of shape {list(expected.shape)}, got {list(input.shape)}."
        )
    (result,) = jax.linear_transpose(forward, like)(input)
    return result


def conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Transposed convolution: the gradient of a convolution with respect to its input.

    Args:
      input: tensor of shape [batch, *spatial, in] (or channels first).
      filters: tensor of shape [*spatial, out, in].
      output_shape: shape of the result, batch and channels included.
      strides: step per spatial dimension of the convolution.
      padding: 'SAME' or 'VALID', of the convolution.
      data_format: such as 'NHWC' or 'NCHW'.
      dilations: spacing of filter elements.
      name: ignored.

    Returns:
      A tensor of `output_shape`.
    """
    rank = len(convert_to_tensor(filters).shape) - 2
    first = _channels_first(data_format)
    sizes = static_value(output_shape, "output_shape")
    spatial = (sizes[2:] if first else sizes[1:-1]) if len(sizes) == rank + 2 else sizes
    return _conv_transpose(
        input,
        filters,
        tuple(int(s) for s in spatial),
        spatial_sizes(strides, rank, first, "strides"),
        padding_pairs(padding, rank, first),
        spatial_sizes(dilations, rank, first, "dilations"),
        first,
        int(sizes[1 if first else -1]) if len(sizes) == rank + 2 else None,
    )


def conv1d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Transposed convolution over one dimension; see `conv_transpose`."""
    return conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations)


def conv2d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Transposed convolution over two dimensions; see `conv_transpose`."""
    return conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations)


def conv3d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: Any,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NDHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """Transposed convolution over three dimensions; see `conv_transpose`."""
    return conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations)
