"""Convolutions of each channel by itself, alone or followed by one that mixes channels."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras import constraints, initializers, regularizers
from meshflow.keras.engine.layer.float8_products import product
from meshflow.keras.layers.convolutional import Conv
from meshflow.keras.layers.core import weight_config
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
    """Convolution of each channel by itself.

    Args:
      kernel_size: size of the window.
      strides: step of the window.
      padding: 'valid' or 'same'.
      depth_multiplier: output channels per input channel.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: spacing of the window's elements.
      activation: activation function.
      use_bias: whether a bias is added.
      depthwise_initializer: initializer of the kernel, shape (*kernel_size, in, multiplier).
      bias_initializer: initializer of the bias.
      depthwise_regularizer: penalty on the kernel.
      depthwise_constraint: projection of the kernel.
      **kwargs: arguments of `Conv`.

    Input shape:
      (batch, height, width, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_height, new_width, channels * depth_multiplier), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.DepthwiseConv2D(3, depth_multiplier=2)
      >>> layer(tf.ones([1, 8, 8, 5])).shape
      TensorShape([1, 6, 6, 10])
      >>> layer.depthwise_kernel.shape
      TensorShape([3, 3, 5, 2])
    """

    _weights_with_layouts: tuple[str, ...] = ("depthwise", "bias")

    def __init__(
        self,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Any = (1, 1),
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        depthwise_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            self._rank,
            None,  # type: ignore[arg-type]  # they follow from the inputs
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            kwargs.pop("groups", 1),  # Keras' configurations have it
            activation,
            use_bias,
            bias_initializer=bias_initializer,
            **kwargs,
        )
        self.depth_multiplier = depth_multiplier
        self.depthwise_initializer = initializers.get(depthwise_initializer)
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer)
        self.depthwise_constraint = constraints.get(depthwise_constraint)

    _rank = 2

    def build(self, input_shape: Any) -> None:
        """Creates kernel and bias."""
        channels = self._channels(input_shape)
        self.filters = channels * self.depth_multiplier
        self.depthwise_kernel = self.add_weight(
            "depthwise_kernel",
            (*self.kernel_size, channels, self.depth_multiplier),
            initializer=self.depthwise_initializer,
            regularizer=self.depthwise_regularizer,
            constraint=self.depthwise_constraint,
        )
        if self.use_bias:
            self.bias = self._add_kernel((self.filters,), "bias")
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        return self._finish(
            nn.depthwise_conv2d(
                inputs,
                self.depthwise_kernel.value(),
                self.strides,
                self.padding.upper(),
                self._format,
                self.dilation_rate,
            )
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        self.filters = TensorShape(input_shape)[1 if self._first else -1] * self.depth_multiplier
        return super().compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = super().get_config()
        for key in (
            "filters",
            "groups",
            "kernel_initializer",
            "kernel_regularizer",
            "kernel_constraint",
        ):
            config.pop(key)
        return {
            **config,
            "depth_multiplier": self.depth_multiplier,
            **weight_config(self, "depthwise"),
        }


class DepthwiseConv1D(DepthwiseConv2D):
    """Convolution of each channel of sequences by itself; arguments as for `DepthwiseConv2D`.

    Args:
      kernel_size: size of the window.
      strides: step of the window.
      padding: 'valid' or 'same'.
      depth_multiplier: output channels per input channel.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: spacing of the window's elements.
      **kwargs: further arguments of `DepthwiseConv2D`.

    Input shape:
      (batch, steps, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_steps, channels * depth_multiplier), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.DepthwiseConv1D(3, depth_multiplier=2)(tf.ones([1, 8, 5])).shape
      TensorShape([1, 6, 10])
    """

    _rank = 1

    def __init__(
        self,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Any = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, depth_multiplier, data_format, dilation_rate, **kwargs
        )

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        # An image of one row; strides count in both dimensions, of which the row has one place only.
        axis = 2 if self._first else 1
        (stride,), (dilation,) = self.strides, self.dilation_rate
        outputs = nn.depthwise_conv2d(
            array.expand_dims(inputs, axis),
            array.expand_dims(self.depthwise_kernel.value(), 0),
            (stride, stride),
            self.padding.upper(),
            "NCHW" if self._first else "NHWC",
            (1, dilation),
        )
        return self._finish(array.squeeze(outputs, axis))


class SeparableConv(Conv):
    """A depthwise convolution, then one over channels only.

    Args:
      rank: number of spatial dimensions, 1 or 2.
      filters: number of output channels.
      kernel_size: size of the window.
      strides: step of the window.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: spacing of the window's elements.
      depth_multiplier: channels per input channel in between.
      activation: activation function.
      use_bias: whether a bias is added.
      depthwise_initializer: initializer of the first kernel.
      pointwise_initializer: initializer of the second kernel.
      **kwargs: arguments of `Conv`, and regularizers and constraints of both kernels.
    """

    _weights_with_layouts: tuple[str, ...] = ("depthwise", "pointwise", "bias")

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        own = {
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
            kwargs.pop("groups", 1),  # Keras' configurations have it
            activation,
            use_bias,
            **kwargs,
        )
        self.depth_multiplier = depth_multiplier
        self.depthwise_initializer, self.pointwise_initializer = (
            initializers.get(depthwise_initializer),
            initializers.get(pointwise_initializer),
        )
        for key, value in own.items():
            setattr(
                self, key, (regularizers if key.endswith("regularizer") else constraints).get(value)
            )

    def build(self, input_shape: Any) -> None:
        """Creates both kernels and the bias."""
        channels = self._channels(input_shape)
        self.depthwise_kernel = self._add_named(
            "depthwise", (*self.kernel_size, channels, self.depth_multiplier)
        )
        self.pointwise_kernel = self._add_named(
            "pointwise", (*(1,) * self.rank, channels * self.depth_multiplier, self.filters)
        )
        if self.use_bias:
            self.bias = self._add_kernel((self.filters,), "bias")
        self.built = True

    def _add_named(self, name: str, shape: Any) -> Any:
        return self.add_weight(
            f"{name}_kernel",
            shape,
            initializer=getattr(self, f"{name}_initializer"),
            regularizer=getattr(self, f"{name}_regularizer"),
            constraint=getattr(self, f"{name}_constraint"),
        )

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        # One dimension is two with a height of 1.
        axis, lead = 2 if self._first else 1, (1,) * (2 - self.rank)
        flat = self.rank == 1
        inputs, depthwise, pointwise = (
            array.expand_dims(v, at) if flat else v
            for v, at in (
                (inputs, axis),
                (self.depthwise_kernel.value(), 0),
                (self.pointwise_kernel.value(), 0),
            )
        )
        layout = "NCHW" if self._first else "NHWC"
        outputs = nn.depthwise_conv2d(
            inputs,
            depthwise,
            (*lead, *self.strides),
            self.padding.upper(),
            layout,
            (*lead, *self.dilation_rate),
        )
        mix = lambda x, w: nn.convolution(x, w, 1, "VALID", layout)
        outputs = product(self, mix, outputs, pointwise)
        return self._finish(array.squeeze(outputs, axis) if flat else outputs)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = super().get_config()
        for key in ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint"):
            config.pop(key)
        return {
            **config,
            "depth_multiplier": self.depth_multiplier,
            **weight_config(self, "depthwise", "pointwise"),
        }


class SeparableConv1D(SeparableConv):
    """Separable convolution over one dimension.

    Input shape:
      (batch, steps, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.SeparableConv1D(4, 3)(tf.ones([1, 8, 5])).shape
      TensorShape([1, 6, 4])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            depth_multiplier,
            **kwargs,
        )


class SeparableConv2D(SeparableConv):
    """Separable convolution over two dimensions.

    Input shape:
      (batch, height, width, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.SeparableConv2D(4, 3)
      >>> layer(tf.ones([1, 8, 8, 5])).shape
      TensorShape([1, 6, 6, 4])
      >>> layer.depthwise_kernel.shape, layer.pointwise_kernel.shape
      (TensorShape([3, 3, 5, 1]), TensorShape([1, 1, 5, 4]))
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = (1, 1),
        depth_multiplier: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            2,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            depth_multiplier,
            **kwargs,
        )


SeparableConvolution1D = SeparableConv1D
SeparableConvolution2D = SeparableConv2D
