"""`RNN`: runs a cell over the time axis of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras import registry, serialization, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import recurrent_cells as cells
from meshflow.keras.layers import rnn_loop as time_steps
from meshflow.keras.layers.gated_cells import GatedCell
from meshflow.keras.layers.keyword_arguments import RNNArguments
from meshflow.ops import array, math
from meshflow.ops.nn.recurrent import run_recurrent_layer
from meshflow.ops.ragged import RaggedTensor

__all__ = ["RNN"]


class RNN(Layer):
    """Layer that runs a cell over sequences [batch, time, features].

    Args:
      cell: Object with `call(inputs, states) -> (output, states)` and `state_size`, such as
        `LSTMCell`; or a list of them, which are stacked.
      return_sequences: Whether to return the outputs of all steps instead of the last.
      return_state: Whether to return the states after the last step as well.
      go_backwards: Whether to start with the last step.
      stateful: Whether the initial states of a batch are the final states of the last one.
      unroll: Whether compiled programs contain an unrolled loop.
      time_major: Whether inputs and outputs are [time, batch, features].
      **kwargs: `zero_output_for_mask`, whether the output of masked steps is zero instead of that
        of the step before; arguments of `Layer`.

    Input shape:
      (batch, time, ...); with `time_major` (time, batch, ...).

    Output shape:
      (batch, output_size); with `return_sequences` (batch, time, output_size); with `return_state`
      also the states of the cell.

    Raises:
      ValueError: If the cell has no `call` or `state_size`.

    Example:
      >>> layer = tf.keras.layers.RNN(tf.keras.layers.SimpleRNNCell(3), return_sequences=True)
      >>> layer(tf.ones([2, 5, 4])).shape
      TensorShape([2, 5, 3])
    """

    # Whether the names of weights contain the name of the cell.
    _names_cell = True

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        time_major: bool = False,
        **kwargs: Unpack[RNNArguments],
    ) -> None:
        if isinstance(cell, (list, tuple)):
            cell = cells.StackedRNNCells(cell)
        if "call" not in dir(cell):
            raise ValueError(
                f"Argument `cell` should have a `call` method. The RNN was passed: cell={cell}"
            )
        if "state_size" not in dir(cell):
            raise ValueError(
                "The RNN cell should have a `state_size` attribute (tuple of integers, one integer per RNN state). "
                f"Received: cell={cell}"
            )
        self.zero_output_for_mask = kwargs.pop("zero_output_for_mask", False)
        super().__init__(**kwargs)
        self.cell = cell
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.unroll = unroll
        self.time_major = time_major
        self.supports_masking = True
        self._num_constants: int | None = None
        # Cells of users may have no `output_size`.
        self._traced_shape = not type(cell).__module__.startswith("meshflow.")
        # The layer does not track states between batches, because they are not weights.
        self._untracked: Any = None

    @property
    def states(self) -> list[Any]:
        """Return the variables that hold states between batches, or None for each state."""
        count = len(nest.flatten(self._state_sizes))
        return [None] * count if self._untracked is None else nest.flatten(self._untracked)

    @property
    def _state_sizes(self) -> list[Any]:
        sizes = self.cell.state_size
        return list(sizes) if isinstance(sizes, (list, tuple)) else [sizes]

    def build(self, input_shape: PyTree) -> None:
        """Build the cell, and create the states of a stateful layer."""
        is_nested = isinstance(input_shape, dict) or (
            isinstance(input_shape, tuple) and isinstance(input_shape[0], TensorShape)
        )
        shape = nest.flatten(input_shape)[0] if is_nested else get_sequence_shape(input_shape)
        sizes = TensorShape(shape).as_list()
        batch, time = (sizes[1], sizes[0]) if self.time_major else (sizes[0], sizes[1])
        if self.unroll and time is None:
            raise ValueError("Unrolling requires a fixed number of timesteps.")
        if not is_nested:
            self.input_spec = [InputSpec(shape=(None, None, *sizes[2:]))]

        def remove_time(shape: ShapeLike) -> TensorShape:
            return TensorShape([batch, *TensorShape(shape).as_list()[2:]])

        step_shape = (
            nest.map_structure(remove_time, input_shape) if is_nested else remove_time(shape)
        )
        cells.build_cell(self.cell, step_shape, self._names_cell)
        if self.stateful:
            self._make_states(batch)
        self.built = True

    def _make_states(self, batch: int | None) -> None:
        if batch is None:
            raise ValueError(
                f"{type(self).__name__}(name={self.name!r}): If a RNN is stateful, it needs to know its batch size. Specify the batch size of your input "
                "tensors: with a Sequential model, pass `batch_input_shape` to the first layer; with the "
                "functional API, pass `batch_shape` to `Input`."
            )
        dtype = self.compute_dtype or settings.floatx()
        zeros = cells.make_initial_state(self.cell, None, batch, dtype)
        self._untracked = nest.map_structure(
            lambda z: Variable(z, trainable=False, name=f"{self.name}/state"), zeros
        )

    def reset_states(self, states: PyTree = None) -> None:
        """Set the states that are kept between batches.

        Args:
          states: Arrays for the states; default zeros.

        Raises:
          AttributeError: If the layer is not stateful.
          ValueError: If the batch size is unknown, or if the number or a shape of the states is
            wrong.
        """
        if not self.stateful:
            raise AttributeError("Layer must be stateful.")
        if self._untracked is None:
            declared = getattr(self, "_batch_input_shape", (None, None))
            self._make_states(declared[1 if self.time_major else 0])
        variables = self.states
        values = (
            [np.zeros(tuple(v.shape)) for v in variables]
            if states is None
            else nest.flatten(states)
        )
        if len(values) != len(variables):
            raise ValueError(
                f"Layer {self.name} expects {len(variables)} states, but it received {len(values)} state values. "
                f"States received: {states}"
            )
        for variable, value in zip(variables, values, strict=True):
            if tuple(np.shape(value)) != tuple(variable.shape):
                raise ValueError(
                    f"State for layer {self.name} is incompatible: expected shape={tuple(variable.shape)}, found "
                    f"shape={tuple(np.shape(value))}"
                )
            variable.assign(np.asarray(value).astype(variable.dtype.as_numpy_dtype))

    reset_state = reset_states

    def get_initial_state(self, inputs: PyTree) -> list[Any]:
        """Return the states before the first step, for inputs [batch, time, features]."""
        tensor = nest.flatten(inputs)[0]
        batch = array.shape(tensor)[1 if self.time_major else 0]
        first = cells.make_initial_state(self.cell, None, batch, tensor.dtype)
        return list(first) if isinstance(first, (list, tuple)) else [first]

    @hide_frames_of_errors
    def __call__(
        self,
        inputs: PyTree,
        initial_state: PyTree = None,
        constants: PyTree = None,
        **kwargs: Any,
    ) -> Tensor:
        """Run the layer.

        Args:
          inputs: Sequences; a list of sequences, initial states and constants; or a tuple or
            dictionary of sequences, for a cell with nested inputs.
          initial_state: States before the first step.
          constants: Tensors that are passed to every step.
          **kwargs: `training` and `mask`.
        """
        if isinstance(inputs, list) and len(inputs) > 1:
            if self._num_constants:
                constants = inputs[-self._num_constants :]
                inputs = inputs[: -self._num_constants]
            initial_state = inputs[1:] or initial_state
            inputs = inputs[0]
        elif isinstance(inputs, list):
            inputs = inputs[0]
        if constants is not None:
            constants = nest.flatten(constants)
            self._num_constants = len(constants)
            kwargs["constants"] = constants
        if initial_state is not None:
            kwargs["initial_state"] = self._check_states(initial_state)
        was_built = self.built
        outputs = super().__call__(inputs, **kwargs)
        further_inputs = nest.flatten([kwargs.get(name) for name in ("initial_state", "constants")])
        if not was_built and any(isinstance(value, KerasTensor) for value in further_inputs):
            # Symbolic states are inputs of the layer in Keras, which stores their shapes.
            self._build_input_shape = [v.shape for v in (inputs, *further_inputs) if v is not None]
        return outputs

    def _check_states(self, states: PyTree) -> list[Any]:
        state_list = list(states) if isinstance(states, (list, tuple)) else [states]
        expected = len(nest.flatten(self._state_sizes))
        if len(nest.flatten(state_list)) != expected:
            raise ValueError(
                f"Layer {self.name} has {expected} states but was passed {len(nest.flatten(state_list))} initial states. "
                f"Received: initial_state={states}"
            )
        return state_list

    def call(
        self,
        inputs: PyTree,
        mask: PyTree = None,
        training: Any = None,
        initial_state: PyTree = None,
        constants: Sequence[Tensor] | None = None,
    ) -> PyTree:
        """Run the cell over the sequences.

        Args:
          inputs: Sequences [batch, time, features].
          mask: Bool tensor [batch, time]; steps where it is False are skipped.
          training: Whether to apply dropout.
          initial_state: States before the first step; default zeros, or those of the last batch.
          constants: Tensors that are passed to every step.

        Returns:
          The last output [batch, units] or all outputs [batch, time, units]; with `return_state`, a
          list of it and the states.
        """
        if isinstance(inputs, RaggedTensor):
            lengths = inputs.row_lengths()
            dense = inputs.to_tensor()
            mask = array.sequence_mask(lengths, dense.shape[1])
            results = self.call(dense, mask, training, initial_state, constants)
            if not self.return_sequences:
                return results
            first, *rest = results if isinstance(results, list) else [results]
            if self.go_backwards:
                # The padding of reversed sequences precedes their steps.
                rows = RaggedTensor.from_tensor(array.reverse(first, [1]), lengths)[:, ::-1]
            else:
                rows = RaggedTensor.from_tensor(first, lengths)
            return [rows, *rest] if rest else rows
        mask = nest.flatten(mask)[0] if isinstance(mask, (list, tuple)) else mask
        states = self._get_first_states(inputs, initial_state)
        first = nest.map_structure(lambda x: x[0] if self.time_major else x[:, 0], inputs)
        if self._is_fused(inputs, states):
            result, *final_states = self._run_fused(inputs, first, states, mask, training)
        else:
            sequences, step = self._prepare_step(inputs, first, constants, training)
            try:
                last, outputs, final_states = time_steps.rnn(
                    step,
                    sequences,
                    states,
                    go_backwards=self.go_backwards,
                    mask=mask,
                    constants=constants if not isinstance(self.cell, GatedCell) else None,
                    unroll=self.unroll,
                    time_major=self.time_major,
                    zero_output_for_mask=self.zero_output_for_mask,
                    return_all_outputs=self.return_sequences,
                )
            finally:
                if hasattr(self.cell, "drop_masks"):
                    self.cell.drop_masks()
            result = outputs if self.return_sequences else last
        if self.stateful:
            for variable, value in zip(self.states, nest.flatten(final_states), strict=True):
                variable.assign(value)
        return [result, *final_states] if self.return_state else result

    # Subclasses of libraries call the following two methods in `call`, as those of Keras do.

    def _maybe_reset_cell_dropout_mask(self, cell: Layer) -> None:
        for reset in ("reset_dropout_mask", "reset_recurrent_dropout_mask"):
            if hasattr(cell, reset):
                getattr(cell, reset)()

    def _process_inputs(
        self, inputs: PyTree, initial_state: PyTree, constants: Sequence[Tensor] | None
    ) -> tuple[PyTree, list[Any], Sequence[Tensor] | None]:
        return inputs, self._get_first_states(inputs, initial_state), constants

    def _get_first_states(self, inputs: PyTree, initial_state: PyTree) -> list[Any]:
        if initial_state is not None and not all(s is None for s in nest.flatten(initial_state)):
            hint = nest.flatten(inputs)[0].dtype
            flat = [convert_to_tensor(s, dtype_hint=hint) for s in nest.flatten(initial_state)]
        elif self.stateful:
            flat = [v.value() for v in self.states]
            self._check_batch_size(nest.flatten(inputs)[0].shape, flat[0].shape)
        else:
            flat = nest.flatten(self.get_initial_state(inputs))
        return list(nest.pack_sequence_as(self._state_sizes, flat))

    def _check_batch_size(self, shape: TensorShape, state_shape: TensorShape) -> None:
        rows = shape[1 if self.time_major else 0]
        if rows is not None and rows != state_shape[0]:
            raise InvalidArgumentError(
                f"{type(self).__name__}(name={self.name!r}): expected {state_shape[0]} rows, the batch size of the states "
                f"of this stateful layer, got {rows}. Pass batches of this size, or use stateful=False. The options "
                "zero, micro_batches and pipeline of a MeshStrategy split batches; with a stateful layer, use rules only."
            )

    def _is_fused(self, inputs: PyTree, states: Sequence[Any]) -> bool:
        """Check whether one op computes all steps."""
        if self.unroll or not isinstance(self.cell, GatedCell) or self.cell.fused_kind is None:
            return False
        is_sequence = isinstance(inputs, Tensor) and inputs.ndim == 3
        return (
            is_sequence
            and inputs.shape[0 if self.time_major else 1] != 0
            and all(s.dtype == inputs.dtype and s.shape[-1] == self.cell.units for s in states)
        )

    def _run_fused(
        self, inputs: Tensor, first: Tensor, states: list[Tensor], mask: Any, training: Any
    ) -> list[Tensor]:
        """Run all steps by one op; return the output and the states."""
        cell = self.cell
        input_keep, keep = cell.make_dropout_masks(first, training)
        if mask is not None:
            mask = math.cast(convert_to_tensor(mask), "bool")
            mask = array.squeeze(mask, -1) if mask.ndim == 3 else mask
        if input_keep is not None:
            inputs = inputs * (input_keep if self.time_major else array.expand_dims(input_keep, 1))
        with cell._autocast_scope():
            return run_recurrent_layer(
                inputs,
                cell.kernel,
                cell.recurrent_kernel,
                states,
                cell.bias,
                mask,
                keep,
                cell.fused_kind,
                bool(self.go_backwards),
                bool(self.time_major),
                bool(self.return_sequences),
                bool(self.zero_output_for_mask),
            )

    def _prepare_step(
        self, inputs: PyTree, first: PyTree, constants: Sequence[Tensor] | None, training: Any
    ) -> tuple[PyTree, Callable[..., tuple[Any, list[Any]]]]:
        """Return the sequences to loop over and the function for one step."""
        cell = self.cell
        if isinstance(cell, GatedCell) and type(cell).call is GatedCell.call:
            masks = cell.make_dropout_masks(first, training)
            input_mask = masks[0]
            if input_mask is not None and self.time_major:
                inputs, input_mask = inputs * input_mask, None
            with cell._autocast_scope():
                projected = cell.project(inputs, input_mask)

            def advance(x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
                with cell._autocast_scope():
                    return cell.advance(x, list(states), masks[1])

            return projected, advance
        if hasattr(cell, "hold_masks"):
            cell.hold_masks(first, training)
        is_single_state = not isinstance(cell.state_size, (list, tuple))
        count = len(self._state_sizes)

        def step(x: PyTree, states: Sequence[Any]) -> tuple[Any, list[Any]]:
            own = list(states[:count])
            is_nested = isinstance(cell, cells.StackedRNNCells) or not is_single_state
            cell_states = tuple(own) if is_nested else own
            output, after = cells.call_cell(cell, x, cell_states, constants, training)
            return output, list(after) if isinstance(after, (list, tuple)) else [after]

        return inputs, step

    def compute_output_shape(self, input_shape: PyTree) -> PyTree:
        """Compute the shape of the output; with `return_state`, also those of the states."""
        sizes = TensorShape(get_sequence_shape(input_shape)).as_list()
        batch, time = (sizes[1], sizes[0]) if self.time_major else (sizes[0], sizes[1])
        output_sizes = TensorShape(cells.as_shape(cells.get_output_size(self.cell))).as_list()
        shape = TensorShape([batch, *output_sizes])
        if self.return_sequences:
            shape = TensorShape(
                [time, batch, *output_sizes] if self.time_major else [batch, time, *output_sizes]
            )
        if not self.return_state:
            return shape
        states = nest.flatten(self._state_sizes)
        return [
            shape,
            *(TensorShape([batch, *TensorShape(cells.as_shape(s)).as_list()]) for s in states),
        ]

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the input if sequences are returned, else None."""
        mask = nest.flatten(mask)[0] if isinstance(mask, (list, tuple)) else mask
        output_mask = mask if self.return_sequences else None
        if not self.return_state:
            return output_mask
        return [output_mask, *[None] * len(nest.flatten(self._state_sizes))]

    def _get_rnn_config(self) -> Config:
        config: Config = {
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "unroll": self.unroll,
            "time_major": self.time_major,
        }
        if self._num_constants is not None:
            config["num_constants"] = self._num_constants
        if self.zero_output_for_mask:
            config["zero_output_for_mask"] = True
        return config

    def get_config(self) -> Config:
        """Return the configuration, which contains that of the cell."""
        return {
            **super().get_config(),
            **self._get_rnn_config(),
            "cell": serialization.serialize(self.cell),
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create the layer from its configuration."""
        config = dict(config)
        count = config.pop("num_constants", None)
        if "cell" in config:
            cell = registry.LAYERS.deserialize(config.pop("cell"), custom_objects)
            layer = cls(cell, **config)
        else:
            layer = cls(**config)
        layer._num_constants = count
        return layer


def get_sequence_shape(input_shape: PyTree) -> PyTree:
    """Return the shape of the sequences: the argument, or the first of a list of shapes."""
    if isinstance(input_shape, (list, tuple)) and isinstance(
        input_shape[0], (list, tuple, TensorShape)
    ):
        return input_shape[0]
    return input_shape
