"""`SimpleRNN`, `GRU` and `LSTM`: recurrent layers that make their cell themselves."""

from __future__ import annotations

from typing import Any

from meshflow.keras import regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.keywords import for_cell
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.gated_cells import GRUCell, LSTMCell, SimpleRNNCell
from meshflow.keras.layers.recurrent import RNN

__all__ = ["GRU", "LSTM", "SimpleRNN"]


class _CellLayer(RNN):
    """A layer whose arguments are its cell's and `RNN`'s."""

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    def __init__(
        self, cell_class: Any, cell: dict[str, Any], run: dict[str, Any], kwargs: Any
    ) -> None:
        length = kwargs.pop("input_length", None)
        if length is not None and kwargs.get("input_dim") is not None:
            kwargs["input_shape"] = (length, kwargs.pop("input_dim"))
        elif kwargs.get("input_dim") is not None:
            kwargs["input_shape"] = (None, kwargs.pop("input_dim"))
        implementation = kwargs.pop("implementation", 2)
        cell = {**cell, **for_cell(type(self), kwargs), "implementation": implementation}
        super().__init__(cell_class(**cell), **run, **kwargs)
        self.input_spec = [InputSpec(ndim=3)]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return config_with_cell(self)


def config_with_cell(layer: RNN) -> dict[str, Any]:
    """The configuration of a layer that is made with its cell's settings.

    Args:
      layer: the layer.
    """
    config = {**Layer.get_config(layer), **layer._run_config()}
    for key, value in layer.cell.get_config().items():
        config.setdefault(key, value)
        if key == "bias_regularizer":
            regularizer = regularizers.get(layer.activity_regularizer)
            config["activity_regularizer"] = regularizers.serialize(regularizer)
    return config


def of_cell(name: str) -> property:
    """An attribute of a layer's cell as the layer's own."""
    return property(lambda self: getattr(self.cell, name), doc=f"The cell's `{name}`.")


for _name in (
    *("units", "activation", "use_bias", "dropout", "recurrent_dropout", "implementation"),
    *("kernel_initializer", "recurrent_initializer", "bias_initializer"),
    *("kernel_regularizer", "recurrent_regularizer", "bias_regularizer"),
    *("kernel_constraint", "recurrent_constraint", "bias_constraint"),
):
    setattr(_CellLayer, _name, of_cell(_name))


class SimpleRNN(_CellLayer):
    """Every step: `activation(inputs @ kernel + output_before @ recurrent_kernel + bias)`.

    Args:
      units: size of output and state.
      activation: function or name.
      use_bias: whether there is a bias.
      kernel_initializer: initializer of the kernel.
      recurrent_initializer: initializer of the recurrent kernel.
      bias_initializer: initializer of the bias.
      kernel_regularizer: penalty on the kernel.
      recurrent_regularizer: penalty on the recurrent kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: constraint of the kernel.
      recurrent_constraint: constraint of the recurrent kernel.
      bias_constraint: constraint of the bias.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      return_sequences: whether all outputs are returned instead of the last.
      return_state: whether the states after the last step are returned too.
      go_backwards: whether to begin with the last step.
      stateful: whether each batch begins with the states that the one before ended with.
      unroll: whether the step is repeated in compiled programs instead of looped.
      **kwargs: `time_major`; arguments of `Layer`.

    Input shape:
      (batch, time, features); with `time_major` (time, batch, features).

    Output shape:
      (batch, units); with `return_sequences` (batch, time, units); with `return_state` also a state of shape
      (batch, units).

    Raises:
      ValueError: when `units` is not a positive integer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.SimpleRNN(4)(tf.ones([2, 5, 3])).shape
      TensorShape([2, 4])
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        **kwargs: Any,
    ) -> None:
        cell = {
            "name": "simple_rnn_cell",
            "units": units,
            "activation": activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
        }
        run = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
            "unroll": unroll,
            "activity_regularizer": activity_regularizer,
        }
        super().__init__(SimpleRNNCell, cell, run, kwargs)


class GRU(_CellLayer):
    """Gated recurrent units (arXiv:1406.1078).

    Args:
      units: size of output and state.
      activation: function or name, of the candidate.
      recurrent_activation: function or name, of the gates.
      use_bias: whether there is a bias.
      kernel_initializer: initializer of the kernel.
      recurrent_initializer: initializer of the recurrent kernel.
      bias_initializer: initializer of the bias.
      kernel_regularizer: penalty on the kernel.
      recurrent_regularizer: penalty on the recurrent kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: constraint of the kernel.
      recurrent_constraint: constraint of the recurrent kernel.
      bias_constraint: constraint of the bias.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      return_sequences: whether all outputs are returned instead of the last.
      return_state: whether the states after the last step are returned too.
      go_backwards: whether to begin with the last step.
      stateful: whether each batch begins with the states that the one before ended with.
      unroll: whether the step is repeated in compiled programs instead of looped.
      time_major: whether inputs and outputs are [time, batch, features].
      reset_after: whether the reset gate is applied after the product with the recurrent kernel.
      **kwargs: `implementation` is accepted; arguments of `Layer`.

    Input shape:
      (batch, time, features); with `time_major` (time, batch, features).

    Output shape:
      (batch, units); with `return_sequences` (batch, time, units); with `return_state` also a state of shape
      (batch, units).

    Raises:
      ValueError: when `units` is not a positive integer.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.GRU(4)(tf.ones([2, 5, 3])).shape
      TensorShape([2, 4])
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        time_major: bool = False,
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        cell = {
            "name": "gru_cell",
            "units": units,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
            "reset_after": reset_after,
        }
        run = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
            "unroll": unroll,
            "time_major": time_major,
            "activity_regularizer": activity_regularizer,
        }
        super().__init__(GRUCell, cell, run, kwargs)

    recurrent_activation = of_cell("recurrent_activation")

    reset_after = of_cell("reset_after")


class LSTM(_CellLayer):
    """Long short-term memory: each step reads, forgets and writes a memory through gates.

    Args:
      units: size of output and state.
      activation: function or name, of the candidate.
      recurrent_activation: function or name, of the gates.
      use_bias: whether there is a bias.
      kernel_initializer: initializer of the kernel.
      recurrent_initializer: initializer of the recurrent kernel.
      bias_initializer: initializer of the bias.
      unit_forget_bias: whether the forget gate's bias begins at one.
      kernel_regularizer: penalty on the kernel.
      recurrent_regularizer: penalty on the recurrent kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: constraint of the kernel.
      recurrent_constraint: constraint of the recurrent kernel.
      bias_constraint: constraint of the bias.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      return_sequences: whether all outputs are returned instead of the last.
      return_state: whether the states after the last step are returned too.
      go_backwards: whether to begin with the last step.
      stateful: whether each batch begins with the states that the one before ended with.
      time_major: whether inputs and outputs are [time, batch, features].
      unroll: whether the step is repeated in compiled programs instead of looped.
      **kwargs: `implementation` is accepted; arguments of `Layer`.

    Input shape:
      (batch, time, features); with `time_major` (time, batch, features).

    Output shape:
      (batch, units); with `return_sequences` (batch, time, units); with `return_state` also two states of
      shape (batch, units).

    Raises:
      ValueError: when `units` is not a positive integer.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.LSTM(4, return_sequences=True, return_state=True)
      >>> outputs, state, memory = layer(tf.ones([2, 5, 3]))
      >>> outputs.shape, memory.shape
      (TensorShape([2, 5, 4]), TensorShape([2, 4]))
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
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
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        time_major: bool = False,
        unroll: bool = False,
        **kwargs: Any,
    ) -> None:
        cell = {
            "name": "lstm_cell",
            "units": units,
            "activation": activation,
            "recurrent_activation": recurrent_activation,
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "unit_forget_bias": unit_forget_bias,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
            "dropout": dropout,
            "recurrent_dropout": recurrent_dropout,
        }
        run = {
            "return_sequences": return_sequences,
            "return_state": return_state,
            "go_backwards": go_backwards,
            "stateful": stateful,
            "time_major": time_major,
            "unroll": unroll,
            "activity_regularizer": activity_regularizer,
        }
        super().__init__(LSTMCell, cell, run, kwargs)

    recurrent_activation = of_cell("recurrent_activation")

    unit_forget_bias = of_cell("unit_forget_bias")
