"""Convolutions whose window has other weights at every place."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras.layers.convolutional import Conv
from meshflow.ops import array
from meshflow.ops.linalg import einsum

__all__ = ["LocallyConnected1D", "LocallyConnected2D"]


class _LocallyConnected(Conv):
    """What both layers have in common: windows gathered as rows, one product for each place."""

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
        if implementation != 1:
            raise NotImplementedError(
                f"{type(self).__name__}(implementation={implementation}) stores its kernel in another form; only "
                "implementation=1 is available, which computes the same."
            )
        super().__init__(rank, filters, kernel_size, strides, padding, data_format, **kwargs)
        self.implementation = implementation

    def build(self, input_shape: Any) -> None:
        """Creates the kernel [places, window * channels, filters] and the bias [*places, filters]."""
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
        window = 1
        count = 1
        for size, place in zip(self.kernel_size, places, strict=True):
            window, count = window * size, count * place
        self.kernel = self._add_kernel((count, window * channels, self.filters))
        if self.use_bias:
            self.bias = self._add_kernel((*places, self.filters), "bias")
        self._places = places
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        if self._first:
            inputs = array.transpose(inputs, [0, *range(2, self.rank + 2), 1])
        windows = self._windows(inputs)
        outputs = einsum("bpw,pwf->bpf", windows, self.kernel)
        outputs = array.reshape(outputs, [inputs.shape[0], *self._places, self.filters])
        if self.bias is not None:
            outputs = outputs + self.bias
        if self._first:
            outputs = array.transpose(outputs, [0, self.rank + 1, *range(1, self.rank + 1)])
        return outputs if self.activation is None else self.activation(outputs)

    def _windows(self, inputs: Any) -> Any:
        """[batch, places, window * channels]: the elements of a window by place in it, then channel."""
        parts = [inputs]
        for axis, (size, stride, places) in enumerate(
            zip(self.kernel_size, self.strides, self._places, strict=True), 1
        ):
            last = (places - 1) * stride + 1
            before = [slice(None)] * axis
            parts = [p[(*before, slice(i, i + last, stride))] for p in parts for i in range(size)]
        stacked = array.stack(parts, axis=-2)
        batch, places = inputs.shape[0], self.kernel.shape[0]
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
      padding: 'valid'.
      data_format: 'channels_last' or 'channels_first'.
      activation: activation function.
      use_bias: whether a bias is added.
      kernel_initializer: initializer of the kernel, shape (places, window * in, filters).
      bias_initializer: initializer of the bias, shape (*places, filters).
      kernel_regularizer: penalty on the kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: projection of the kernel.
      bias_constraint: projection of the bias.
      implementation: 1; the others store the same kernel in other forms.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, steps, channels), with known sizes. With 'channels_first' the channels come second.

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Raises:
      ValueError: for another padding, or inputs of unknown size.
      NotImplementedError: for another implementation.

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
