"""Depthwise and separable convolutions, and the gradients of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array import reshape, zeros
from meshflow.ops.nn.convolution import (
    Padding,
    Sizes,
    conv,
    convolution,
    is_channels_first,
    normalize_padding,
    normalize_sizes,
)

__all__ = [
    "depthwise_conv2d",
    "depthwise_conv2d_backprop_filter",
    "depthwise_conv2d_backprop_input",
    "separable_conv2d",
]


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Sizes | None,
    padding: Padding,
    data_format: str | None = None,
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve each channel of images separately.

    Args:
      input: Tensor of shape [batch, height, width, in] (or channels first).
      filter: Tensor of shape [height, width, in, multiplier].
      strides: Strides per spatial dimension.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: 'NHWC' or 'NCHW'.
      dilations: Distances between filter elements.
      name: Ignored.

    Returns:
      A tensor with in * multiplier channels.

    Example:
      >>> x = tf.constant([[[[1.0, 10.0], [2.0, 20.0]]]])
      >>> sums = tf.ones([1, 2, 2, 1])
      >>> print(tf.nn.depthwise_conv2d(x, sums, [1, 1, 1, 1], "VALID")[0, 0, 0].numpy())
      [ 3. 30.]
    """
    first = is_channels_first(data_format)
    filter = convert_to_tensor(filter)
    h, w, depth, multiplier = filter.shape
    kernel = reshape(filter, [h, w, 1, depth * multiplier])
    return conv(
        input,
        kernel,
        normalize_sizes(strides, 2, first, "strides"),
        normalize_padding(padding, 2, first),
        normalize_sizes(dilations, 2, first, "dilations"),
        first,
        int(depth),
    )


def depthwise_conv2d_backprop_input(
    input_sizes: ShapeLike,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NHWC",
    dilations: Sizes | None = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """Compute the gradient of `depthwise_conv2d` with respect to its input of shape `input_sizes`.

    `out_backprop` is the gradient of the result; the other arguments are those of
    `depthwise_conv2d`.

    Example:
      >>> g = tf.nn.depthwise_conv2d_backprop_input(
      ...     [1, 1, 3, 1], 5.0 * tf.ones([1, 2, 1, 1]), tf.ones([1, 1, 2, 1]), [1, 1, 1, 1], "VALID")
      >>> print(g[0, 0, :, 0].numpy())
      [ 5. 10.  5.]
    """
    sizes = to_static_value(input_sizes, "input_sizes")
    like = zeros(sizes, convert_to_tensor(out_backprop).dtype)
    return _compute_vjp(
        lambda x: depthwise_conv2d(x, filter, strides, padding, data_format, dilations),
        like,
        out_backprop,
    )


def depthwise_conv2d_backprop_filter(
    input: TensorLike,
    filter_sizes: ShapeLike,
    out_backprop: TensorLike,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NHWC",
    dilations: Sizes | None = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """Compute the gradient of `depthwise_conv2d` with respect to its filter of shape `filter_sizes`.

    `out_backprop` is the gradient of the result; the other arguments are those of
    `depthwise_conv2d`.

    Example:
      >>> x = tf.reshape([1.0, 2.0, 4.0], [1, 1, 3, 1])
      >>> g = tf.nn.depthwise_conv2d_backprop_filter(
      ...     x, [1, 2, 1, 1], tf.ones([1, 1, 2, 1]), [1, 1, 1, 1], "VALID")
      >>> print(g[0, :, 0, 0].numpy())
      [3. 6.]
    """
    sizes = to_static_value(filter_sizes, "filter_sizes")
    like = zeros(sizes, convert_to_tensor(out_backprop).dtype)
    return _compute_vjp(
        lambda w: depthwise_conv2d(input, w, strides, padding, data_format, dilations),
        like,
        out_backprop,
    )


def _compute_vjp(
    function: Callable[[Tensor], Tensor], point: Tensor, output_gradient: TensorLike
) -> Tensor:
    with GradientTape() as tape:
        tape.watch(point)
        y = function(point)
    return tape.gradient(y, point, output_gradients=convert_to_tensor(output_gradient))


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Sizes | None,
    padding: Padding,
    data_format: str | None = None,
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Apply a depthwise convolution, then a pointwise convolution.

    Args:
      input: Tensor of shape [batch, height, width, in] (or channels first).
      depthwise_filter: Tensor of shape [height, width, in, multiplier].
      pointwise_filter: Tensor of shape [1, 1, in * multiplier, out].
      strides: Strides for all four dimensions; the first and last must be 1.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: 'NHWC' or 'NCHW'.
      dilations: Distances between filter elements.
      name: Ignored.

    Returns:
      A tensor with `out` channels.

    Example:
      >>> x = tf.constant([[[[1.0, 10.0], [2.0, 20.0]]]])
      >>> sums, total = tf.ones([1, 2, 2, 1]), tf.ones([1, 1, 2, 1])
      >>> tf.nn.separable_conv2d(x, sums, total, [1, 1, 1, 1], "VALID").numpy().item()
      33.0
    """
    x = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return convolution(x, pointwise_filter, 1, "VALID", data_format)
