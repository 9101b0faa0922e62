"""Convolutions of one to three spatial dimensions.

All functions normalize their arguments and call the op `conv`, which takes channels-last or
channels-first arrays and calls XLA's general convolution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import jax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import InvalidValueError, UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["atrous_conv2d", "conv1d", "conv2d", "conv3d", "convolution"]

# Strides, dilations or window sizes: one integer, or one for each spatial dimension or dimension.
Sizes: TypeAlias = int | Sequence[int]
# 'SAME', 'VALID', or a pair (before, after) for each spatial dimension or dimension.
Padding: TypeAlias = str | Sequence[Sequence[int]]


def make_dimension_numbers(channels_first: bool, rank: int) -> tuple[str, str, str]:
    """Return XLA's dimension numbers for a data layout; kernels are [*spatial, in, out]."""
    spatial = "DHW"[3 - rank :]
    data = f"NC{spatial}" if channels_first else f"N{spatial}C"
    return data, f"{spatial}IO", data


def normalize_sizes(
    value: Sizes | None, rank: int, channels_first: bool, name: str
) -> tuple[int, ...]:
    """Return strides or dilations as one integer per spatial dimension; None means 1.

    Raises:
      ValueError: If the number of values does not match the rank.
    """
    value = to_static_value(value, name)
    if value is None:
        return (1,) * rank
    values = [value] if isinstance(value, int) else value
    if any(size <= 0 for size in values):
        raise InvalidValueError(f"{name} must be positive, got {value}.")
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


def normalize_padding(
    padding: Padding, rank: int, channels_first: bool
) -> str | tuple[tuple[int, int], ...]:
    """Return 'SAME', 'VALID', or one pair per spatial dimension.

    Raises:
      ValueError: If the padding is another string.
    """
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise InvalidValueError(
                f"padding must be 'SAME', 'VALID' or a list of pairs, got {padding!r}."
            )
        return padding.upper()
    pairs = tuple(tuple(p) for p in to_static_value(padding, "padding"))
    return (pairs[2:] if channels_first else pairs[1:-1]) if len(pairs) == rank + 2 else pairs


@op(name="convolution", kinds="if")
def conv(
    input: TensorLike,
    filters: TensorLike,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dilations: Sequence[int],
    channels_first: bool,
    groups: int,
) -> Tensor:
    """Convolve [batch, *spatial, in] (or channels first) with [*spatial, in / groups, out].

    Several leading dimensions are flattened into one batch.
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
    if any(size == 0 for size in filters.shape if isinstance(size, int)):
        raise InvalidValueError(
            f"filter must not have zero elements, got shape {list(filters.shape)}."
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
        dimension_numbers=make_dimension_numbers(channels_first, rank),
        feature_group_count=groups,
    )
    return y if len(lead) == 1 else y.reshape(*lead, *y.shape[1:])


def check_window_fits(
    spatial: Sequence[int], window: Sequence[int], dilations: Sequence[int] | None, padding: Padding
) -> None:
    """Check that a window is not larger than its input, so that the result is not empty.

    Raises:
      InvalidArgumentError: If the window does not fit.
    """
    if padding == "SAME":
        return
    pairs = ((0, 0),) * len(spatial) if isinstance(padding, str) else padding
    dilations = dilations or (1,) * len(spatial)
    for n, k, d, (low, high) in zip(spatial, window, dilations, pairs, strict=True):
        extent = (k - 1) * d + 1
        try:
            # For sizes that vary, the comparison becomes a guard of the trace.
            is_too_small = n and n + low + high < extent
        except jax.errors.InconclusiveDimensionOperation:
            continue
        if is_too_small:
            raise InvalidValueError(
                f"Negative dimension size caused by subtracting {extent} from {n + low + high}: a window of size "
                f"{list(window)} (dilations {list(dilations)}) does not fit into {list(spatial)} with padding {padding}."
            )


def is_channels_first(data_format: str | None) -> bool:
    """Check whether a data format has the channels before the spatial dimensions.

    Raises:
      InvalidArgumentError: If the data format is unknown.
    """
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
    strides: Sizes | None = None,
    padding: Padding = "VALID",
    data_format: str | None = None,
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve a tensor along all spatial dimensions of the filters.

    Args:
      input: Tensor of shape [batch, *spatial, in], or [batch, in, *spatial] for 'NC...' formats.
      filters: Tensor of shape [*spatial, in / groups, out]; the number of groups is inferred.
      strides: Strides per spatial dimension.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: Data format, for example 'NHWC' or 'NCHW'.
      dilations: Distances between filter elements per spatial dimension.
      name: Ignored.

    Returns:
      A tensor in the layout of the input.

    Raises:
      InvalidArgumentError: If the ranks or numbers of channels do not match.

    Example:
      >>> signal = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 4, 1])
      >>> differences = tf.reshape([-1.0, 1.0], [2, 1, 1])
      >>> print(tf.nn.convolution(signal, differences)[0, :, 0].numpy())
      [1. 1. 1.]
    """
    filters = convert_to_tensor(filters)
    rank = len(filters.shape) - 2
    first = is_channels_first(data_format)
    symbolic = hasattr(input, "_keras_history")
    shape = input.shape if symbolic else convert_to_tensor(input).shape
    depth = shape[-(rank + 1) if first else -1] if len(shape) > rank else None
    groups = max(int(depth) // int(filters.shape[-2]), 1) if depth else 1
    return conv(
        input,
        filters,
        normalize_sizes(strides, rank, first, "strides"),
        normalize_padding(padding, rank, first),
        normalize_sizes(dilations, rank, first, "dilations"),
        first,
        groups,
    )


@dispatch_composites
def conv1d(
    input: TensorLike,
    filters: TensorLike,
    stride: Sizes | None,
    padding: Padding,
    data_format: str = "NWC",
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve a tensor along one spatial dimension; see `convolution`.

    The input has the shape [batch, width, in] and the filters [width, in / groups, out]. For 'NCW'
    the channels are the second axis.

    Example:
      >>> x = tf.reshape([1.0, 2.0, 3.0, 4.0], [1, 4, 1])
      >>> sums = tf.ones([2, 1, 1])
      >>> print(tf.nn.conv1d(x, sums, stride=2, padding="VALID")[0, :, 0].numpy())
      [3. 7.]
    """
    return convolution(input, filters, stride, padding, data_format, dilations)


@dispatch_composites
def conv2d(
    input: TensorLike,
    filters: TensorLike,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NHWC",
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve a tensor along two spatial dimensions; see `convolution`.

    The input has the shape [..., height, width, in] and the filters [height, width, in / groups,
    out]; the result is [..., new_height, new_width, out]. For 'NCHW' the channels are the second
    axis.

    Example:
      >>> tf.nn.conv2d(tf.ones([1, 4, 4, 1]), tf.ones([3, 3, 1, 2]), 1, "SAME").shape
      TensorShape([1, 4, 4, 2])
    """
    return convolution(input, filters, strides, padding, data_format, dilations)


@dispatch_composites
def conv3d(
    input: TensorLike,
    filters: TensorLike,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NDHWC",
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve a tensor along three spatial dimensions; see `convolution`.

    The input has the shape [batch, depth, height, width, in] and the filters [depth, height, width,
    in / groups, out]. For 'NCDHW' the channels are the second axis.

    Example:
      >>> y = tf.nn.conv3d(tf.ones([1, 3, 3, 3, 1]), tf.ones([2, 2, 2, 1, 4]), [1] * 5, "VALID")
      >>> y.shape, tf.reduce_max(y).numpy().item()
      (TensorShape([1, 2, 2, 2, 4]), 8.0)
    """
    return convolution(input, filters, strides, padding, data_format, dilations)


def atrous_conv2d(
    value: TensorLike, filters: TensorLike, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """Convolve images with a distance of `rate` between filter elements.

    The input has the shape [batch, height, width, in] and the filters [height, width, in, out].

    Example:
      >>> x = tf.reshape(tf.range(5.0), [1, 1, 5, 1])
      >>> filters = tf.ones([1, 2, 1, 1])
      >>> print(tf.nn.atrous_conv2d(x, filters, rate=3, padding="VALID")[0, 0, :, 0].numpy())
      [3. 5.]
    """
    return convolution(value, filters, 1, padding, "NHWC", rate)
