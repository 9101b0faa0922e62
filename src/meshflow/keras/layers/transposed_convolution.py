"""Transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.convolutional import Conv
from meshflow.keras.layers.keyword_arguments import (
    TRANSPOSE_ORDER,
    ConvTransposeArguments,
    accept_positional,
)
from meshflow.keras.layers.weight_options import add_weight
from meshflow.keras.literals import Padding
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
    """Transposed convolution, from the output shape of a convolution to its input shape.

    Args:
      rank: Number of spatial dimensions.
      filters: Number of output channels.
      kernel_size: Size of the window.
      strides: Stride of the convolution.
      padding: 'valid' or 'same'.
      output_padding: Added to the size of the output. None chooses the smallest size that covers
        all windows.
      **kwargs: Arguments of `Conv`, and the layouts `kernel_layout` and `bias_layout`.
    """

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        output_padding: int | Sequence[int] | None = None,
        **kwargs: Unpack[ConvTransposeArguments],
    ) -> None:
        super().__init__(rank, filters, kernel_size, strides, padding, **kwargs)
        sizes = to_static_value(output_padding, "output_padding")
        self.output_padding = (sizes,) * rank if isinstance(sizes, int) else sizes
        for pad, stride in zip(self.output_padding or (), self.strides, strict=False):
            if pad >= stride:
                raise ValueError(
                    f"Strides must be greater than output padding. Received strides={self.strides}, output_padding={self.output_padding}."
                )

    def build(self, input_shape: ShapeLike) -> None:
        """Create the kernel and the bias."""
        shape = (*self.kernel_size, self.filters, self._require_channels(input_shape))
        self.kernel = add_weight(self, "kernel", shape)
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.filters,))
        self.input_spec = InputSpec(ndim=self.rank + 2, axes=self.input_spec.axes)
        self.built = True

    def _compute_shape(self, input_shape: ShapeLike) -> list[int | None]:
        shape = TensorShape(input_shape).as_list()
        spatial: list[int | None] = []
        for i, size in enumerate(shape[2:] if self._is_channels_first else shape[1:-1]):
            window = (self.kernel_size[i] - 1) * self.dilation_rate[i] + 1
            stride = self.strides[i]
            if size is None:
                spatial.append(None)
            elif self.output_padding is None:
                excess = max(window - stride, 0) if self.padding == "valid" else 0
                spatial.append(size * stride + excess)
            else:
                pad = window // 2 if self.padding == "same" else 0
                spatial.append((size - 1) * stride + window - 2 * pad + self.output_padding[i])
        if self._is_channels_first:
            return [shape[0], self.filters, *spatial]
        return [shape[0], *spatial, self.filters]

    def call(self, inputs: TensorLike) -> Tensor:
        """Compute the output."""
        shape = self._compute_shape(inputs.shape)
        static = (
            shape,
            self.strides,
            self.padding.upper(),
            self._nn_data_format,
            self.dilation_rate,
        )
        outputs = compute_product(
            self,
            lambda x, w: nn.conv_transpose(x, w, *static),
            inputs,
            convert_to_tensor(self.kernel),
        )
        return self._add_bias_and_activate(outputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        return TensorShape(self._compute_shape(input_shape))

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {**super().get_config(), "output_padding": self.output_padding}
        if self.rank == 3:
            config.pop("dilation_rate")
        return config


class Conv1DTranspose(ConvTranspose):
    """Transposed convolution over one dimension; arguments as in `ConvTranspose`, without `rank`.

    Input shape:
      (batch, steps, channels). With 'channels_first', (batch, channels, steps).

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.Conv1DTranspose(4, 3, strides=2)(tf.ones([1, 5, 2])).shape
      TensorShape([1, 11, 4])
    """

    @accept_positional(TRANSPOSE_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        output_padding: int | Sequence[int] | None = None,
        **kwargs: Unpack[ConvTransposeArguments],
    ) -> None:
        super().__init__(1, filters, kernel_size, strides, padding, output_padding, **kwargs)


class Conv2DTranspose(ConvTranspose):
    """Transposed convolution over two dimensions; arguments as in `ConvTranspose`, without `rank`.

    Input shape:
      (batch, height, width, channels). With 'channels_first', (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same")(tf.ones([1, 5, 5, 2])).shape
      TensorShape([1, 10, 10, 4])
    """

    @accept_positional(TRANSPOSE_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: Padding = "valid",
        output_padding: int | Sequence[int] | None = None,
        **kwargs: Unpack[ConvTransposeArguments],
    ) -> None:
        super().__init__(2, filters, kernel_size, strides, padding, output_padding, **kwargs)


class Conv3DTranspose(ConvTranspose):
    """Transposed convolution over three dimensions; arguments as in `ConvTranspose`, without `rank`.

    Input shape:
      (batch, depth, height, width, channels). With 'channels_first', (batch, channels, depth,
      height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.Conv3DTranspose(4, 2, strides=2)(tf.ones([1, 2, 3, 4, 1])).shape
      TensorShape([1, 4, 6, 8, 4])
    """

    @accept_positional(TRANSPOSE_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1, 1),
        padding: Padding = "valid",
        output_padding: int | Sequence[int] | None = None,
        **kwargs: Unpack[ConvTransposeArguments],
    ) -> None:
        super().__init__(3, filters, kernel_size, strides, padding, output_padding, **kwargs)


Convolution1DTranspose = Conv1DTranspose
Convolution2DTranspose = Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
