"""Convolutional LSTMs (arXiv:1506.04214) for sequences of signals, images or volumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack, cast

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras import activations, settings
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.layer.keywords import make_cell_keywords
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.convolutional import compute_output_size, parse_sizes
from meshflow.keras.layers.keyword_arguments import RecurrentArguments
from meshflow.keras.layers.recurrent import RNN
from meshflow.keras.layers.recurrent_layers import delegate_to_cell, merge_cell_config
from meshflow.keras.layers.weight_options import (
    KernelLayer,
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.keras.literals import DataFormat, Padding
from meshflow.ops import array, nn

__all__ = ["ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"]

_NUM_GATES = 4


class ConvLSTMCell(KernelLayer):
    """Cell of convolutional LSTMs: gates are convolutions of the inputs and of the state.

    Args:
      rank: Number of spatial axes.
      arguments: Arguments of `ConvLSTM1D` and the other layers, by name.
      **kwargs: Arguments of `Layer`.
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    bias: Any = None

    def __init__(self, rank: int, arguments: Config, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        set_weight_options(self, arguments, "kernel", "recurrent", "bias")
        self.rank, self.filters = rank, arguments["filters"]
        self.kernel_size = parse_sizes(arguments["kernel_size"], rank, "kernel_size")
        self.strides = parse_sizes(arguments["strides"], rank, "strides")
        self.dilation_rate = parse_sizes(arguments["dilation_rate"], rank, "dilation_rate")
        self.padding = arguments["padding"].lower()
        self.data_format = settings.normalize_data_format(arguments["data_format"])
        self.activation = activations.get(arguments["activation"])
        self.recurrent_activation = activations.get(arguments["recurrent_activation"])
        self.use_bias = arguments["use_bias"]
        self.unit_forget_bias = arguments["unit_forget_bias"]
        self.dropout = min(1.0, max(0.0, float(arguments["dropout"])))
        self.recurrent_dropout = min(1.0, max(0.0, float(arguments["recurrent_dropout"])))
        self.state_size: Any = [self.filters, self.filters]

    @property
    def _is_channels_first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _nn_data_format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._is_channels_first else f"N{spatial}C"

    def compute_state_shape(self, input_shape: ShapeLike) -> list[int | None]:
        """Compute the shape of a state without the batch axis from the input shape of one step."""
        input_sizes = TensorShape(input_shape).as_list()
        spatial = input_sizes[2:] if self._is_channels_first else input_sizes[1:-1]
        options = zip(spatial, self.kernel_size, self.strides, self.dilation_rate, strict=True)
        output_sizes = [
            compute_output_size(n, window, self.padding, s, d) for n, window, s, d in options
        ]
        return (
            [self.filters, *output_sizes]
            if self._is_channels_first
            else [*output_sizes, self.filters]
        )

    def build(self, input_shape: PyTree) -> None:
        """Create kernel, recurrent kernel and bias."""
        channels = TensorShape(input_shape)[1 if self._is_channels_first else -1]
        if channels is None:
            raise ValueError(
                "The channel dimension of the inputs (last axis) should be defined. Found None. Full input shape "
                f"received: {input_shape}"
            )
        width = _NUM_GATES * self.filters
        self.kernel = add_weight(self, "kernel", (*self.kernel_size, channels, width))
        recurrent_shape = (*self.kernel_size, self.filters, width)
        self.recurrent_kernel = add_weight(self, "recurrent_kernel", recurrent_shape, "recurrent")
        if self.use_bias:
            initialize = self._make_bias_values if self.unit_forget_bias else self.bias_initializer
            self.bias = add_weight(self, "bias", (width,), initializer=initialize)
        shape = self.compute_state_shape(input_shape)
        self.state_size = [TensorShape(shape), TensorShape(shape)]
        self.built = True

    def _make_bias_values(self, shape: Sequence[int], dtype: DTypeLike | None = None) -> Tensor:
        others = np.asarray(self.bias_initializer((3 * self.filters,), dtype=dtype))
        first, rest = np.split(others, [self.filters])
        return constant(np.concatenate([first, np.ones(self.filters), rest]), dtype=dtype)

    def make_dropout_masks(
        self, example: Tensor, rate: float, training: Any
    ) -> list[Tensor] | None:
        """Return a dropout mask like an example for each gate, or None without dropout."""
        if not training or not rate:
            return None
        return [nn.dropout(array.ones_like(example), rate) for _ in range(_NUM_GATES)]

    def _convolve(
        self,
        inputs: Tensor,
        kernel: Variable,
        strides: Sequence[int],
        padding: str,
        dilation: Sequence[int],
        masks: list[Tensor] | None,
    ) -> Tensor:
        static = (strides, padding.upper(), self._nn_data_format, dilation)
        value = kernel.value()
        if masks is None:
            return nn.convolution(inputs, value, *static)
        parts = array.split(value, _NUM_GATES, axis=-1)
        gates = [nn.convolution(inputs * m, w, *static) for m, w in zip(masks, parts, strict=True)]
        return array.concat(gates, axis=1 if self._is_channels_first else -1)

    def project(self, inputs: Tensor, masks: list[Tensor] | None) -> Tensor:
        """Compute the contribution of the inputs to the gates."""
        gates = self._convolve(
            inputs, self.kernel, self.strides, self.padding, self.dilation_rate, masks
        )
        return gates if self.bias is None else nn.bias_add(gates, self.bias, self._nn_data_format)

    def advance(
        self, projected: Tensor, states: Sequence[Tensor], masks: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the output and the next states."""
        hidden, carry = states
        ones = (1,) * self.rank
        recurrent = self._convolve(hidden, self.recurrent_kernel, ones, "same", ones, masks)
        gates = array.split(
            projected + recurrent, _NUM_GATES, axis=1 if self._is_channels_first else -1
        )
        input_gate, forget_gate = (self.recurrent_activation(g) for g in gates[:2])
        carry = forget_gate * carry + input_gate * self.activation(gates[2])
        hidden = self.recurrent_activation(gates[3]) * self.activation(carry)
        return hidden, [hidden, carry]

    def call(
        self, inputs: Tensor, states: Sequence[Tensor], training: Any = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the output and the next states for one step.

        Args:
          inputs: Tensor [batch, ..., channels].
          states: Two tensors.
          training: Whether to apply dropout.
        """
        masks = self.make_dropout_masks(inputs, self.dropout, training)
        recurrent_masks = self.make_dropout_masks(states[0], self.recurrent_dropout, training)
        return self.advance(self.project(inputs, masks), states, recurrent_masks)

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
            "activation": activations.serialize(self.activation),
            "recurrent_activation": activations.serialize(self.recurrent_activation),
            "use_bias": self.use_bias,
            **make_weight_config(self, "kernel", "recurrent", "bias", flags=("unit_forget_bias",)),
            "dropout": self.dropout,
            "recurrent_dropout": self.recurrent_dropout,
        }


class _ConvLSTM(RNN):
    """Base class of convolutional LSTMs; the arguments are those of the cell and of `RNN`."""

    _names_cell = False

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    rank = 2

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        data_format: DataFormat | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "hard_sigmoid",
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        recurrent_initializer: Identifier = "orthogonal",
        bias_initializer: Identifier = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Identifier = None,
        recurrent_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        recurrent_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Unpack[RecurrentArguments],
    ) -> None:
        options = cast(Config, kwargs)
        cell = ConvLSTMCell(self.rank, locals(), **make_cell_keywords(type(self), options))
        super().__init__(
            cell,
            return_sequences,
            return_state,
            go_backwards,
            stateful,
            activity_regularizer=activity_regularizer,
            **options,
        )
        self.input_spec = [InputSpec(ndim=self.rank + 3)]

    def build(self, input_shape: PyTree) -> None:
        """Build the cell, and create the states of a stateful layer."""
        super().build(input_shape)
        self.input_spec = [InputSpec(ndim=self.rank + 3)]

    def get_initial_state(self, inputs: Tensor) -> list[Tensor]:
        """Return zeros [batch, ..., filters] for both states."""
        shape = [
            inputs.shape[0],
            *self.cell.compute_state_shape(self._get_step_shape(inputs.shape)),
        ]
        zeros = array.zeros(shape, inputs.dtype)
        return [zeros, zeros]

    @staticmethod
    def _get_step_shape(shape: ShapeLike) -> list[int | None]:
        sizes = TensorShape(shape).as_list()
        return [sizes[0], *sizes[2:]]

    def _prepare_step(
        self, inputs: PyTree, first: PyTree, constants: Sequence[Tensor] | None, training: Any
    ) -> tuple[PyTree, Callable[..., tuple[Tensor, list[Tensor]]]]:
        cell = self.cell
        masks = cell.make_dropout_masks(first, cell.dropout, training)
        zeros = self.get_initial_state(inputs)[0]
        recurrent_masks = cell.make_dropout_masks(zeros, cell.recurrent_dropout, training)
        count, steps, *rest = inputs.shape.as_list()
        if masks is not None:
            masks = [array.repeat(mask, steps, axis=0) for mask in masks]
        # One convolution computes the contribution of the inputs for all steps.
        with cell._autocast_scope():
            flat = cell.project(array.reshape(inputs, [count * steps, *rest]), masks)
        projected = array.reshape(flat, [count, steps, *flat.shape[1:]])

        def advance(x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
            with cell._autocast_scope():
                return cell.advance(x, list(states), recurrent_masks)

        return projected, advance

    def compute_output_shape(self, input_shape: PyTree) -> PyTree:
        """Compute the shape of the output; with `return_state`, also those of the states."""
        shape = TensorShape(
            nest.flatten(input_shape)[0] if _is_shape_list(input_shape) else input_shape
        )
        batch, steps = shape.as_list()[:2]
        own = self.cell.compute_state_shape(self._get_step_shape(shape))
        output = TensorShape([batch, steps, *own] if self.return_sequences else [batch, *own])
        state = TensorShape([batch, *own])
        return [output, state, state] if self.return_state else output

    def get_config(self) -> Config:
        """Return the configuration."""
        return merge_cell_config(self)


def _is_shape_list(shape: PyTree) -> bool:
    return isinstance(shape, list) and isinstance(shape[0], TensorShape)


for _name in (
    *("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate"),
    *("activation", "recurrent_activation", "use_bias", "unit_forget_bias"),
    *("dropout", "recurrent_dropout", "kernel_initializer", "recurrent_initializer"),
    *("bias_initializer", "kernel_regularizer", "recurrent_regularizer", "bias_regularizer"),
    *("kernel_constraint", "recurrent_constraint", "bias_constraint"),
):
    setattr(_ConvLSTM, _name, delegate_to_cell(_name))


class ConvLSTM1D(_ConvLSTM):
    """Convolutional LSTM for sequences of signals [batch, time, length, channels].

    Args:
      filters: Number of output channels.
      kernel_size: Size of the window.
      strides: Stride of the window over the inputs.
      padding: 'valid' or 'same', for the inputs; states are padded.
      data_format: 'channels_last' or 'channels_first'.
      dilation_rate: Dilation of the window.
      activation: Activation of the candidate and the output.
      recurrent_activation: Activation of the gates.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel, shape (*kernel_size, in, 4 * filters).
      recurrent_initializer: Initializer of the recurrent kernel.
      bias_initializer: Initializer of the bias.
      unit_forget_bias: Whether the bias of the forget gate is initialized to 1.
      kernel_regularizer: Regularizer of the kernel.
      recurrent_regularizer: Regularizer of the recurrent kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint of the kernel.
      recurrent_constraint: Constraint of the recurrent kernel.
      bias_constraint: Constraint of the bias.
      return_sequences: Whether to return the outputs of all steps instead of the last.
      return_state: Whether to return the states after the last step as well.
      go_backwards: Whether to start with the last step.
      stateful: Whether the initial states of a batch are the final states of the last one.
      dropout: Fraction of inputs that training drops, with one mask for all steps.
      recurrent_dropout: Fraction of states that training drops, with one mask for all steps.
      **kwargs: Arguments of `RNN`.

    Input shape:
      (batch, time, steps, channels). With 'channels_first' the channels are the third axis.

    Output shape:
      (batch, new_steps, filters), with `return_sequences` (batch, time, new_steps, filters); with
      `return_state` also two states of shape (batch, new_steps, filters).

    Example:
      >>> tf.keras.layers.ConvLSTM1D(4, 3, return_sequences=True)(tf.ones([1, 2, 8, 3])).shape
      TensorShape([1, 2, 6, 4])
    """

    rank = 1


class ConvLSTM2D(_ConvLSTM):
    """Convolutional LSTM for sequences of images; arguments of `ConvLSTM1D`.

    Input shape:
      (batch, time, height, width, channels). With 'channels_first' the channels are the third axis.

    Output shape:
      (batch, new_height, new_width, filters), with `return_sequences` (batch, time, new_height,
      new_width, filters); with `return_state` also two states of shape (batch, new_height,
      new_width, filters).

    Example:
      >>> layer = tf.keras.layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)
      >>> layer(tf.ones([1, 2, 8, 8, 3])).shape
      TensorShape([1, 2, 8, 8, 4])
    """

    rank = 2


class ConvLSTM3D(_ConvLSTM):
    """Convolutional LSTM for sequences of volumes; arguments of `ConvLSTM1D`.

    Input shape:
      (batch, time, depth, height, width, channels). With 'channels_first' the channels are the
      third axis.

    Output shape:
      (batch, new_depth, new_height, new_width, filters), with `return_sequences` (batch, time,
      new_depth, new_height, new_width, filters); with `return_state` also two states of shape
      (batch, new_depth, new_height, new_width, filters).

    Example:
      >>> tf.keras.layers.ConvLSTM3D(2, 3, padding="same")(tf.ones([1, 2, 4, 4, 4, 1])).shape
      TensorShape([1, 4, 4, 4, 2])
    """

    rank = 3
