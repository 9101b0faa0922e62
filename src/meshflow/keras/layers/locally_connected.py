"""Locally connected layers: convolutions with separate weights at each output position.

Implementation 1 gathers the windows as rows and computes one matrix product per output position.
Implementations 2 and 3 multiply by one matrix from all inputs to all outputs, which is zero where
an output does not depend on an input: the kernel is that matrix (2), or a list of its nonzero
elements, output by output (3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.layers.convolutional import Conv
from meshflow.keras.layers.keyword_arguments import KernelArguments, get_arguments
from meshflow.keras.layers.weight_options import add_weight
from meshflow.keras.literals import DataFormat, Padding
from meshflow.ops import array
from meshflow.ops.linalg import einsum, matmul

__all__ = ["LocallyConnected1D", "LocallyConnected2D"]


class LocallyConnected1D(Conv):
    """Convolution over one dimension with separate weights at each output position.

    Args:
      filters: Number of output channels.
      kernel_size: Size of the window.
      strides: Stride of the window.
      padding: 'valid', or 'same' with implementations 2 and 3.
      data_format: 'channels_last' or 'channels_first'.
      activation: Activation function, or its name.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel, with implementation 1 of shape (positions,
        window * in, filters).
      bias_initializer: Initializer of the bias, shape (*output sizes, filters).
      kernel_regularizer: Regularizer of the kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint on the kernel.
      bias_constraint: Constraint on the bias.
      implementation: 1 computes one matrix product per position. 2 multiplies by one matrix, the
        kernel, of shape (steps, channels, new_steps, filters), for few inputs and large windows. 3
        stores only the nonzero elements of that matrix. All compute the same function.
      **kwargs: Arguments of `Layer`, and the layouts `kernel_layout` and `bias_layout`.

    Input shape:
      (batch, steps, channels), with known sizes. With 'channels_first', (batch, channels, steps).

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Raises:
      ValueError: If the padding or implementation is not supported, or a size of the inputs is
        unknown.

    Example:
      >>> layer = tf.keras.layers.LocallyConnected1D(4, 3)
      >>> layer(tf.ones([1, 10, 2])).shape
      TensorShape([1, 8, 4])
      >>> layer.kernel.shape
      TensorShape([8, 6, 4])
    """

    _rank = 1

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        data_format: DataFormat | None = None,
        activation: Identifier = None,
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        kernel_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        implementation: int = 1,
        **kwargs: Unpack[KernelArguments],
    ) -> None:
        if padding.lower() != "valid" and implementation == 1:
            raise ValueError(
                f'Invalid border mode for {type(self).__name__} (only "valid" is supported if implementation is 1): '
                f"{padding}"
            )
        if implementation not in (1, 2, 3):
            raise ValueError(f"Unrecognized implementation mode: {implementation}.")
        super().__init__(self._rank, **get_arguments(locals(), "implementation"))
        self.implementation = implementation

    def build(self, input_shape: ShapeLike) -> None:
        """Create the kernel and the bias [*output sizes, filters]."""
        sizes = TensorShape(input_shape).as_list()
        spatial = sizes[2:] if self._is_channels_first else sizes[1:-1]
        if None in spatial:
            raise ValueError(
                f"The spatial dimensions of the inputs to a {type(self).__name__} layer should be fully-defined, but "
                f"layer received the inputs shape {tuple(sizes)}"
            )
        channels = self._require_channels(input_shape)
        result = self.compute_output_shape(input_shape).as_list()
        output_sizes = result[2:] if self._is_channels_first else result[1:-1]
        if self.implementation == 1:
            window, count = math.prod(self.kernel_size), math.prod(output_sizes)
            shape: tuple[int, ...] = (count, window * channels, self.filters)
        else:
            self._connection_mask = self._compute_connections(spatial, output_sizes, channels)
            shape = (
                (int(self._connection_mask.sum()),)
                if self.implementation == 3
                else self._connection_mask.shape
            )
        self.kernel = add_weight(self, "kernel", shape)
        if self.use_bias:
            self.bias = add_weight(self, "bias", (*output_sizes, self.filters))
        self._output_sizes = output_sizes
        self.built = True

    def call(self, inputs: TensorLike) -> Tensor:
        """Compute the output."""
        outputs = (
            self._apply_windows(inputs) if self.implementation == 1 else self._apply_matrix(inputs)
        )
        if self._is_channels_first:
            outputs = array.transpose(outputs, [0, self.rank + 1, *range(1, self.rank + 1)])
        if self.bias is not None:
            # As in Keras, the bias has the channels in the last axis even with 'channels_first'.
            outputs = outputs + array.reshape(self.bias, outputs.shape[1:])
        return outputs if self.activation is None else self.activation(outputs)

    def _to_channels_last(self, values: Tensor) -> Tensor:
        return (
            array.transpose(values, [0, *range(2, self.rank + 2), 1])
            if self._is_channels_first
            else values
        )

    def _apply_windows(self, inputs: Tensor) -> Tensor:
        """Compute the outputs without bias, channels last, by implementation 1."""
        windows = self._gather_windows(self._to_channels_last(inputs))
        outputs = einsum("bpw,pwf->bpf", windows, self.kernel)
        return array.reshape(outputs, [inputs.shape[0], *self._output_sizes, self.filters])

    def _apply_matrix(self, inputs: Tensor) -> Tensor:
        """Compute the outputs without bias, channels last, by implementation 2 or 3."""
        batch, input_size = inputs.shape[0], math.prod(inputs.shape[1:])
        sizes = (input_size, self._connection_mask.size // input_size)
        if self.implementation == 2:
            matrix = array.reshape(
                self.kernel * self._connection_mask.astype(self.kernel.dtype.name), sizes
            )
        else:
            # The elements of the kernel are ordered by output.
            positions = np.argwhere(self._connection_mask.reshape(sizes).T)
            matrix = array.transpose(
                array.scatter_nd(positions, convert_to_tensor(self.kernel), sizes[::-1])
            )
        outputs = matmul(array.reshape(inputs, (batch, input_size)), matrix)
        shape = (
            (self.filters, *self._output_sizes)
            if self._is_channels_first
            else (*self._output_sizes, self.filters)
        )
        return self._to_channels_last(array.reshape(outputs, (batch, *shape)))

    def _compute_connections(
        self, spatial: Sequence[int], output_sizes: Sequence[int], channels: int
    ) -> np.ndarray:
        """Compute which outputs depend on which inputs: bool [*input sizes, *output sizes]."""
        connections = np.ones((), bool)
        for size, count, window, stride in zip(
            spatial, output_sizes, self.kernel_size, self.strides, strict=True
        ):
            start = np.arange(count) * stride - (window // 2 if self.padding == "same" else 0)
            offset = np.arange(size)[:, None] - start
            connections = np.multiply.outer(connections, (offset >= 0) & (offset < window))
        # Transpose from (input, output) pairs per dimension to all input sizes, followed by all
        # output sizes.
        connections = connections.transpose(
            [*range(0, 2 * self.rank, 2), *range(1, 2 * self.rank, 2)]
        )
        before, after = (
            (0, self.rank + 1) if self._is_channels_first else (self.rank, 2 * self.rank + 1)
        )
        connections = np.expand_dims(connections, (before, after))
        return np.repeat(np.repeat(connections, channels, before), self.filters, after)

    def _gather_windows(self, inputs: Tensor) -> Tensor:
        """Gather windows [batch, positions, window * channels], in the order of the input axes."""
        parts = [inputs]
        for axis, (size, stride, count) in enumerate(
            zip(self.kernel_size, self.strides, self._output_sizes, strict=True), 1
        ):
            last = (count - 1) * stride + 1
            before = [slice(None)] * axis
            parts = [p[(*before, slice(i, i + last, stride))] for p in parts for i in range(size)]
        stacked = array.stack(parts, axis=-2)
        batch, count = inputs.shape[0], self.kernel.shape[0]
        if self._is_channels_first:
            stacked = array.transpose(
                stacked, [*range(self.rank + 1), self.rank + 2, self.rank + 1]
            )
        return array.reshape(stacked, [batch, count, self.kernel.shape[1]])

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        for name in ("groups", "dilation_rate"):
            config.pop(name)
        return {**config, "implementation": self.implementation}


class LocallyConnected2D(LocallyConnected1D):
    """Convolution over two dimensions with separate weights at each position; see `LocallyConnected1D`.

    Input shape:
      (batch, height, width, channels), with known sizes. With 'channels_first', (batch, channels,
      height, width).

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.LocallyConnected2D(4, 3)(tf.ones([1, 6, 6, 2])).shape
      TensorShape([1, 4, 4, 4])
    """

    _rank = 2
