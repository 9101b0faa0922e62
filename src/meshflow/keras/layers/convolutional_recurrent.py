"""LSTMs whose products are convolutions (arXiv:1506.04214), over sequences of signals, images or volumes."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.convert import constant
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import activations, constraints, initializers, regularizers, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.keywords import for_cell
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.convolutional import output_size, sizes
from meshflow.keras.layers.core import weight_config
from meshflow.keras.layers.recurrent import RNN
from meshflow.keras.layers.recurrent_layers import config_with_cell, of_cell
from meshflow.ops import array, nn

__all__ = ["ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"]

_GATES = 4


class ConvLSTMCell(Layer):
    """One step: four gates, each a convolution of the inputs plus one of the state.

    Args:
      rank: number of spatial dimensions.
      filters: number of output channels.
      kernel_size: size of the window.
      strides: step of the window over the inputs.
      padding: 'valid' or 'same', for the inputs.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: spacing of the window's elements.
      activation: of the candidate and the output.
      recurrent_activation: of the gates.
      use_bias: whether there is a bias.
      unit_forget_bias: whether the forget gate's bias starts at 1.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      **kwargs: initializers, regularizers and constraints of kernel, recurrent kernel and bias; and
        arguments of `Layer`.
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = "tanh",
        recurrent_activation: Any = "hard_sigmoid",
        use_bias: bool = True,
        unit_forget_bias: bool = True,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        defaults = {
            "kernel_initializer": "glorot_uniform",
            "recurrent_initializer": "orthogonal",
            "bias_initializer": "zeros",
        }
        options: dict[str, Any] = {}
        for kind, module in (
            ("initializer", initializers),
            ("regularizer", regularizers),
            ("constraint", constraints),
        ):
            for weight in ("kernel", "recurrent", "bias"):
                name = f"{weight}_{kind}"
                given = kwargs.pop(name, defaults.get(name))
                options[name] = module.get(given)
        super().__init__(**kwargs)
        for name, value in options.items():
            setattr(self, name, value)
        self.rank, self.filters = rank, filters
        self.kernel_size = sizes(kernel_size, rank, "kernel_size")
        self.strides = sizes(strides, rank, "strides")
        self.dilation_rate = sizes(dilation_rate, rank, "dilation_rate")
        self.padding = padding.lower()
        self.data_format = settings.standard_data_format(data_format)
        self.activation = activations.get(activation)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.use_bias, self.unit_forget_bias = use_bias, unit_forget_bias
        self.dropout = min(1.0, max(0.0, float(dropout)))
        self.recurrent_dropout = min(1.0, max(0.0, float(recurrent_dropout)))
        self.bias: Any = None
        self.state_size: Any = [filters, filters]

    @property
    def _first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._first else f"N{spatial}C"

    def state_shape(self, input_shape: Any) -> list[int | None]:
        """Shape of a state without the batch dimension, for the shape of one step's inputs."""
        known = TensorShape(input_shape).as_list()
        spatial = known[2:] if self._first else known[1:-1]
        options = zip(spatial, self.kernel_size, self.strides, self.dilation_rate, strict=True)
        new = [output_size(n, window, self.padding, s, d) for n, window, s, d in options]
        return [self.filters, *new] if self._first else [*new, self.filters]

    def build(self, input_shape: Any) -> None:
        """Creates kernel, recurrent kernel and bias."""
        channels = TensorShape(input_shape)[1 if self._first else -1]
        if channels is None:
            raise ValueError(
                "The channel dimension of the inputs (last axis) should be defined. Found None. Full input shape "
                f"received: {input_shape}"
            )
        width = _GATES * self.filters
        self.kernel = self._add("kernel", (*self.kernel_size, channels, width), "kernel")
        self.recurrent_kernel = self._add(
            "recurrent_kernel", (*self.kernel_size, self.filters, width), "recurrent"
        )
        if self.use_bias:
            self.bias = self._add("bias", (width,), "bias")
        shape = self.state_shape(input_shape)
        self.state_size = [TensorShape(shape), TensorShape(shape)]
        self.built = True

    def _add(self, name: str, shape: Any, option: str) -> Any:
        initialize = getattr(self, f"{option}_initializer")
        if name == "bias" and self.unit_forget_bias:
            initialize = self._bias_values
        return self.add_weight(
            name,
            shape,
            initializer=initialize,
            regularizer=getattr(self, f"{option}_regularizer"),
            constraint=getattr(self, f"{option}_constraint"),
        )

    def _bias_values(self, shape: Any, dtype: Any = None) -> Any:
        others = np.asarray(self.bias_initializer((3 * self.filters,), dtype=dtype))  # type: ignore[attr-defined]
        first, rest = np.split(others, [self.filters])
        return constant(np.concatenate([first, np.ones(self.filters), rest]), dtype=dtype)

    def masks(self, example: Any, rate: float, training: Any) -> list[Any] | None:
        """A dropout mask of the example's shape for each gate; None without dropout."""
        if not training or not rate:
            return None
        return [nn.dropout(array.ones_like(example), rate) for _ in range(_GATES)]

    def _convolved(
        self, inputs: Any, kernel: Any, strides: Any, padding: str, dilation: Any, keep: Any
    ) -> Any:
        static = (strides, padding.upper(), self._format, dilation)
        kernel = kernel.value()
        if keep is None:
            return nn.convolution(inputs, kernel, *static)
        parts = array.split(kernel, _GATES, axis=-1)
        found = [nn.convolution(inputs * k, w, *static) for k, w in zip(keep, parts, strict=True)]
        return array.concat(found, axis=1 if self._first else -1)

    def project(self, inputs: Any, keep: Any) -> Any:
        """The inputs' share of the gates."""
        found = self._convolved(
            inputs, self.kernel, self.strides, self.padding, self.dilation_rate, keep
        )
        return found if self.bias is None else nn.bias_add(found, self.bias, self._format)

    def advance(self, projected: Any, states: Any, keep: Any) -> tuple[Any, list[Any]]:
        """The output and the next states."""
        hidden, carry = states
        ones = (1,) * self.rank
        own = self._convolved(hidden, self.recurrent_kernel, ones, "same", ones, keep)
        gates = array.split(projected + own, _GATES, axis=1 if self._first else -1)
        enter, forget = (self.recurrent_activation(g) for g in gates[:2])
        carry = forget * carry + enter * self.activation(gates[2])
        hidden = self.recurrent_activation(gates[3]) * self.activation(carry)
        return hidden, [hidden, carry]

    def call(self, inputs: Any, states: Any, training: Any = None) -> Any:
        """One step: the output and the next states.

        Args:
          inputs: a tensor [batch, ..., channels].
          states: two tensors.
          training: whether dropout is applied.
        """
        keep = self.masks(inputs, self.dropout, training)
        again = self.masks(states[0], self.recurrent_dropout, training)
        return self.advance(self.project(inputs, keep), states, again)

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
            "activation": activations.serialize(self.activation),
            "recurrent_activation": activations.serialize(self.recurrent_activation),
            "use_bias": self.use_bias,
            **weight_config(self, "kernel", "recurrent", "bias", flags=("unit_forget_bias",)),
            "dropout": self.dropout,
            "recurrent_dropout": self.recurrent_dropout,
        }


class _ConvLSTM(RNN):
    """A `ConvLSTMCell` run over sequences; arguments are the cell's and `RNN`'s."""

    _names_cell = False

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    rank = 2

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = "tanh",
        recurrent_activation: Any = "hard_sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        cell = ConvLSTMCell(
            self.rank,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            recurrent_activation,
            use_bias,
            unit_forget_bias,
            dropout,
            recurrent_dropout,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            **for_cell(type(self), kwargs),
        )
        super().__init__(
            cell,
            return_sequences,
            return_state,
            go_backwards,
            stateful,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.input_spec = [InputSpec(ndim=self.rank + 3)]

    def build(self, input_shape: Any) -> None:
        """Builds the cell; makes the states of a stateful layer."""
        super().build(input_shape)
        self.input_spec = [InputSpec(ndim=self.rank + 3)]

    def get_initial_state(self, inputs: Any) -> Any:
        """Zeros [batch, ..., filters] for both states."""
        shape = [inputs.shape[0], *self.cell.state_shape(self._of_step(inputs.shape))]
        zeros = array.zeros(shape, inputs.dtype)
        return [zeros, zeros]

    @staticmethod
    def _of_step(shape: Any) -> list[int | None]:
        known = TensorShape(shape).as_list()
        return [known[0], *known[2:]]

    def _step(self, inputs: Any, first: Any, constants: Any, training: Any) -> tuple[Any, Any]:
        cell = self.cell
        keep = cell.masks(first, cell.dropout, training)
        zeros = self.get_initial_state(inputs)[0]
        again = cell.masks(zeros, cell.recurrent_dropout, training)
        count, steps, *rest = inputs.shape.as_list()
        over_time = None
        if keep is not None:
            over_time = [array.repeat(k, steps, axis=0) for k in keep]
        # All steps are convolved at once.
        with cell._reading_weights():
            flat = cell.project(array.reshape(inputs, [count * steps, *rest]), over_time)
        projected = array.reshape(flat, [count, steps, *flat.shape[1:]])

        def advance(x: Any, states: Any) -> Any:
            with cell._reading_weights():
                return cell.advance(x, list(states), again)

        return projected, advance

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output; with `return_state` a list with the states' shapes."""
        known = TensorShape(nest.flatten(input_shape)[0] if _is_list(input_shape) else input_shape)
        batch, steps = known.as_list()[:2]
        own = self.cell.state_shape(self._of_step(known))
        shape = TensorShape([batch, steps, *own] if self.return_sequences else [batch, *own])
        state = TensorShape([batch, *own])
        return [shape, state, state] if self.return_state else shape

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return config_with_cell(self)


def _is_list(shape: Any) -> bool:
    return isinstance(shape, list) and isinstance(shape[0], TensorShape)


for _name in (
    *("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate"),
    *("activation", "recurrent_activation", "use_bias", "unit_forget_bias"),
    *("dropout", "recurrent_dropout", "kernel_initializer", "recurrent_initializer"),
    *("bias_initializer", "kernel_regularizer", "recurrent_regularizer", "bias_regularizer"),
    *("kernel_constraint", "recurrent_constraint", "bias_constraint"),
):
    setattr(_ConvLSTM, _name, of_cell(_name))


class ConvLSTM1D(_ConvLSTM):
    """A convolutional LSTM over sequences of signals [batch, time, length, channels].

    Args:
      filters: number of output channels.
      kernel_size: size of the window.
      strides: step of the window over the inputs.
      padding: 'valid' or 'same', for the inputs; states are padded.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: spacing of the window's elements.
      activation: of the candidate and the output.
      recurrent_activation: of the gates.
      use_bias: whether there is a bias.
      kernel_initializer: initializer of the kernel, shape (*kernel_size, in, 4 * filters).
      recurrent_initializer: initializer of the recurrent kernel.
      bias_initializer: initializer of the bias.
      unit_forget_bias: whether the forget gate's bias starts at 1.
      kernel_regularizer: penalty on the kernel.
      recurrent_regularizer: penalty on the recurrent kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: projection of the kernel.
      recurrent_constraint: projection of the recurrent kernel.
      bias_constraint: projection of the bias.
      return_sequences: whether the outputs of all steps are returned instead of the last.
      return_state: whether the states after the last step are returned too.
      go_backwards: whether to begin with the last step.
      stateful: whether each batch begins with the states that the one before ended with.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      **kwargs: arguments of `RNN`.

    Input shape:
      (batch, time, steps, channels). With 'channels_first' the channels come third.

    Output shape:
      (batch, new_steps, filters), with `return_sequences` (batch, time, new_steps, filters); with
      `return_state` also two states of shape (batch, new_steps, filters).

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.ConvLSTM1D(4, 3, return_sequences=True)(tf.ones([1, 2, 8, 3])).shape
      TensorShape([1, 2, 6, 4])
    """

    rank = 1


class ConvLSTM2D(_ConvLSTM):
    """A convolutional LSTM over sequences of images; arguments as for `ConvLSTM1D`.

    Input shape:
      (batch, time, height, width, channels). With 'channels_first' the channels come third.

    Output shape:
      (batch, new_height, new_width, filters), with `return_sequences` (batch, time, new_height, new_width,
      filters); with `return_state` also two states of shape (batch, new_height, new_width, filters).

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)
      >>> layer(tf.ones([1, 2, 8, 8, 3])).shape
      TensorShape([1, 2, 8, 8, 4])
    """

    rank = 2


class ConvLSTM3D(_ConvLSTM):
    """A convolutional LSTM over sequences of volumes; arguments as for `ConvLSTM1D`.

    Input shape:
      (batch, time, depth, height, width, channels). With 'channels_first' the channels come third.

    Output shape:
      (batch, new_depth, new_height, new_width, filters), with `return_sequences` (batch, time, new_depth,
      new_height, new_width, filters); with `return_state` also two states of shape (batch, new_depth,
      new_height, new_width, filters).

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.ConvLSTM3D(2, 3, padding="same")(tf.ones([1, 2, 4, 4, 4, 1])).shape
      TensorShape([1, 4, 4, 4, 2])
    """

    rank = 3
