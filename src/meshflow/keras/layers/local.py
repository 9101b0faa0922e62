"""Convolutions whose window has other weights at every place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshflow.core.values.shapes import TensorShape
from meshflow.keras.layers.convolutional import Conv
from meshflow.ops import array
from meshflow.ops.linalg import einsum, matmul

__all__ = ["LocallyConnected1D", "LocallyConnected2D"]


class _LocallyConnected(Conv):
    """What both layers have in common.

    By the first implementation windows are gathered as rows, one product for each place. By the others the layer is a
    product with a matrix of inputs and outputs, zero where an output does not see an input: the kernel is that matrix,
    or a list of what is in it, output by output.
    """

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any,
        padding: str,
        data_format: str | None,
        implementation: int,
        **kwargs: Any,
    ) -> None:
        if padding.lower() != "valid" and implementation == 1:
            raise ValueError(
                f'Invalid border mode for {type(self).__name__} (only "valid" is supported if implementation is 1): '
                f"{padding}"
            )
        if implementation not in (1, 2, 3):
            raise ValueError(f"Unrecognized implementation mode: {implementation}.")
        super().__init__(rank, filters, kernel_size, strides, padding, data_format, **kwargs)
        self.implementation = implementation

    def build(self, input_shape: Any) -> None:
        """Creates the kernel and the bias [*places, filters]."""
        known = TensorShape(input_shape).as_list()
        spatial = known[2:] if self._first else known[1:-1]
        if None in spatial:
            raise ValueError(
                f"The spatial dimensions of the inputs to a {type(self).__name__} layer should be fully-defined, but "
                f"layer received the inputs shape {tuple(known)}"
            )
        channels = self._channels(input_shape)
        result = self.compute_output_shape(input_shape).as_list()
        places = result[2:] if self._first else result[1:-1]
        if self.implementation == 1:
            window, count = math.prod(self.kernel_size), math.prod(places)
            shape: tuple[int, ...] = (count, window * channels, self.filters)
        else:
            self._seen = self._connections(spatial, places, channels)
            shape = (int(self._seen.sum()),) if self.implementation == 3 else self._seen.shape
        self.kernel = self._add_kernel(shape)
        if self.use_bias:
            self.bias = self._add_kernel((*places, self.filters), "bias")
        self._places = places
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        outputs = self._by_places(inputs) if self.implementation == 1 else self._by_matrix(inputs)
        if self._first:
            outputs = array.transpose(outputs, [0, self.rank + 1, *range(1, self.rank + 1)])
        if self.bias is not None:
            # In Keras, too, the bias is not transposed where the channels are first.
            outputs = outputs + array.reshape(self.bias, outputs.shape[1:])
        return outputs if self.activation is None else self.activation(outputs)

    def _channels_last(self, values: Any) -> Any:
        return array.transpose(values, [0, *range(2, self.rank + 2), 1]) if self._first else values

    def _by_places(self, inputs: Any) -> Any:
        """Results without bias, the channels last."""
        windows = self._windows(self._channels_last(inputs))
        outputs = einsum("bpw,pwf->bpf", windows, self.kernel)
        return array.reshape(outputs, [inputs.shape[0], *self._places, self.filters])

    def _by_matrix(self, inputs: Any) -> Any:
        """Results without bias, the channels last."""
        batch, each = inputs.shape[0], math.prod(inputs.shape[1:])
        sizes = (each, self._seen.size // each)
        if self.implementation == 2:
            matrix = array.reshape(self.kernel * self._seen.astype(self.kernel.dtype.name), sizes)
        else:
            # Its elements come output by output.
            places = np.argwhere(self._seen.reshape(sizes).T)
            matrix = array.transpose(array.scatter_nd(places, self.kernel.value(), sizes[::-1]))
        outputs = matmul(array.reshape(inputs, (batch, each)), matrix)
        shape = (self.filters, *self._places) if self._first else (*self._places, self.filters)
        return self._channels_last(array.reshape(outputs, (batch, *shape)))

    def _connections(self, spatial: Any, places: Any, channels: int) -> np.ndarray:
        """Which input an output sees: an array of the sizes of inputs, then of outputs."""
        seen = np.ones((), bool)
        for size, count, window, stride in zip(
            spatial, places, self.kernel_size, self.strides, strict=True
        ):
            start = np.arange(count) * stride - (window // 2 if self.padding == "same" else 0)
            offset = np.arange(size)[:, None] - start
            seen = np.multiply.outer(seen, (offset >= 0) & (offset < window))
        # From (in, out) of each dimension to all of the inputs', then all of the outputs'.
        seen = seen.transpose([*range(0, 2 * self.rank, 2), *range(1, 2 * self.rank, 2)])
        before, after = (0, self.rank + 1) if self._first else (self.rank, 2 * self.rank + 1)
        seen = np.expand_dims(seen, (before, after))
        return np.repeat(np.repeat(seen, channels, before), self.filters, after)

    def _windows(self, inputs: Any) -> Any:
        """[batch, places, window * channels]: the elements of a window in the order of the inputs' dimensions."""
        parts = [inputs]
        for axis, (size, stride, places) in enumerate(
            zip(self.kernel_size, self.strides, self._places, strict=True), 1
        ):
            last = (places - 1) * stride + 1
            before = [slice(None)] * axis
            parts = [p[(*before, slice(i, i + last, stride))] for p in parts for i in range(size)]
        stacked = array.stack(parts, axis=-2)
        batch, places = inputs.shape[0], self.kernel.shape[0]
        if self._first:
            stacked = array.transpose(
                stacked, [*range(self.rank + 1), self.rank + 2, self.rank + 1]
            )
        return array.reshape(stacked, [batch, places, self.kernel.shape[1]])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = super().get_config()
        for name in ("groups", "dilation_rate"):
            config.pop(name)
        return {**config, "implementation": self.implementation}


class LocallyConnected1D(_LocallyConnected):
    """A convolution over one dimension with weights of its own at every place.

    Args:
      filters: number of output channels.
      kernel_size: size of the window.
      strides: step of the window.
      padding: 'valid'; by implementation 2 or 3 also 'same'.
      data_format: 'channels_last' or 'channels_first'.
      activation: activation function.
      use_bias: whether a bias is added.
      kernel_initializer: initializer of the kernel, shape (places, window * in, filters) by implementation 1.
      bias_initializer: initializer of the bias, shape (*places, filters).
      kernel_regularizer: penalty on the kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: projection of the kernel.
      bias_constraint: projection of the bias.
      implementation: 1, or one that multiplies by a matrix: 2, whose kernel is the matrix, shape
        (steps, channels, new_steps, filters), for few inputs and large windows; 3, whose kernel is a list of what is
        in the matrix, output by output. What they compute is the same.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, steps, channels), with known sizes. With 'channels_first' the channels come second.

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Raises:
      ValueError: for another padding or implementation, or inputs of unknown size.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.LocallyConnected1D(4, 3)
      >>> layer(tf.ones([1, 10, 2])).shape
      TensorShape([1, 8, 4])
      >>> layer.kernel.shape
      TensorShape([8, 6, 4])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        implementation: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            self._rank,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            implementation,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            **kwargs,
        )

    _rank = 1


class LocallyConnected2D(LocallyConnected1D):
    """The same over two dimensions; arguments and errors as for `LocallyConnected1D`.

    Input shape:
      (batch, height, width, channels), with known sizes. With 'channels_first' the channels come second.

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.LocallyConnected2D(4, 3)(tf.ones([1, 6, 6, 2])).shape
      TensorShape([1, 4, 4, 4])
    """

    _rank = 2
