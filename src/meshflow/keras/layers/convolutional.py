"""Convolution layers with one to three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, Unpack

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import activations, settings
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.keyword_arguments import (
    CONVOLUTION_ORDER,
    ConvolutionArguments,
    KernelArguments,
    accept_positional,
    get_arguments,
)
from meshflow.keras.layers.weight_options import (
    KernelLayer,
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.keras.literals import CausalPadding, DataFormat, Padding
from meshflow.ops import array, nn

__all__ = [
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
]


def parse_sizes(value: int | Sequence[int], rank: int, name: str) -> tuple[int, ...]:
    """Return one positive size per axis.

    Raises:
      InvalidArgumentError: For other values; the error is a `ValueError`, too.
    """
    sizes = to_static_value(value, name)
    sizes = (sizes,) * rank if isinstance(sizes, int) else sizes
    result = tuple(map(int, sizes)) if isinstance(sizes, tuple) else ()
    if len(result) != rank or any(v <= 0 for v in result):
        raise InvalidValueError(
            f"The `{name}` argument must be a tuple of {rank} positive integers. Received: {value}"
        )
    return result


def parse_count(value: float | SupportsIndex, name: str) -> int:
    """Return a number of filters or groups as a Python integer; floats are rounded down, as in Keras.

    Raises:
      ValueError: If it is not a positive number.
    """
    count = int(value) if isinstance(value, (float, SupportsIndex)) else 0
    if count <= 0:
        raise ValueError(
            f"Invalid value for argument `{name}`. Expected a strictly positive value. Received {name}={value}."
        )
    return count


def compute_output_size(
    size: int | None, window: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """Compute the output size of a window operation along one axis."""
    if size is None:
        return None
    dilated_window = (window - 1) * dilation + 1
    if padding in ("same", "causal"):
        return -(-size // stride)
    return (size - dilated_window) // stride + 1


class Conv(KernelLayer):
    """Convolution over `rank` spatial axes.

    Args:
      rank: Number of spatial axes.
      filters: Number of output channels.
      kernel_size: Size of the window.
      strides: Stride of the window.
      padding: 'valid', 'same', or (for one axis) 'causal'.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: Dilation of the window.
      groups: Number of groups of channels.
      activation: Activation function.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel, shape (*kernel_size, in / groups, filters).
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint of the kernel.
      bias_constraint: Constraint of the bias.
      **kwargs: Arguments of `Layer`.
    """

    bias: Any = None

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: CausalPadding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        kernel_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        **kwargs: Unpack[KernelArguments],
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.rank = rank
        filters = None if filters is None else parse_count(filters, "filters")
        groups = parse_count(groups, "groups")
        if filters is not None and filters % groups:
            raise ValueError(
                f"The number of filters must be evenly divisible by the number of groups. Received: groups={groups}, filters={filters}."
            )
        self.filters, self.groups = filters, groups
        self.kernel_size = parse_sizes(kernel_size, rank, "kernel_size")
        self.strides = parse_sizes(strides, rank, "strides")
        self.dilation_rate = parse_sizes(dilation_rate, rank, "dilation_rate")
        self.padding = padding.lower()
        if self.padding not in ("valid", "same") and not (rank == 1 and self.padding == "causal"):
            raise ValueError(
                f"The `padding` argument must be one of 'valid', 'same' (or 'causal', only for `Conv1D`). Received: {padding}"
            )
        self.data_format = settings.normalize_data_format(data_format)
        if any(s > 1 for s in self.strides) and any(d > 1 for d in self.dilation_rate):
            raise ValueError(
                f"`strides > 1` not supported in conjunction with `dilation_rate > 1`. Received: strides={self.strides} and dilation_rate={self.dilation_rate}"
            )
        self.activation, self.use_bias = activations.get(activation), use_bias
        set_weight_options(self, locals(), "kernel", "bias")
        self.input_spec = InputSpec(min_ndim=rank + 2)

    @property
    def _is_channels_first(self) -> bool:
        return self.data_format == "channels_first"

    # Names that subclasses for TensorFlow use.
    _channels_first = _is_channels_first

    @property
    def _is_causal(self) -> bool:
        return self.padding == "causal"

    @property
    def _tf_data_format(self) -> str:
        return self._nn_data_format

    @property
    def _nn_data_format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._is_channels_first else f"N{spatial}C"

    def _require_channels(self, input_shape: ShapeLike) -> int:
        channels = TensorShape(input_shape)[1 if self._is_channels_first else -1]
        if channels is None:
            raise ValueError(
                f"The channel dimension of the inputs should be defined. The input_shape received is {input_shape} (layer {self.name})."
            )
        self.input_spec = InputSpec(
            min_ndim=self.rank + 2,
            axes={-1 - self.rank if self._is_channels_first else -1: channels},
        )
        return channels

    def build(self, input_shape: ShapeLike) -> None:
        """Create kernel and bias."""
        channels = self._require_channels(input_shape)
        if channels % self.groups:
            raise ValueError(
                f"The number of input channels must be evenly divisible by the number of groups. Received groups={self.groups}, but the input has {channels} channels (full input shape is {input_shape})."
            )
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        self.kernel = add_weight(self, "kernel", shape)
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.filters,))
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Compute the output."""
        if self._is_causal:
            inputs = array.pad(inputs, self._compute_causal_padding(inputs))
        return self._add_bias_and_activate(
            self.convolution_op(inputs, convert_to_tensor(self.kernel))
        )

    def convolution_op(self, inputs: Tensor, kernel: TensorLike) -> Tensor:
        """Convolve inputs with a kernel; subclasses override it, for example to normalize the kernel.

        Args:
          inputs: Inputs of the layer, padded if the padding is 'causal'.
          kernel: The kernel.

        Example:
          >>> class Doubled(tf.keras.layers.Conv1D):
          ...     def convolution_op(self, inputs, kernel):
          ...         return super().convolution_op(inputs, 2 * kernel)
          >>> Doubled(1, 1, kernel_initializer="ones")(tf.ones([1, 2, 1])).numpy().ravel()
          array([2., 2.], dtype=float32)
        """
        padding = "VALID" if self._is_causal else self.padding.upper()
        static = (self.strides, padding, self._nn_data_format, self.dilation_rate)
        return compute_product(self, lambda x, w: nn.convolution(x, w, *static), inputs, kernel)

    def _compute_causal_padding(self, inputs: Tensor) -> list[list[int]]:
        """Return the padding of the axis of time, so that outputs do not depend on later inputs."""
        left = self.dilation_rate[0] * (self.kernel_size[0] - 1)
        pairs = [[0, 0], [left, 0], [0, 0]]
        return [pairs[0], pairs[2], pairs[1]] if self._is_channels_first else pairs

    def _get_channel_axis(self) -> int:
        """Return the axis of the channels."""
        return -1 - self.rank if self._is_channels_first else -1

    def _get_input_channel(self, input_shape: ShapeLike) -> int:
        """Return the number of channels of inputs."""
        return self._require_channels(input_shape)

    def _add_bias_and_activate(self, outputs: Tensor) -> Tensor:
        if self.bias is not None:
            outputs = nn.bias_add(outputs, self.bias, self._nn_data_format)
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        shape = TensorShape(input_shape).as_list()
        spatial = shape[2:] if self._is_channels_first else shape[1:-1]
        options = zip(spatial, self.kernel_size, self.strides, self.dilation_rate, strict=True)
        output_sizes = [
            compute_output_size(n, window, self.padding, s, d) for n, window, s, d in options
        ]
        if any(s is not None and s <= 0 for s in output_sizes):
            raise ValueError(
                f"One of the dimensions in the output is <= 0 due to downsampling in {self.name}. Consider increasing the input size. Received input shape {shape} which would produce output shape with a zero or negative value in a dimension."
            )
        return TensorShape(
            [shape[0], self.filters, *output_sizes]
            if self._is_channels_first
            else [shape[0], *output_sizes, self.filters]
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "data_format": self.data_format,
            "dilation_rate": self.dilation_rate,
            "groups": self.groups,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **make_weight_config(self, "kernel", "bias", activity=True),
        }


class Conv1D(Conv):
    """Convolution over one axis; arguments of `Conv` without `rank`.

    Input shape:
      (batch, steps, channels); more dimensions may follow the batch. With 'channels_first' the
      channels are the second axis.

    Output shape:
      (batch, new_steps, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.Conv1D(4, 3, strides=2)(tf.ones([1, 9, 2])).shape
      TensorShape([1, 4, 4])
    """

    @accept_positional(CONVOLUTION_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: CausalPadding = "valid",
        data_format: DataFormat | None = "channels_last",
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(1, **get_arguments(locals()))


class Conv2D(Conv):
    """Convolution over two axes; arguments of `Conv` without `rank`.

    Input shape:
      (batch, height, width, channels); more dimensions may follow the batch. With 'channels_first'
      the channels are the second axis.

    Output shape:
      (batch, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.Conv2D(8, 3, padding="same")(tf.ones([1, 4, 4, 3])).shape
      TensorShape([1, 4, 4, 8])
    """

    @accept_positional(CONVOLUTION_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: Padding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = (1, 1),
        groups: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(2, **get_arguments(locals()))


class Conv3D(Conv):
    """Convolution over three axes; arguments of `Conv` without `rank`.

    Input shape:
      (batch, depth, height, width, channels); more dimensions may follow the batch. With
      'channels_first' the channels are the second axis.

    Output shape:
      (batch, new_depth, new_height, new_width, filters), with the same order of dimensions.

    Example:
      >>> tf.keras.layers.Conv3D(4, 3, padding="same")(tf.ones([1, 5, 6, 7, 2])).shape
      TensorShape([1, 5, 6, 7, 4])
    """

    @accept_positional(CONVOLUTION_ORDER)
    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1, 1),
        padding: Padding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = (1, 1, 1),
        groups: int = 1,
        activation: Identifier = None,
        use_bias: bool = True,
        **kwargs: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(3, **get_arguments(locals()))


Convolution1D = Conv1D
Convolution2D = Conv2D
Convolution3D = Conv3D
