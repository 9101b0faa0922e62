"""Transposed convolutions: gradients of convolutions with respect to their inputs."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import as_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.nn.convolution import (
    Padding,
    Sizes,
    is_channels_first,
    make_dimension_numbers,
    normalize_padding,
    normalize_sizes,
)

__all__ = [
    "atrous_conv2d_transpose",
    "conv1d_transpose",
    "conv2d_transpose",
    "conv3d_transpose",
    "conv_transpose",
]


def atrous_conv2d_transpose(
    value: TensorLike,
    filters: TensorLike,
    output_shape: StaticInts,
    rate: int,
    padding: str,
    name: str | None = None,
) -> Tensor:
    """Compute the transpose of `atrous_conv2d`, with filters [height, width, out, in].

    Example:
      >>> x = tf.reshape([1.0, 2.0], [1, 1, 2, 1])
      >>> filters = tf.reshape([1.0, 10.0], [1, 2, 1, 1])
      >>> y = tf.nn.atrous_conv2d_transpose(x, filters, [1, 1, 4, 1], rate=2, padding="VALID")
      >>> print(y[0, 0, :, 0].numpy())
      [ 1.  2. 10. 20.]
    """
    return conv_transpose(value, filters, output_shape, 1, padding, "NHWC", rate)


@op(name="conv_transpose", kinds="f")
def _transpose_convolution(
    input: TensorLike,
    filters: TensorLike,
    output_sizes: Sequence[int],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dilations: Sequence[int],
    channels_first: bool,
    output_channels: int | None,
) -> Tensor:
    """Compute the gradient of `conv` with respect to its input; filters are [*spatial, out, in]."""
    rank = filters.ndim - 2
    channels = filters.shape[-2]
    if output_channels is not None and output_channels != channels:
        raise InvalidValueError(
            f"conv_transpose: output_shape must have the {channels} channels of the filters, got {output_channels}."
        )
    batch = input.shape[0]
    shape = (batch, channels, *output_sizes) if channels_first else (batch, *output_sizes, channels)

    def forward(x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            filters,
            strides,
            padding,
            rhs_dilation=dilations,
            dimension_numbers=make_dimension_numbers(channels_first, rank),
        )

    like = jax.ShapeDtypeStruct(shape, input.dtype)
    expected = jax.eval_shape(forward, like)
    if expected.shape != input.shape:
        raise InvalidValueError(
            f"conv_transpose: an output of shape {list(shape)} requires an input of shape {list(expected.shape)}, got {list(input.shape)}."
        )
    (result,) = jax.linear_transpose(forward, like)(input)
    return result


@record_in_graph
def conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: StaticInts,
    strides: Sizes | None,
    padding: Padding = "SAME",
    data_format: str | None = None,
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the gradient of a convolution with respect to its input.

    Args:
      input: Tensor of shape [batch, *spatial, in] (or channels first).
      filters: Tensor of shape [*spatial, out, in].
      output_shape: Shape of the result, including batch and channels.
      strides: Strides of the convolution per spatial dimension.
      padding: Padding of the convolution, 'SAME' or 'VALID'.
      data_format: Data format, for example 'NHWC' or 'NCHW'.
      dilations: Distances between filter elements.
      name: Ignored.

    Returns:
      A tensor of shape `output_shape`.

    Example:
      >>> x = tf.reshape([1.0, 2.0], [1, 2, 1])
      >>> filters = tf.reshape([1.0, 10.0], [2, 1, 1])
      >>> print(tf.nn.conv_transpose(x, filters, output_shape=[1, 4, 1], strides=2)[0, :, 0].numpy())
      [ 1. 10.  2. 20.]
    """
    rank = len(convert_to_tensor(filters).shape) - 2
    first = is_channels_first(data_format)
    sizes = to_static_value(output_shape, "output_shape")
    spatial = (sizes[2:] if first else sizes[1:-1]) if len(sizes) == rank + 2 else sizes
    return _transpose_convolution(
        input,
        filters,
        tuple(map(as_size, spatial)),
        normalize_sizes(strides, rank, first, "strides"),
        normalize_padding(padding, rank, first),
        normalize_sizes(dilations, rank, first, "dilations"),
        first,
        int(sizes[1 if first else -1]) if len(sizes) == rank + 2 else None,
    )


@record_in_graph
def conv1d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: StaticInts,
    strides: Sizes | None,
    padding: Padding = "SAME",
    data_format: str = "NWC",
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute a transposed convolution over one dimension; see `conv_transpose`.

    The input has the shape [batch, width, in] (or channels first) and the filters [width, out, in].

    Example:
      >>> x = tf.reshape([1.0, 2.0], [1, 2, 1])
      >>> filters = tf.reshape([1.0, 10.0], [2, 1, 1])
      >>> y = tf.nn.conv1d_transpose(x, filters, [1, 3, 1], strides=1, padding="VALID")
      >>> print(y[0, :, 0].numpy())
      [ 1. 12. 20.]
    """
    return conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations)


@record_in_graph
def conv2d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: StaticInts,
    strides: Sizes | None,
    padding: Padding = "SAME",
    data_format: str = "NHWC",
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute a transposed convolution over two dimensions; see `conv_transpose`.

    The input has the shape [batch, height, width, in] (or channels first) and the filters [height,
    width, out, in].

    Example:
      >>> filters = tf.ones([2, 2, 1, 3])  # 3 channels in, 1 out
      >>> y = tf.nn.conv2d_transpose(tf.ones([1, 2, 2, 3]), filters, [1, 4, 4, 1], strides=2)
      >>> y.shape, tf.reduce_max(y).numpy().item()
      (TensorShape([1, 4, 4, 1]), 3.0)
    """
    return conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations)


@record_in_graph
def conv3d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: StaticInts,
    strides: Sizes | None,
    padding: Padding = "SAME",
    data_format: str = "NDHWC",
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute a transposed convolution over three dimensions; see `conv_transpose`.

    The input has the shape [batch, depth, height, width, in] (or channels first) and the filters
    [depth, height, width, out, in].

    Example:
      >>> filters = tf.ones([2, 2, 2, 1, 3])  # 3 channels in, 1 out
      >>> y = tf.nn.conv3d_transpose(tf.ones([1, 2, 2, 2, 3]), filters, [1, 4, 4, 4, 1], strides=2)
      >>> y.shape, tf.reduce_max(y).numpy().item()
      (TensorShape([1, 4, 4, 4, 1]), 3.0)
    """
    return conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations)
