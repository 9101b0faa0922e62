"""The built-in cells: simple, GRU and LSTM.

They compute a step in two halves, `project` (all that does not need the states) and `advance`, so that a layer can
project whole sequences in one product before it loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import activations, constraints, initializers, regularizers
from meshflow.keras.layers import products
from meshflow.keras.layers.core import weight_config
from meshflow.keras.layers.recurrent_cells import AbstractRNNCell
from meshflow.ops import array, math, nn

__all__ = ["GRUCell", "LSTMCell", "SimpleRNNCell"]


class GatedCell(AbstractRNNCell):
    """A cell with a kernel, a recurrent kernel and a bias, each with a part for every gate."""

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    gates = 1

    def __init__(
        self,
        units: int,
        activation: Any,
        use_bias: bool,
        dropout: float,
        recurrent_dropout: float,
        weights: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        if not isinstance(units, (int, np.integer)) or units <= 0:
            raise ValueError(
                f"Received an invalid value for argument `units`, expected a positive integer, got {units}."
            )
        # With a mask for each gate Keras has one product for each.
        implementation = kwargs.pop("implementation", 2)
        self.implementation = 1 if recurrent_dropout else implementation
        super().__init__(**kwargs)
        self.units = int(units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.dropout = min(1.0, max(0.0, float(dropout)))
        self.recurrent_dropout = min(1.0, max(0.0, float(recurrent_dropout)))
        modules = {
            "initializer": initializers,
            "regularizer": regularizers,
            "constraint": constraints,
        }
        for name, value in weights.items():
            setattr(self, name, modules[name.rsplit("_", 1)[1]].get(value))
        self._held: Any = None

    @property
    def state_size(self) -> Any:
        """Sizes of the states."""
        return self.units

    @property
    def output_size(self) -> Any:
        """Size of the output."""
        return self.units

    def build(self, input_shape: Any) -> None:
        """Creates kernel, recurrent kernel and bias."""
        size = TensorShape(input_shape)[-1]
        width = self.gates * self.units
        shapes: dict[str, tuple[Any, ...]] = {
            "kernel": (size, width),
            "recurrent_kernel": (self.units, width),
        }
        if self.use_bias:
            shapes["bias"] = self._bias_shape()
        self.bias: Any = None
        for name, shape in shapes.items():
            option = name.split("_")[0]
            weight = self.add_weight(
                name,
                shape,
                initializer=self._bias_values()
                if name == "bias"
                else getattr(self, f"{option}_initializer"),
                regularizer=getattr(self, f"{option}_regularizer"),
                constraint=getattr(self, f"{option}_constraint"),
            )
            setattr(self, name, weight)
        self.built = True

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.gates * self.units,)

    def _bias_values(self) -> Any:
        return self.bias_initializer  # type: ignore[attr-defined]

    def call(self, inputs: Any, states: Any, training: Any = None) -> Any:
        """One step.

        Args:
          inputs: a tensor [batch, features].
          states: the states, tensors [batch, units].
          training: whether dropout is applied.

        Returns:
          The output [batch, units] and the next states.
        """
        single = not isinstance(states, (list, tuple))
        before = [states] if single else list(states)
        before[0] = convert_to_tensor(before[0], dtype_hint=inputs.dtype)
        keep = self._held or self.masks(inputs, training)
        output, after = self.advance(self.project(inputs, keep[0]), before, keep[1])
        return output, (after[0] if single else after)

    def masks(self, inputs: Any, training: Any) -> tuple[Any, Any]:
        """Dropout masks of the inputs of a step and of the first state; None without dropout."""
        if not training:
            return None, None
        batch, size = inputs.shape[0], inputs.shape[-1]

        def mask(rate: float, width: int) -> Any:
            return nn.dropout(array.ones([batch, width], inputs.dtype), rate) if rate else None

        return mask(self.dropout, size), mask(self.recurrent_dropout, self.units)

    def hold_masks(self, inputs: Any, training: Any) -> Any:
        """Uses the same dropout masks in every step until `drop_masks`; gives what the output looks like."""
        self._held = self.masks(inputs, training)
        return array.zeros([inputs.shape[0], self.units], inputs.dtype)

    def drop_masks(self) -> None:
        """Ends `hold_masks`."""
        self._held = None

    def project(self, inputs: Any, keep: Any) -> Any:
        """The share of the gates that inputs [..., features] have."""
        raise NotImplementedError

    def advance(self, projected: Any, states: list[Any], keep: Any) -> tuple[Any, list[Any]]:
        """The output and the next states, from a step's `project` and the states."""
        raise NotImplementedError

    def _product(self, inputs: Any, keep: Any, bias: Any) -> Any:
        if keep is not None:
            inputs = inputs * (keep if inputs.ndim == 2 else array.expand_dims(keep, 1))
        product = products.dot(inputs, self.kernel)  # type: ignore[attr-defined]
        return product if bias is None else product + bias

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = {**super().get_config(), "units": self.units}
        config["activation"] = activations.serialize(self.activation)
        if hasattr(self, "recurrent_activation"):
            config["recurrent_activation"] = activations.serialize(self.recurrent_activation)
        flags = ("unit_forget_bias",) if hasattr(self, "unit_forget_bias") else ()
        config["use_bias"] = self.use_bias
        config |= weight_config(self, "kernel", "recurrent", "bias", flags=flags)
        config |= {"dropout": self.dropout, "recurrent_dropout": self.recurrent_dropout}
        if hasattr(self, "recurrent_activation"):
            config["implementation"] = self.implementation
        return config


class SimpleRNNCell(GatedCell):
    """`output = activation(inputs @ kernel + output_before @ recurrent_kernel + bias)`.

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
      kernel_constraint: constraint of the kernel.
      recurrent_constraint: constraint of the recurrent kernel.
      bias_constraint: constraint of the bias.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, features), and a list of one state (batch, units).

    Output shape:
      (batch, units), and the new state.

    Raises:
      ValueError: when `units` is not a positive integer.

    Example:
      >>> import meshflow as tf
      >>> ones = {"kernel_initializer": "ones", "recurrent_initializer": "ones"}
      >>> cell = tf.keras.layers.SimpleRNNCell(1, activation=None, **ones)
      >>> output, states = cell(tf.constant([[2.0, 3.0]]), [tf.constant([[10.0]])])
      >>> output.numpy().tolist()
      [[15.0]]
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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        weights = {
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
        }
        super().__init__(units, activation, use_bias, dropout, recurrent_dropout, weights, **kwargs)

    def project(self, inputs: Any, keep: Any) -> Any:
        """`inputs @ kernel + bias`."""
        return self._product(inputs, keep, self.bias)

    def advance(self, projected: Any, states: list[Any], keep: Any) -> tuple[Any, list[Any]]:
        """The output, which is the next state too."""
        state = states[0] if keep is None else states[0] * keep
        output = self.activation(projected + math.matmul(state, self.recurrent_kernel))  # type: ignore[attr-defined]
        return output, [output]


class GRUCell(GatedCell):
    """A gated recurrent unit (arXiv:1406.1078): update gate, reset gate, candidate.

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
      kernel_constraint: constraint of the kernel.
      recurrent_constraint: constraint of the recurrent kernel.
      bias_constraint: constraint of the bias.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      reset_after: whether the reset gate is applied after the product with the recurrent kernel, as
        cuDNN does; the bias then has two rows, for inputs and state.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, features), and a list of one state (batch, units).

    Output shape:
      (batch, units), and the new state.

    Raises:
      ValueError: when `units` is not a positive integer.

    Example:
      >>> import meshflow as tf
      >>> cell = tf.keras.layers.GRUCell(4)
      >>> output, state = cell(tf.ones([2, 3]), tf.zeros([2, 4]))
      >>> output.shape, cell.state_size
      (TensorShape([2, 4]), 4)
    """

    gates = 3

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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        weights = {
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
        }
        super().__init__(units, activation, use_bias, dropout, recurrent_dropout, weights, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.reset_after = reset_after

    def _bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)

    def project(self, inputs: Any, keep: Any) -> Any:
        """`inputs @ kernel + bias`."""
        bias = self.bias
        if bias is not None and self.reset_after:
            bias = bias[0]
        return self._product(inputs, keep, bias)

    def advance(self, projected: Any, states: list[Any], keep: Any) -> tuple[Any, list[Any]]:
        """The output, which is the next state too."""
        before = states[0]
        state = before if keep is None else before * keep
        of_update, of_reset, of_candidate = array.split(projected, 3, axis=-1)
        kernel: Any = self.recurrent_kernel  # type: ignore[attr-defined]
        if self.reset_after:
            inner = math.matmul(state, kernel)
            if self.bias is not None:
                inner = inner + self.bias[1]
            update, reset, inner = array.split(inner, 3, axis=-1)
        else:
            gates = math.matmul(state, kernel[:, : 2 * self.units])
            update, reset = array.split(gates, 2, axis=-1)
        update = self.recurrent_activation(of_update + update)
        reset = self.recurrent_activation(of_reset + reset)
        if self.reset_after:
            inner = reset * inner
        else:
            inner = math.matmul(reset * state, kernel[:, 2 * self.units :])
        candidate = self.activation(of_candidate + inner)
        output = update * before + (1.0 - update) * candidate
        return output, [output]

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "reset_after": self.reset_after}


class LSTMCell(GatedCell):
    """A long short-term memory cell: input gate, forget gate, candidate, output gate.

    The states are the output and the memory.

    Args:
      units: size of output and states.
      activation: function or name, of candidate and memory.
      recurrent_activation: function or name, of the gates.
      use_bias: whether there is a bias.
      kernel_initializer: initializer of the kernel.
      recurrent_initializer: initializer of the recurrent kernel.
      bias_initializer: initializer of the bias.
      unit_forget_bias: whether the forget gate's bias begins at one.
      kernel_regularizer: penalty on the kernel.
      recurrent_regularizer: penalty on the recurrent kernel.
      bias_regularizer: penalty on the bias.
      kernel_constraint: constraint of the kernel.
      recurrent_constraint: constraint of the recurrent kernel.
      bias_constraint: constraint of the bias.
      dropout: share of the inputs dropped in training, the same in each step.
      recurrent_dropout: share of the state dropped in training, the same in each step.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, features), and a list of two states (batch, units).

    Output shape:
      (batch, units), and the new states.

    Raises:
      ValueError: when `units` is not a positive integer.

    Example:
      >>> import meshflow as tf
      >>> cell = tf.keras.layers.LSTMCell(4)
      >>> output, (hidden, memory) = cell(tf.ones([2, 3]), [tf.zeros([2, 4]), tf.zeros([2, 4])])
      >>> output.shape, memory.shape
      (TensorShape([2, 4]), TensorShape([2, 4]))
    """

    gates = 4

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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        weights = {
            "kernel_initializer": kernel_initializer,
            "recurrent_initializer": recurrent_initializer,
            "bias_initializer": bias_initializer,
            "kernel_regularizer": kernel_regularizer,
            "recurrent_regularizer": recurrent_regularizer,
            "bias_regularizer": bias_regularizer,
            "kernel_constraint": kernel_constraint,
            "recurrent_constraint": recurrent_constraint,
            "bias_constraint": bias_constraint,
        }
        super().__init__(units, activation, use_bias, dropout, recurrent_dropout, weights, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.unit_forget_bias = unit_forget_bias

    @property
    def state_size(self) -> Any:
        """Sizes of the states."""
        return [self.units, self.units]

    def _bias_values(self) -> Any:
        initializer: Any = self.bias_initializer  # type: ignore[attr-defined]
        if not self.unit_forget_bias:
            return initializer

        def with_ones(shape: Any, dtype: Any = None, **_: Any) -> Any:
            u = self.units
            parts = [
                initializer((u,), dtype=dtype),
                array.ones((u,), dtype),
                initializer((2 * u,), dtype=dtype),
            ]
            return array.concat([convert_to_tensor(p) for p in parts], 0)

        return with_ones

    def project(self, inputs: Any, keep: Any) -> Any:
        """`inputs @ kernel + bias`."""
        return self._product(inputs, keep, self.bias)

    def advance(self, projected: Any, states: list[Any], keep: Any) -> tuple[Any, list[Any]]:
        """The output, and output and memory as the next states."""
        before, memory = states
        state = before if keep is None else before * keep
        gates = projected + math.matmul(state, self.recurrent_kernel)  # type: ignore[attr-defined]
        enter, forget, candidate, leave = array.split(gates, 4, axis=-1)
        memory = self.recurrent_activation(forget) * memory + self.recurrent_activation(
            enter
        ) * self.activation(candidate)
        output = self.recurrent_activation(leave) * self.activation(memory)
        return output, [output, memory]
