"""Built-in recurrent cells: simple RNN, GRU and LSTM.

A step has two parts: `project` computes the part that does not depend on the states, and `advance`
the rest. A layer can therefore project a complete sequence by one matrix product before its loop
over the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, Unpack

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import activations
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.layers import products
from meshflow.keras.layers.cell_dropout import DropoutRNNCellMixin
from meshflow.keras.layers.keyword_arguments import CellArguments
from meshflow.keras.layers.recurrent_cells import AbstractRNNCell
from meshflow.keras.layers.weight_options import (
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.keras.registry import KerasObject
from meshflow.ops import array, math, nn

__all__ = ["GRUCell", "LSTMCell", "SimpleRNNCell"]

_Mask = Tensor | None
_States = list[Tensor]


class GatedCell(DropoutRNNCellMixin, AbstractRNNCell):  # type: ignore[misc]
    """Cell with a kernel, a recurrent kernel and a bias, each of which has one part per gate.

    Args:
      arguments: The arguments of the constructor of a subclass, by name.
      **kwargs: Arguments of `Layer`, and layouts.
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "recurrent", "bias")

    num_gates = 1

    bias: Any = None
    bias_initializer: KerasObject

    def __init__(
        self,
        arguments: Mapping[str, Any],
        **kwargs: Unpack[CellArguments],
    ) -> None:
        units = arguments["units"]
        if not isinstance(units, (float, SupportsIndex)) or int(units) <= 0:
            raise ValueError(
                f"Received an invalid value for argument `units`, expected a positive integer, got {units}."
            )
        # Keras computes one product per gate if the gates have different dropout masks.
        implementation = kwargs.pop("implementation", 2)
        self.implementation = 1 if arguments["recurrent_dropout"] else implementation
        super().__init__(**kwargs)
        self.units = int(units)
        self.activation = activations.get(arguments["activation"])
        self.use_bias = arguments["use_bias"]
        self.dropout = min(1.0, max(0.0, float(arguments["dropout"])))
        self.recurrent_dropout = min(1.0, max(0.0, float(arguments["recurrent_dropout"])))
        set_weight_options(self, arguments, "kernel", "recurrent", "bias")
        self._held_masks: Any = None

    @property
    def state_size(self) -> int | list[int]:
        """Return the sizes of the states."""
        return self.units

    @property
    def output_size(self) -> int:
        """Return the size of the output."""
        return self.units

    def build(self, input_shape: ShapeLike) -> None:
        """Create the kernel, the recurrent kernel and the bias."""
        size = TensorShape(input_shape)[-1]
        width = self.num_gates * self.units
        self.kernel = add_weight(self, "kernel", (size, width))
        shape = (self.units, width)
        self.recurrent_kernel = add_weight(self, "recurrent_kernel", shape, "recurrent")
        if self.use_bias:
            initializer = self._make_bias_initializer()
            self.bias = add_weight(self, "bias", self._get_bias_shape(), initializer=initializer)
        self.built = True

    def _get_bias_shape(self) -> tuple[int, ...]:
        return (self.num_gates * self.units,)

    def _make_bias_initializer(self) -> Callable[..., Any]:
        return self.bias_initializer

    def call(
        self,
        inputs: TensorLike,
        states: Tensor | Sequence[Tensor],
        training: bool | Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Compute one step.

        Args:
          inputs: Tensor [batch, features].
          states: A state or a list of states, tensors [batch, units].
          training: Whether dropout is applied.

        Returns:
          The output [batch, units] and the next states, in the structure of `states`.
        """
        is_single = not isinstance(states, (list, tuple))
        before: list[Any] = [states] if is_single else list(states)
        before[0] = convert_to_tensor(before[0], dtype_hint=inputs.dtype)
        masks = self._held_masks or self.make_dropout_masks(inputs, training)
        output, after = self.advance(self.project(inputs, masks[0]), before, masks[1])
        return output, (after[0] if is_single else after)

    def make_dropout_masks(
        self, inputs: Tensor, training: bool | Tensor | None
    ) -> tuple[_Mask, _Mask]:
        """Draw dropout masks of the inputs and of the first state; None without dropout."""
        if not training:
            return None, None
        batch, size = inputs.shape[0], inputs.shape[-1]

        def draw_mask(rate: float, width: int) -> _Mask:
            return nn.dropout(array.ones([batch, width], inputs.dtype), rate) if rate else None

        return draw_mask(self.dropout, size), draw_mask(self.recurrent_dropout, self.units)

    def get_dropout_mask_for_cell(self, inputs: Tensor, training: Any, count: int = 1) -> Any:
        """Return a dropout mask of the inputs, or a list of `count` equal ones; None without dropout."""
        mask = (self._held_masks or self.make_dropout_masks(inputs, training))[0]
        return mask if mask is None or count == 1 else [mask] * count

    def get_recurrent_dropout_mask_for_cell(
        self, inputs: Tensor, training: Any, count: int = 1
    ) -> Any:
        """Return a dropout mask of the state, or a list of `count` equal ones; None without dropout."""
        mask = (self._held_masks or self.make_dropout_masks(inputs, training))[1]
        return mask if mask is None or count == 1 else [mask] * count

    def reset_dropout_mask(self) -> None:
        """Draw new dropout masks."""
        self.drop_masks()

    reset_recurrent_dropout_mask = reset_dropout_mask

    def hold_masks(self, inputs: Tensor, training: bool | Tensor | None) -> None:
        """Use the same dropout masks until `drop_masks`."""
        self._held_masks = self.make_dropout_masks(inputs, training)

    def drop_masks(self) -> None:
        """Draw new dropout masks in each step again."""
        self._held_masks = None

    def project(self, inputs: TensorLike, keep: _Mask) -> Tensor:
        """Compute the part of the gates that depends on the inputs [..., features]."""
        raise NotImplementedError

    def advance(self, projected: Tensor, states: _States, keep: _Mask) -> tuple[Tensor, _States]:
        """Compute the output and the next states from the result of `project` and the states."""
        raise NotImplementedError

    @property
    def fused_kind(self) -> str | None:
        """Return the kind of a cell that `run_recurrent_layer` computes, otherwise None."""
        kinds = {SimpleRNNCell: "simple_rnn", LSTMCell: "lstm", GRUCell: "gru"}
        kind = kinds.get(type(self))
        gate = getattr(self, "recurrent_activation", activations.sigmoid)
        if self.activation is not activations.tanh or gate is not activations.sigmoid:
            return None
        return kind if getattr(self, "reset_after", True) else "gru_reset_before"

    def _project_inputs(self, inputs: TensorLike, keep: _Mask, bias: Tensor | None) -> Tensor:
        if keep is not None:
            inputs = inputs * (keep if inputs.ndim == 2 else array.expand_dims(keep, 1))
        product = products.dot(inputs, self.kernel)
        return product if bias is None else product + bias

    def get_config(self) -> Config:
        """Return the configuration."""
        config = {**super().get_config(), "units": self.units}
        config["activation"] = activations.serialize(self.activation)
        if hasattr(self, "recurrent_activation"):
            config["recurrent_activation"] = activations.serialize(self.recurrent_activation)
        flags = ("unit_forget_bias",) if hasattr(self, "unit_forget_bias") else ()
        config["use_bias"] = self.use_bias
        config |= make_weight_config(self, "kernel", "recurrent", "bias", flags=flags)
        config |= {"dropout": self.dropout, "recurrent_dropout": self.recurrent_dropout}
        if hasattr(self, "recurrent_activation"):
            config["implementation"] = self.implementation
        return config


class SimpleRNNCell(GatedCell):
    """Cell of a simple RNN: `activation(inputs @ kernel + state @ recurrent_kernel + bias)`.

    Args:
      units: Size of the output and the state.
      activation: Activation function, or its name.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel.
      recurrent_initializer: Initializer of the recurrent kernel.
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernel.
      recurrent_regularizer: Regularizer of the recurrent kernel.
      bias_regularizer: Regularizer of the bias.
      kernel_constraint: Constraint on the kernel.
      recurrent_constraint: Constraint on the recurrent kernel.
      bias_constraint: Constraint on the bias.
      dropout: Fraction of the inputs to drop in training; all steps share a mask.
      recurrent_dropout: Fraction of the state to drop in training; all steps share a mask.
      **kwargs: Arguments of `Layer`, and `kernel_layout`, `recurrent_layout` and `bias_layout`.

    Input shape:
      (batch, features), and a list of one state (batch, units).

    Output shape:
      (batch, units), and the new state.

    Raises:
      ValueError: If `units` is not a positive integer.

    Example:
      >>> ones = {"kernel_initializer": "ones", "recurrent_initializer": "ones"}
      >>> cell = tf.keras.layers.SimpleRNNCell(1, activation=None, **ones)
      >>> output, states = cell(tf.constant([[2.0, 3.0]]), [tf.constant([[10.0]])])
      >>> output.numpy().tolist()
      [[15.0]]
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
        kernel_constraint: Identifier = None,
        recurrent_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Unpack[CellArguments],
    ) -> None:
        super().__init__(locals(), **kwargs)

    def project(self, inputs: TensorLike, keep: _Mask) -> Tensor:
        """Compute `inputs @ kernel + bias`."""
        return self._project_inputs(inputs, keep, self.bias)

    def advance(self, projected: Tensor, states: _States, keep: _Mask) -> tuple[Tensor, _States]:
        """Compute the output, which is also the next state."""
        state = states[0] if keep is None else states[0] * keep
        output = self.activation(projected + math.matmul(state, self.recurrent_kernel))
        return output, [output]


class GRUCell(GatedCell):
    """Gated recurrent unit (arXiv:1406.1078) with an update gate, a reset gate and a candidate.

    Args:
      units: Size of the output and the state.
      activation: Activation function of the candidate.
      recurrent_activation: Activation function of the gates.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel.
      recurrent_initializer: Initializer of the recurrent kernel.
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernel.
      recurrent_regularizer: Regularizer of the recurrent kernel.
      bias_regularizer: Regularizer of the bias.
      kernel_constraint: Constraint on the kernel.
      recurrent_constraint: Constraint on the recurrent kernel.
      bias_constraint: Constraint on the bias.
      dropout: Fraction of the inputs to drop in training; all steps share a mask.
      recurrent_dropout: Fraction of the state to drop in training; all steps share a mask.
      reset_after: Whether to apply the reset gate after the product with the recurrent kernel, as
        cuDNN does. The bias then has two rows, one for the inputs and one for the state.
      **kwargs: Arguments of `Layer`, and `kernel_layout`, `recurrent_layout` and `bias_layout`.

    Input shape:
      (batch, features), and a list of one state (batch, units).

    Output shape:
      (batch, units), and the new state.

    Raises:
      ValueError: If `units` is not a positive integer.

    Example:
      >>> cell = tf.keras.layers.GRUCell(4)
      >>> output, state = cell(tf.ones([2, 3]), tf.zeros([2, 4]))
      >>> output.shape, cell.state_size
      (TensorShape([2, 4]), 4)
    """

    num_gates = 3

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
        kernel_constraint: Identifier = None,
        recurrent_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
        **kwargs: Unpack[CellArguments],
    ) -> None:
        super().__init__(locals(), **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.reset_after = reset_after

    def _get_bias_shape(self) -> tuple[int, ...]:
        return (2, 3 * self.units) if self.reset_after else (3 * self.units,)

    def project(self, inputs: TensorLike, keep: _Mask) -> Tensor:
        """Compute `inputs @ kernel + bias`."""
        bias = self.bias
        if bias is not None and self.reset_after:
            bias = bias[0]
        return self._project_inputs(inputs, keep, bias)

    def advance(self, projected: Tensor, states: _States, keep: _Mask) -> tuple[Tensor, _States]:
        """Compute the output, which is also the next state."""
        before = states[0]
        state = before if keep is None else before * keep
        projected_update, projected_reset, projected_candidate = array.split(projected, 3, axis=-1)
        kernel: Any = self.recurrent_kernel
        if self.reset_after:
            inner = math.matmul(state, kernel)
            if self.bias is not None:
                inner = inner + self.bias[1]
            update, reset, inner = array.split(inner, 3, axis=-1)
        else:
            gates = math.matmul(state, kernel[:, : 2 * self.units])
            update, reset = array.split(gates, 2, axis=-1)
        update = self.recurrent_activation(projected_update + update)
        reset = self.recurrent_activation(projected_reset + reset)
        if self.reset_after:
            inner = reset * inner
        else:
            inner = math.matmul(reset * state, kernel[:, 2 * self.units :])
        candidate = self.activation(projected_candidate + inner)
        output = update * before + (1.0 - update) * candidate
        return output, [output]

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "reset_after": self.reset_after}


class LSTMCell(GatedCell):
    """Long short-term memory cell with an input gate, a forget gate, a candidate and an output gate.

    The states are the output and the memory (cell state).

    Args:
      units: Size of the output and the states.
      activation: Activation function of candidate and memory.
      recurrent_activation: Activation function of the gates.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel.
      recurrent_initializer: Initializer of the recurrent kernel.
      bias_initializer: Initializer of the bias.
      unit_forget_bias: Whether the bias of the forget gate is initialized to one.
      kernel_regularizer: Regularizer of the kernel.
      recurrent_regularizer: Regularizer of the recurrent kernel.
      bias_regularizer: Regularizer of the bias.
      kernel_constraint: Constraint on the kernel.
      recurrent_constraint: Constraint on the recurrent kernel.
      bias_constraint: Constraint on the bias.
      dropout: Fraction of the inputs to drop in training; all steps share a mask.
      recurrent_dropout: Fraction of the state to drop in training; all steps share a mask.
      **kwargs: Arguments of `Layer`, and `kernel_layout`, `recurrent_layout` and `bias_layout`.

    Input shape:
      (batch, features), and a list of two states (batch, units).

    Output shape:
      (batch, units), and the new states.

    Raises:
      ValueError: If `units` is not a positive integer.

    Example:
      >>> cell = tf.keras.layers.LSTMCell(4)
      >>> output, (hidden, memory) = cell(tf.ones([2, 3]), [tf.zeros([2, 4]), tf.zeros([2, 4])])
      >>> output.shape, memory.shape
      (TensorShape([2, 4]), TensorShape([2, 4]))
    """

    num_gates = 4

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
        kernel_constraint: Identifier = None,
        recurrent_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Unpack[CellArguments],
    ) -> None:
        super().__init__(locals(), **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.unit_forget_bias = unit_forget_bias

    @property
    def state_size(self) -> list[int]:
        """Return the sizes of the states."""
        return [self.units, self.units]

    def _make_bias_initializer(self) -> Callable[..., Any]:
        initializer = super()._make_bias_initializer()
        if not self.unit_forget_bias:
            return initializer

        def initialize(shape: Sequence[int], dtype: DTypeLike | None = None, **_: Any) -> Tensor:
            u = self.units
            parts = [
                initializer((u,), dtype=dtype),
                array.ones((u,), dtype),
                initializer((2 * u,), dtype=dtype),
            ]
            return array.concat([convert_to_tensor(p) for p in parts], 0)

        return initialize

    def project(self, inputs: TensorLike, keep: _Mask) -> Tensor:
        """Compute `inputs @ kernel + bias`."""
        return self._project_inputs(inputs, keep, self.bias)

    def advance(self, projected: Tensor, states: _States, keep: _Mask) -> tuple[Tensor, _States]:
        """Compute the output, and the output and the memory as the next states."""
        before, memory = states
        state = before if keep is None else before * keep
        gates = projected + math.matmul(state, self.recurrent_kernel)
        memory, opening = self._compute_carry_and_output_fused(
            array.split(gates, 4, axis=-1), memory
        )
        output = opening * self.activation(memory)
        return output, [output, memory]

    # Cells that derive from this one call the two methods between other steps.
    def _compute_carry_and_output_fused(
        self, z: Sequence[Tensor], c_tm1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the next memory and the output gate from the four gates before activation."""
        input_gate, forget_gate, candidate, output_gate = z
        memory = self.recurrent_activation(forget_gate) * c_tm1
        memory += self.recurrent_activation(input_gate) * self.activation(candidate)
        return memory, self.recurrent_activation(output_gate)

    def _compute_carry_and_output(
        self, x: Sequence[Tensor], h_tm1: Sequence[Tensor], c_tm1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the next memory and the output gate from the inputs and the states of the four gates."""
        kernels = array.split(self.recurrent_kernel, 4, axis=1)
        gates = [p + math.matmul(h, k) for p, h, k in zip(x, h_tm1, kernels, strict=True)]
        return self._compute_carry_and_output_fused(gates, c_tm1)
