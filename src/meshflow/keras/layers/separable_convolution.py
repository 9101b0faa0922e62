"""Depthwise and separable convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, cast

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.layers.convolutional import Conv
from meshflow.keras.layers.keyword_arguments import (
    DEPTHWISE_ORDER,
    SEPARABLE_ORDER,
    Depthwise1DArguments,
    DepthwiseArguments,
    SeparableArguments,
    accept_positional,
    get_arguments,
)
from meshflow.keras.layers.weight_options import (
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.keras.literals import CausalPadding, DataFormat, Padding
from meshflow.ops import array, nn

__all__ = [
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
]


class DepthwiseConv2D(Conv):
    """Convolution of each channel separately.

    Args:
      kernel_size: Size of the window.
      strides: Stride of the window.
      padding: 'valid' or 'same'.
      depth_multiplier: Output channels per input channel.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: Dilation of the window.
      activation: Activation function, or its name.
      use_bias: Whether to add a bias.
      depthwise_initializer: Initializer of the kernel, shape (*kernel_size, in, multiplier).
      bias_initializer: Initializer of the bias.
      depthwise_regularizer: Regularizer of the kernel.
      depthwise_constraint: Constraint on the kernel.
      **kwargs: Arguments of `Conv`, and the layouts `depthwise_layout` and `bias_layout`.

    Input shape:
      (batch, height, width, channels). With 'channels_first', (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels * depth_multiplier), with the same order of
      dimensions.

    Example:
      >>> layer = tf.keras.layers.DepthwiseConv2D(3, depth_multiplier=2)
      >>> layer(tf.ones([1, 8, 8, 5])).shape
      TensorShape([1, 6, 6, 10])
      >>> layer.depthwise_kernel.shape
      TensorShape([3, 3, 5, 2])
    """

    _weights_with_layouts: tuple[str, ...] = ("depthwise", "bias")

    @accept_positional(DEPTHWISE_ORDER[5:])
    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: Padding = "valid",
        depth_multiplier: int = 1,
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = (1, 1),
        activation: Identifier = None,
        use_bias: bool = True,
        depthwise_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        depthwise_regularizer: Identifier = None,
        *,
        depthwise_constraint: Identifier = None,
        **kwargs: Unpack[DepthwiseArguments],
    ) -> None:
        super().__init__(
            self._rank,
            None,  # type: ignore[arg-type]  # The number of filters depends on the inputs.
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation=activation,
            use_bias=use_bias,
            bias_initializer=bias_initializer,
            **cast(Config, kwargs),
        )
        self.depth_multiplier = depth_multiplier
        set_weight_options(self, locals(), "depthwise")

    _rank = 2

    def build(self, input_shape: ShapeLike) -> None:
        """Create the kernel and the bias."""
        channels = self._require_channels(input_shape)
        self.filters = channels * self.depth_multiplier
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        self.depthwise_kernel = add_weight(self, "depthwise_kernel", shape, "depthwise")
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.filters,))
        self.built = True

    def call(self, inputs: TensorLike) -> Tensor:
        """Compute the output."""
        return self._add_bias_and_activate(
            nn.depthwise_conv2d(
                inputs,
                convert_to_tensor(self.depthwise_kernel),
                self.strides,
                self.padding.upper(),
                self._nn_data_format,
                self.dilation_rate,
            )
        )

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        self.filters = (
            TensorShape(input_shape)[1 if self._is_channels_first else -1] * self.depth_multiplier
        )
        return super().compute_output_shape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        for key in (
            "filters",
            "kernel_initializer",
            "kernel_regularizer",
            "kernel_constraint",
        ):
            config.pop(key)
        return {
            **config,
            "depth_multiplier": self.depth_multiplier,
            **make_weight_config(self, "depthwise"),
        }


class DepthwiseConv1D(DepthwiseConv2D):
    """Convolution of each channel of sequences separately; further arguments as in `DepthwiseConv2D`.

    Args:
      kernel_size: Size of the window.
      strides: Stride of the window.
      padding: 'valid' or 'same'.
      depth_multiplier: Output channels per input channel.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: Dilation of the window.
      **kwargs: Further arguments of `DepthwiseConv2D`.

    Input shape:
      (batch, steps, channels). With 'channels_first', (batch, channels, steps).

    Output shape:
      (batch, new_steps, channels * depth_multiplier), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.DepthwiseConv1D(3, depth_multiplier=2)(tf.ones([1, 8, 5])).shape
      TensorShape([1, 6, 10])
    """

    _rank = 1

    @accept_positional(DEPTHWISE_ORDER)
    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        depth_multiplier: int = 1,
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = 1,
        **kwargs: Unpack[Depthwise1DArguments],
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, depth_multiplier, data_format, dilation_rate, **kwargs
        )

    def call(self, inputs: TensorLike) -> Tensor:
        """Compute the output."""
        # The sequence is an image with one row. The op needs equal strides; the row stride has no
        # effect.
        axis = 2 if self._is_channels_first else 1
        (stride,), (dilation,) = self.strides, self.dilation_rate
        outputs = nn.depthwise_conv2d(
            array.expand_dims(inputs, axis),
            array.expand_dims(convert_to_tensor(self.depthwise_kernel), 0),
            (stride, stride),
            self.padding.upper(),
            "NCHW" if self._is_channels_first else "NHWC",
            (1, dilation),
        )
        return self._add_bias_and_activate(array.squeeze(outputs, axis))


class SeparableConv(Conv):
    """Depthwise convolution, followed by a pointwise convolution over the channels.

    Args:
      rank: Number of spatial dimensions, 1 or 2.
      filters: Number of output channels.
      kernel_size: Size of the window.
      strides: Stride of the window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: Dilation of the window.
      depth_multiplier: Number of depthwise channels per input channel.
      activation: Activation function, or its name.
      use_bias: Whether to add a bias.
      depthwise_initializer: Initializer of the depthwise kernel.
      pointwise_initializer: Initializer of the pointwise kernel.
      **kwargs: Arguments of `Conv`; regularizers, constraints and layouts of both kernels.
    """

    _weights_with_layouts: tuple[str, ...] = ("depthwise", "pointwise", "bias")

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: CausalPadding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        depthwise_initializer: Identifier = "glorot_uniform",
        pointwise_initializer: Identifier = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        options = {
            f"{n}_{k}": kwargs.pop(f"{n}_{k}", None)
            for n in ("depthwise", "pointwise")
            for k in ("regularizer", "constraint")
        }
        super().__init__(
            rank,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation=activation,
            use_bias=use_bias,
            **kwargs,
        )
        self.depth_multiplier = depth_multiplier
        set_weight_options(self, locals() | options, "depthwise", "pointwise")

    def build(self, input_shape: ShapeLike) -> None:
        """Create both kernels and the bias."""
        channels = self._require_channels(input_shape)
        depthwise_shape = (*self.kernel_size, channels, self.depth_multiplier)
        self.depthwise_kernel = add_weight(self, "depthwise_kernel", depthwise_shape, "depthwise")
        pointwise_shape = (*(1,) * self.rank, channels * self.depth_multiplier, self.filters)
        self.pointwise_kernel = add_weight(self, "pointwise_kernel", pointwise_shape, "pointwise")
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.filters,))
        self.built = True

    def call(self, inputs: TensorLike) -> Tensor:
        """Compute the output."""
        # A 1-D convolution is computed as a 2-D convolution with height 1.
        axis, lead = 2 if self._is_channels_first else 1, (1,) * (2 - self.rank)
        flat = self.rank == 1
        if flat:
            inputs = array.expand_dims(inputs, axis)
        depthwise, pointwise = (
            array.expand_dims(kernel.value(), 0) if flat else kernel.value()
            for kernel in (self.depthwise_kernel, self.pointwise_kernel)
        )
        layout = "NCHW" if self._is_channels_first else "NHWC"
        outputs = nn.depthwise_conv2d(
            inputs,
            depthwise,
            (*lead, *self.strides),
            self.padding.upper(),
            layout,
            (*lead, *self.dilation_rate),
        )
        compute = lambda x, w: nn.convolution(x, w, 1, "VALID", layout)
        outputs = compute_product(self, compute, outputs, pointwise)
        return self._add_bias_and_activate(array.squeeze(outputs, axis) if flat else outputs)

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        return {
            **config,
            "depth_multiplier": self.depth_multiplier,
            **make_weight_config(self, "depthwise", "pointwise"),
        }


class SeparableConv1D(SeparableConv):
    """Separable convolution over one dimension; arguments as in `SeparableConv`, without `rank`.

    Input shape:
      (batch, steps, channels). With 'channels_first', (batch, channels, steps).

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.SeparableConv1D(4, 3)(tf.ones([1, 8, 5])).shape
      TensorShape([1, 6, 4])
    """

    @accept_positional(SEPARABLE_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: CausalPadding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        **kwargs: Unpack[SeparableArguments],
    ) -> None:
        super().__init__(1, **get_arguments(locals()))


class SeparableConv2D(SeparableConv):
    """Separable convolution over two dimensions; arguments as in `SeparableConv`, without `rank`.

    Input shape:
      (batch, height, width, channels). With 'channels_first', (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> layer = tf.keras.layers.SeparableConv2D(4, 3)
      >>> layer(tf.ones([1, 8, 8, 5])).shape
      TensorShape([1, 6, 6, 4])
      >>> layer.depthwise_kernel.shape, layer.pointwise_kernel.shape
      (TensorShape([3, 3, 5, 1]), TensorShape([1, 1, 5, 4]))
    """

    @accept_positional(SEPARABLE_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: Padding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = (1, 1),
        depth_multiplier: int = 1,
        **kwargs: Unpack[SeparableArguments],
    ) -> None:
        super().__init__(2, **get_arguments(locals()))


SeparableConvolution1D = SeparableConv1D
SeparableConvolution2D = SeparableConv2D
