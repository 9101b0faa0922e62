"""`SimpleRNN`, `GRU` and `LSTM`: recurrent layers that create their cell."""

from __future__ import annotations

import functools
import inspect
from typing import Unpack, cast

from meshflow.environment.types import Config
from meshflow.keras import regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import Identifier, to_snake_case
from meshflow.keras.engine.layer.keywords import make_cell_keywords
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.gated_cells import GRUCell, LSTMCell, SimpleRNNCell
from meshflow.keras.layers.keyword_arguments import RecurrentArguments
from meshflow.keras.layers.recurrent import RNN

__all__ = ["GRU", "LSTM", "SimpleRNN"]


class _CellLayer(RNN):
    """Base class of layers with the arguments of their cell and of `RNN`.

    Args:
      cell_class: Class of the cell.
      arguments: The arguments of the constructor of a subclass, by name.
      kwargs: Further arguments of the cell and of `RNN`.
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    def __init__(self, cell_class: type[Layer], arguments: Config, kwargs: Config) -> None:
        length = kwargs.pop("input_length", None)
        if length is not None and kwargs.get("input_dim") is not None:
            kwargs["input_shape"] = (length, kwargs.pop("input_dim"))
        elif kwargs.get("input_dim") is not None:
            kwargs["input_shape"] = (None, kwargs.pop("input_dim"))
        cell = cell_class(
            name=to_snake_case(cell_class.__name__),
            implementation=kwargs.pop("implementation", 2),
            **_select_arguments(cell_class, arguments),
            **make_cell_keywords(type(self), kwargs),
        )
        options = _select_arguments(RNN, arguments)
        super().__init__(
            cell, activity_regularizer=arguments["activity_regularizer"], **options, **kwargs
        )
        self.input_spec = [InputSpec(ndim=3)]

    def get_config(self) -> Config:
        """Return the configuration."""
        return merge_cell_config(self)


def _select_arguments(cls: type, arguments: Config) -> Config:
    """Return the arguments that a class also has."""
    names = _list_parameters(cls)
    return {name: value for name, value in arguments.items() if name in names}


@functools.cache
def _list_parameters(cls: type) -> set[str]:
    """Return the names of the parameters of a class, without those of `**kwargs`."""
    return inspect.signature(cls).parameters.keys() - {"kwargs"}


def merge_cell_config(layer: RNN) -> Config:
    """Return the configuration of a layer that has the arguments of its cell."""
    config = {**Layer.get_config(layer), **layer._get_rnn_config()}
    for key, value in layer.cell.get_config().items():
        config.setdefault(key, value)
        if key == "bias_regularizer":
            regularizer = regularizers.get(layer.activity_regularizer)
            config["activity_regularizer"] = regularizers.serialize(regularizer)
    return config


def delegate_to_cell(name: str) -> property:
    """Make a property that reads an attribute of the cell."""
    return property(lambda self: getattr(self.cell, name), doc=f"`{name}` of the cell.")


for _name in (
    *("units", "activation", "use_bias", "dropout", "recurrent_dropout", "implementation"),
    *("kernel_initializer", "recurrent_initializer", "bias_initializer"),
    *("kernel_regularizer", "recurrent_regularizer", "bias_regularizer"),
    *("kernel_constraint", "recurrent_constraint", "bias_constraint"),
    *("get_dropout_mask_for_cell", "get_recurrent_dropout_mask_for_cell"),
    *("reset_dropout_mask", "reset_recurrent_dropout_mask"),
):
    setattr(_CellLayer, _name, delegate_to_cell(_name))


class SimpleRNN(_CellLayer):
    """Fully connected RNN: `activation(inputs @ kernel + output_before @ recurrent_kernel + bias)`.

    Args:
      units: Size of output and state.
      activation: Activation function or its name.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel.
      recurrent_initializer: Initializer of the recurrent kernel.
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernel.
      recurrent_regularizer: Regularizer of the recurrent kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint of the kernel.
      recurrent_constraint: Constraint of the recurrent kernel.
      bias_constraint: Constraint of the bias.
      dropout: Fraction of inputs that training drops, with one mask for all steps.
      recurrent_dropout: Fraction of states that training drops, with one mask for all steps.
      return_sequences: Whether to return the outputs of all steps instead of the last.
      return_state: Whether to return the states after the last step as well.
      go_backwards: Whether to start with the last step.
      stateful: Whether the initial states of a batch are the final states of the last one.
      unroll: Whether compiled programs contain an unrolled loop.
      **kwargs: `time_major`; arguments of `Layer`.

    Input shape:
      (batch, time, features); with `time_major` (time, batch, features).

    Output shape:
      (batch, units); with `return_sequences` (batch, time, units); with `return_state` also a state
      of shape (batch, units).

    Raises:
      ValueError: If `units` is not a positive integer.

    Example:
      >>> tf.keras.layers.SimpleRNN(4)(tf.ones([2, 5, 3])).shape
      TensorShape([2, 4])
    """

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        recurrent_initializer: Identifier = "orthogonal",
        bias_initializer: Identifier = "zeros",
        kernel_regularizer: Identifier = None,
        recurrent_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        recurrent_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        **kwargs: Unpack[RecurrentArguments],
    ) -> None:
        super().__init__(SimpleRNNCell, locals(), cast(Config, kwargs))


class GRU(_CellLayer):
    """Gated recurrent unit (arXiv:1406.1078).

    Args:
      units: Size of output and state.
      activation: Activation of the candidate.
      recurrent_activation: Activation of the gates.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel.
      recurrent_initializer: Initializer of the recurrent kernel.
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernel.
      recurrent_regularizer: Regularizer of the recurrent kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint of the kernel.
      recurrent_constraint: Constraint of the recurrent kernel.
      bias_constraint: Constraint of the bias.
      dropout: Fraction of inputs that training drops, with one mask for all steps.
      recurrent_dropout: Fraction of states that training drops, with one mask for all steps.
      return_sequences: Whether to return the outputs of all steps instead of the last.
      return_state: Whether to return the states after the last step as well.
      go_backwards: Whether to start with the last step.
      stateful: Whether the initial states of a batch are the final states of the last one.
      unroll: Whether compiled programs contain an unrolled loop.
      time_major: Whether inputs and outputs are [time, batch, features].
      reset_after: Whether the reset gate is applied after the product with the recurrent kernel.
      **kwargs: `implementation` is accepted; arguments of `Layer`.

    Input shape:
      (batch, time, features); with `time_major` (time, batch, features).

    Output shape:
      (batch, units); with `return_sequences` (batch, time, units); with `return_state` also a state
      of shape (batch, units).

    Raises:
      ValueError: If `units` is not a positive integer.

    Example:
      >>> tf.keras.layers.GRU(4)(tf.ones([2, 5, 3])).shape
      TensorShape([2, 4])
    """

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        recurrent_initializer: Identifier = "orthogonal",
        bias_initializer: Identifier = "zeros",
        kernel_regularizer: Identifier = None,
        recurrent_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        recurrent_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        time_major: bool = False,
        reset_after: bool = True,
        **kwargs: Unpack[RecurrentArguments],
    ) -> None:
        super().__init__(GRUCell, locals(), cast(Config, kwargs))

    recurrent_activation = delegate_to_cell("recurrent_activation")

    reset_after = delegate_to_cell("reset_after")


class LSTM(_CellLayer):
    """Long short-term memory: each step reads, resets and writes a memory by gates.

    Args:
      units: Size of output and state.
      activation: Activation of the candidate.
      recurrent_activation: Activation of the gates.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel.
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
      dropout: Fraction of inputs that training drops, with one mask for all steps.
      recurrent_dropout: Fraction of states that training drops, with one mask for all steps.
      return_sequences: Whether to return the outputs of all steps instead of the last.
      return_state: Whether to return the states after the last step as well.
      go_backwards: Whether to start with the last step.
      stateful: Whether the initial states of a batch are the final states of the last one.
      time_major: Whether inputs and outputs are [time, batch, features].
      unroll: Whether compiled programs contain an unrolled loop.
      **kwargs: `implementation` is accepted; arguments of `Layer`.

    Input shape:
      (batch, time, features); with `time_major` (time, batch, features).

    Output shape:
      (batch, units); with `return_sequences` (batch, time, units); with `return_state` also two
      states of shape (batch, units).

    Raises:
      ValueError: If `units` is not a positive integer.

    Example:
      >>> layer = tf.keras.layers.LSTM(4, return_sequences=True, return_state=True)
      >>> outputs, state, memory = layer(tf.ones([2, 5, 3]))
      >>> outputs.shape, memory.shape
      (TensorShape([2, 5, 4]), TensorShape([2, 4]))
    """

    def __init__(
        self,
        units: int,
        activation: Identifier = "tanh",
        recurrent_activation: Identifier = "sigmoid",
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
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        time_major: bool = False,
        unroll: bool = False,
        **kwargs: Unpack[RecurrentArguments],
    ) -> None:
        super().__init__(LSTMCell, locals(), cast(Config, kwargs))

    recurrent_activation = delegate_to_cell("recurrent_activation")

    unit_forget_bias = delegate_to_cell("unit_forget_bias")
