"""Transposed convolutions: what a convolution does, the other way round."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras.engine.layer.float8_products import product
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.convolutional import Conv
from meshflow.ops import nn

__all__ = [
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "Convolution1DTranspose",
    "Convolution2DTranspose",
    "Convolution3DTranspose",
]


class ConvTranspose(Conv):
    """Transposed convolution: goes from the output's shape of a convolution to its input's.

    Args:
      rank: number of spatial dimensions.
      filters: number of output channels.
      kernel_size: size of the window.
      strides: step of the convolution.
      padding: 'valid' or 'same'.
      output_padding: added to the output's size; chosen so that it is unambiguous when None.
      **kwargs: arguments of `Conv`.
    """

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        output_padding: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rank, filters, kernel_size, strides, padding, **kwargs)
        self.output_padding = (
            None
            if output_padding is None
            else (
                (output_padding,) * rank
                if isinstance(output_padding, int)
                else tuple(output_padding)
            )
        )
        for pad, stride in zip(self.output_padding or (), self.strides, strict=False):
            if pad >= stride:
                raise ValueError(
                    f"Strides must be greater than output padding. Received strides={self.strides}, output_padding={self.output_padding}."
                )

    def build(self, input_shape: Any) -> None:
        """Creates kernel and bias."""
        self.kernel = self._add_kernel(
            (*self.kernel_size, self.filters, self._channels(input_shape))
        )
        if self.use_bias:
            self.bias = self._add_kernel((self.filters,), "bias")
        self.input_spec = InputSpec(ndim=self.rank + 2, axes=self.input_spec.axes)
        self.built = True

    def _spatial(self, shape: list[Any]) -> list[Any]:
        new: list[int | None] = []
        for i, size in enumerate(shape[2:] if self._first else shape[1:-1]):
            window = (self.kernel_size[i] - 1) * self.dilation_rate[i] + 1
            stride = self.strides[i]
            if size is None:
                new.append(None)
            elif self.output_padding is None:
                new.append(
                    size * stride + max(window - stride, 0)
                    if self.padding == "valid"
                    else size * stride
                )
            else:
                pad = window // 2 if self.padding == "same" else 0
                new.append((size - 1) * stride + window - 2 * pad + self.output_padding[i])
        return new

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        shape = inputs.shape.as_list()
        spatial = self._spatial(shape)
        full = (
            [shape[0], self.filters, *spatial]
            if self._first
            else [shape[0], *spatial, self.filters]
        )
        static = (full, self.strides, self.padding.upper(), self._format, self.dilation_rate)
        outputs = product(
            self, lambda x, w: nn.conv_transpose(x, w, *static), inputs, self.kernel.value()
        )
        return self._finish(outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        shape = TensorShape(input_shape).as_list()
        spatial = self._spatial(shape)
        return TensorShape(
            [shape[0], self.filters, *spatial]
            if self._first
            else [shape[0], *spatial, self.filters]
        )

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = {**super().get_config(), "output_padding": self.output_padding}
        if self.rank == 3:
            config.pop("dilation_rate")
        return config


class Conv1DTranspose(ConvTranspose):
    """Transposed convolution over one dimension.

    Input shape:
      (batch, steps, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Conv1DTranspose(4, 3, strides=2)(tf.ones([1, 5, 2])).shape
      TensorShape([1, 11, 4])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        output_padding: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(1, filters, kernel_size, strides, padding, output_padding, **kwargs)


class Conv2DTranspose(ConvTranspose):
    """Transposed convolution over two dimensions.

    Input shape:
      (batch, height, width, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same")(tf.ones([1, 5, 5, 2])).shape
      TensorShape([1, 10, 10, 4])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        output_padding: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(2, filters, kernel_size, strides, padding, output_padding, **kwargs)


class Conv3DTranspose(ConvTranspose):
    """Transposed convolution over three dimensions.

    Input shape:
      (batch, depth, height, width, channels). With 'channels_first' the channels come second.

    Output shape:
      (batch, new_depth, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Conv3DTranspose(4, 2, strides=2)(tf.ones([1, 2, 3, 4, 1])).shape
      TensorShape([1, 4, 6, 8, 4])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: str = "valid",
        output_padding: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(3, filters, kernel_size, strides, padding, output_padding, **kwargs)


Convolution1DTranspose = Conv1DTranspose
Convolution2DTranspose, Convolution3DTranspose = Conv2DTranspose, Conv3DTranspose
