"""Convolution layers of one to three dimensions."""

from __future__ import annotations

from typing import Any

from meshflow.core.shapes import TensorShape
from meshflow.keras import activations, backend, constraints, initializers, regularizers
from meshflow.keras.engine.base_layer import Layer
from meshflow.keras.engine.input_spec import InputSpec
from meshflow.keras.layers.core import weight_config
from meshflow.ops import array, nn

__all__ = [
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Convolution1D",
    "Convolution2D",
    "Convolution2DTranspose",
    "Convolution3D",
    "Convolution3DTranspose",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution2D",
]


def sizes(value: Any, rank: int, name: str) -> tuple[int, ...]:
    """One positive number per dimension.

    Raises:
      ValueError: naming the argument.
    """
    result = (value,) * rank if isinstance(value, int) else tuple(int(v) for v in value)
    if len(result) != rank or any(v <= 0 for v in result):
        raise ValueError(
            f"The `{name}` argument must be a tuple of {rank} positive integers. Received: {value}"
        )
    return result


def output_size(
    size: int | None, window: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """Size after a window has passed along a dimension."""
    if size is None:
        return None
    effective = (window - 1) * dilation + 1
    if padding in ("same", "causal"):
        return -(-size // stride)
    return (size - effective) // stride + 1


class Conv(Layer):
    """Convolution over `rank` dimensions.

    Args:
      rank: number of spatial dimensions.
      filters: number of output channels.
      kernel_size: size of the window.
      strides: step of the window.
      padding: 'valid', 'same', or (1-D) 'causal'.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: spacing of the window's elements.
      groups: number of groups of channels.
      activation: activation function.
      use_bias: whether a bias is added.
      kernel_initializer: initializer of the kernel, shape (*kernel_size, in / groups, filters).
      bias_initializer: initializer of the bias.
      kernel_regularizer: penalty on the kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: projection of the kernel.
      bias_constraint: projection of the bias.
      **kwargs: arguments of `Layer`.
    """

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.rank = rank
        if filters is not None and (not isinstance(filters, int) or filters <= 0):
            raise ValueError(
                f"Invalid value for argument `filters`. Expected a strictly positive value. Received filters={filters}."
            )
        if filters is not None and filters % groups:
            raise ValueError(
                f"The number of filters must be evenly divisible by the number of groups. Received: groups={groups}, filters={filters}."
            )
        self.filters, self.groups = filters, groups
        self.kernel_size = sizes(kernel_size, rank, "kernel_size")
        self.strides = sizes(strides, rank, "strides")
        self.dilation_rate = sizes(dilation_rate, rank, "dilation_rate")
        self.padding = padding.lower()
        if self.padding not in ("valid", "same") and not (rank == 1 and self.padding == "causal"):
            raise ValueError(
                f"The `padding` argument must be one of 'valid', 'same' (or 'causal', only for `Conv1D`). Received: {padding}"
            )
        self.data_format = backend.standard_data_format(data_format)
        if any(s > 1 for s in self.strides) and any(d > 1 for d in self.dilation_rate):
            raise ValueError(
                f"`strides > 1` not supported in conjunction with `dilation_rate > 1`. Received: strides={self.strides} and dilation_rate={self.dilation_rate}"
            )
        self.activation, self.use_bias = activations.get(activation), use_bias
        self.kernel_initializer, self.bias_initializer = (
            initializers.get(kernel_initializer),
            initializers.get(bias_initializer),
        )
        self.kernel_regularizer, self.bias_regularizer = (
            regularizers.get(kernel_regularizer),
            regularizers.get(bias_regularizer),
        )
        self.kernel_constraint, self.bias_constraint = (
            constraints.get(kernel_constraint),
            constraints.get(bias_constraint),
        )
        self.input_spec = InputSpec(min_ndim=rank + 2)
        self.bias: Any = None

    @property
    def _first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._first else f"N{spatial}C"

    def _channels(self, input_shape: Any) -> int:
        channels = TensorShape(input_shape)[1 if self._first else -1]
        if channels is None:
            raise ValueError(
                f"The channel dimension of the inputs should be defined. The input_shape received is {input_shape} (layer {self.name})."
            )
        self.input_spec = InputSpec(
            min_ndim=self.rank + 2, axes={1 if self._first else -1: channels}
        )
        return channels

    def _add_kernel(self, shape: Any, name: str = "kernel") -> Any:
        return self.add_weight(
            name,
            shape,
            initializer=getattr(self, f"{name}_initializer"),
            regularizer=getattr(self, f"{name}_regularizer"),
            constraint=getattr(self, f"{name}_constraint"),
        )

    def build(self, input_shape: Any) -> None:
        """Creates kernel and bias."""
        channels = self._channels(input_shape)
        if channels % self.groups:
            raise ValueError(
                f"The number of input channels must be evenly divisible by the number of groups. Received groups={self.groups}, but the input has {channels} channels (full input shape is {input_shape})."
            )
        self.kernel = self._add_kernel((*self.kernel_size, channels // self.groups, self.filters))
        if self.use_bias:
            self.bias = self._add_kernel((self.filters,), "bias")
        self.built = True

    def call(self, inputs: Any) -> Any:  # type: ignore[override]
        """The layer's output."""
        padding = self.padding
        if padding == "causal":
            left = self.dilation_rate[0] * (self.kernel_size[0] - 1)
            pairs = [[0, 0], [0, 0], [left, 0]] if self._first else [[0, 0], [left, 0], [0, 0]]
            inputs, padding = array.pad(inputs, pairs), "valid"
        outputs = nn.convolution(
            inputs,
            self.kernel.value(),
            self.strides,
            padding.upper(),
            self._format,
            self.dilation_rate,
        )
        return self._finish(outputs)

    def _finish(self, outputs: Any) -> Any:
        if self.bias is not None:
            outputs = nn.bias_add(outputs, self.bias, self._format)
        return self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        shape = TensorShape(input_shape).as_list()
        spatial = shape[2:] if self._first else shape[1:-1]
        new = [
            output_size(*v)
            for v in zip(
                spatial,
                self.kernel_size,
                [self.padding] * self.rank,
                self.strides,
                self.dilation_rate,
                strict=True,
            )
        ]
        if any(s is not None and s <= 0 for s in new):
            raise ValueError(
                f"One of the dimensions in the output is <= 0 due to downsampling in {self.name}. Consider increasing the input size. Received input shape {shape} which would produce output shape with a zero or negative value in a dimension."
            )
        return TensorShape(
            [shape[0], self.filters, *new] if self._first else [shape[0], *new, self.filters]
        )

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
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
            **weight_config(self, "kernel", "bias"),
            "activity_regularizer": regularizers.serialize(
                regularizers.get(self.activity_regularizer)
            ),
        }


class Conv1D(Conv):
    """Convolution over one dimension; arguments as `Conv`, without `rank`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = "channels_last",
        dilation_rate: Any = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
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
            groups,
            activation,
            use_bias,
            **kwargs,
        )


class Conv2D(Conv):
    """Convolution over two dimensions; arguments as `Conv`, without `rank`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Conv2D(8, 3, padding="same")(tf.ones([1, 4, 4, 3])).shape
      TensorShape([1, 4, 4, 8])
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = (1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
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
            groups,
            activation,
            use_bias,
            **kwargs,
        )


class Conv3D(Conv):
    """Convolution over three dimensions; arguments as `Conv`, without `rank`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = (1, 1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            3,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            groups,
            activation,
            use_bias,
            **kwargs,
        )


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
        self.built = True

    def _spatial(self, shape: list[Any]) -> list[Any]:
        new = []
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

    def call(self, inputs: Any) -> Any:  # type: ignore[override]
        """The layer's output."""
        shape = inputs.shape.as_list()
        spatial = self._spatial(shape)
        full = (
            [shape[0], self.filters, *spatial]
            if self._first
            else [shape[0], *spatial, self.filters]
        )
        return self._finish(
            nn.conv_transpose(
                inputs,
                self.kernel.value(),
                full,
                self.strides,
                self.padding.upper(),
                self._format,
                self.dilation_rate,
            )
        )

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
        config.pop("groups")
        return config


class Conv1DTranspose(ConvTranspose):
    """Transposed convolution over one dimension."""

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
    """Transposed convolution over two dimensions."""

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
    """Transposed convolution over three dimensions."""

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
    """

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
            2,
            None,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            1,
            activation,
            use_bias,
            bias_initializer=bias_initializer,
            **kwargs,
        )  # type: ignore[arg-type]
        self.depth_multiplier = depth_multiplier
        self.depthwise_initializer = initializers.get(depthwise_initializer)
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer)
        self.depthwise_constraint = constraints.get(depthwise_constraint)

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

    def call(self, inputs: Any) -> Any:  # type: ignore[override]
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
            1,
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

    def call(self, inputs: Any) -> Any:  # type: ignore[override]
        """The layer's output."""
        depthwise, pointwise = self.depthwise_kernel.value(), self.pointwise_kernel.value()
        if self.rank == 2:
            outputs = nn.separable_conv2d(
                inputs,
                depthwise,
                pointwise,
                self.strides,
                self.padding.upper(),
                self._format,
                self.dilation_rate,
            )
            return self._finish(outputs)
        # One dimension is two with a height of 1.
        axis = 2 if self._first else 1
        outputs = nn.separable_conv2d(
            array.expand_dims(inputs, axis),
            array.expand_dims(depthwise, 0),
            array.expand_dims(pointwise, 0),
            (1, *self.strides),
            self.padding.upper(),
            "NCHW" if self._first else "NHWC",
            (1, *self.dilation_rate),
        )
        return self._finish(array.squeeze(outputs, axis))

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
    """Separable convolution over one dimension."""

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
    """Separable convolution over two dimensions."""

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


Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
Convolution2DTranspose, Convolution3DTranspose, SeparableConvolution2D = (
    Conv2DTranspose,
    Conv3DTranspose,
    SeparableConv2D,
)
