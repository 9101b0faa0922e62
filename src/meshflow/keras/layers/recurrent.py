"""Recurrent layers: a cell run over the time dimension of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.variables.variable import Variable
from meshflow.keras import registry, serialization, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import recurrent_cells as cells
from meshflow.keras.layers import steps as time_steps
from meshflow.keras.layers.gated_cells import GatedCell
from meshflow.ops import array

__all__ = ["RNN"]


class RNN(Layer):
    """Runs a cell over sequences [batch, time, features].

    Args:
      cell: an object with `call(inputs, states) -> (output, states)` and `state_size`, such as
        `LSTMCell`; or a list of them, which are stacked.
      return_sequences: whether the outputs of all steps are returned instead of the last.
      return_state: whether the states after the last step are returned too.
      go_backwards: whether to begin with the last step.
      stateful: whether each batch begins with the states that the one before ended with.
      unroll: whether the step is repeated in compiled programs instead of looped.
      time_major: whether inputs and outputs are [time, batch, features].
      **kwargs: `zero_output_for_mask`: whether masked steps give zeros instead of the output before
        them; and arguments of `Layer`.

    Input shape:
      (batch, time, ...); with `time_major` (time, batch, ...).

    Output shape:
      (batch, output_size); with `return_sequences` (batch, time, output_size); with `return_state` also the
      states of the cell.

    Raises:
      ValueError: for a cell without `call` or `state_size`.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.RNN(tf.keras.layers.SimpleRNNCell(3), return_sequences=True)
      >>> layer(tf.ones([2, 5, 4])).shape
      TensorShape([2, 5, 3])
    """

    # Whether the cell's name is part of its weights' names.
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
        **kwargs: Any,
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
        self._constants_count: int | None = None
        # States between batches belong to no training, so the layer does not track them as weights.
        self._untracked: Any = None

    @property
    def states(self) -> list[Any]:
        """The states kept between batches, as variables; None for each where nothing is kept."""
        count = len(nest.flatten(self._state_sizes))
        return [None] * count if self._untracked is None else nest.flatten(self._untracked)

    @property
    def _state_sizes(self) -> list[Any]:
        sizes = self.cell.state_size
        return list(sizes) if isinstance(sizes, (list, tuple)) else [sizes]

    def build(self, input_shape: Any) -> None:
        """Builds the cell; makes the states of a stateful layer."""
        nested = isinstance(input_shape, dict) or (
            isinstance(input_shape, tuple) and isinstance(input_shape[0], TensorShape)
        )
        shape = nest.flatten(input_shape)[0] if nested else first_shape(input_shape)
        sizes = TensorShape(shape).as_list()
        batch, time = (sizes[1], sizes[0]) if self.time_major else (sizes[0], sizes[1])
        if self.unroll and time is None:
            raise ValueError("Unrolling requires a fixed number of timesteps.")
        if not nested:
            self.input_spec = [InputSpec(shape=(None, None, *sizes[2:]))]

        def of_one_step(shape: Any) -> TensorShape:
            return TensorShape([batch, *TensorShape(shape).as_list()[2:]])

        step_shape = nest.map_structure(of_one_step, input_shape) if nested else of_one_step(shape)
        cells.build_cell(self.cell, step_shape, self._names_cell)
        if self.stateful:
            self._make_states(batch)
        self.built = True

    def _make_states(self, batch: int | None) -> None:
        if batch is None:
            raise ValueError(
                "If a RNN is stateful, it needs to know its batch size. Specify the batch size of your input "
                "tensors: with a Sequential model, pass `batch_input_shape` to the first layer; with the "
                "functional API, pass `batch_shape` to `Input`."
            )
        dtype = self.compute_dtype or settings.floatx()
        zeros = cells.initial_state(self.cell, None, batch, dtype)
        self._untracked = nest.map_structure(
            lambda z: Variable(z, trainable=False, name=f"{self.name}/state"), zeros
        )

    def reset_states(self, states: Any = None) -> None:
        """Sets the states kept between batches.

        Args:
          states: arrays for the states; default zeros.

        Raises:
          AttributeError: when the layer is not stateful.
          ValueError: when the batch size is unknown, or the number or shape of states is wrong.
        """
        if not self.stateful:
            raise AttributeError("Layer must be stateful.")
        if self._untracked is None:
            declared = getattr(self, "_batch_input_shape", (None, None))
            self._make_states(declared[1 if self.time_major else 0])
        own = self.states
        given = [np.zeros(tuple(v.shape)) for v in own] if states is None else nest.flatten(states)
        if len(given) != len(own):
            raise ValueError(
                f"Layer {self.name} expects {len(own)} states, but it received {len(given)} state values. "
                f"States received: {states}"
            )
        for variable, value in zip(own, given, strict=True):
            if tuple(np.shape(value)) != tuple(variable.shape):
                raise ValueError(
                    f"State for layer {self.name} is incompatible: expected shape={tuple(variable.shape)}, found "
                    f"shape={tuple(np.shape(value))}"
                )
            variable.assign(np.asarray(value).astype(variable.dtype.as_numpy_dtype))

    reset_state = reset_states

    def get_initial_state(self, inputs: Any) -> list[Any]:
        """The list of states before the first step, for inputs [batch, time, features]."""
        one = nest.flatten(inputs)[0]
        batch = array.shape(one)[1 if self.time_major else 0]
        first = cells.initial_state(self.cell, None, batch, one.dtype)
        return list(first) if isinstance(first, (list, tuple)) else [first]

    def __call__(
        self, inputs: Any, initial_state: Any = None, constants: Any = None, **kwargs: Any
    ) -> Any:
        """Runs the layer.

        Args:
          inputs: sequences; a list of sequences, initial states and constants; or a tuple or
            dictionary of sequences, for a cell that takes one.
          initial_state: states before the first step.
          constants: tensors that every step sees.
          **kwargs: `training` and `mask`.
        """
        if isinstance(inputs, list) and len(inputs) > 1:
            if self._constants_count:
                constants = inputs[-self._constants_count :]
                inputs = inputs[: -self._constants_count]
            initial_state = inputs[1:] or initial_state
            inputs = inputs[0]
        elif isinstance(inputs, list):
            inputs = inputs[0]
        if constants is not None:
            constants = nest.flatten(constants)
            self._constants_count = len(constants)
            kwargs["constants"] = constants
        if initial_state is not None:
            kwargs["initial_state"] = self._checked_states(initial_state)
        was_built = self.built
        outputs = super().__call__(inputs, **kwargs)
        more = nest.flatten([kwargs.get(name) for name in ("initial_state", "constants")])
        if not was_built and any(isinstance(value, KerasTensor) for value in more):
            # Symbolic states are inputs to Keras, which notes their shapes.
            self._build_input_shape = [v.shape for v in (inputs, *more) if v is not None]
        return outputs

    def _checked_states(self, states: Any) -> Any:
        given = list(states) if isinstance(states, (list, tuple)) else [states]
        expected = len(nest.flatten(self._state_sizes))
        if len(nest.flatten(given)) != expected:
            raise ValueError(
                f"Layer {self.name} has {expected} states but was passed {len(nest.flatten(given))} initial states. "
                f"Received: initial_state={states}"
            )
        return given

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        training: Any = None,
        initial_state: Any = None,
        constants: Any = None,
    ) -> Any:
        """Runs the cell over the sequences.

        Args:
          inputs: sequences [batch, time, features].
          mask: booleans [batch, time]; steps where it is False are left out.
          training: whether dropout is applied.
          initial_state: states before the first step; default zeros, or those of the batch before.
          constants: tensors that every step sees.

        Returns:
          The output [batch, units] (or outputs [batch, time, units]); with `return_state` a list of it
          and the states.
        """
        mask = nest.flatten(mask)[0] if isinstance(mask, (list, tuple)) else mask
        states = self._first_states(inputs, initial_state)
        first = nest.map_structure(lambda x: x[0] if self.time_major else x[:, 0], inputs)
        sequences, step = self._step(inputs, first, constants, training)
        try:
            last, outputs, after = time_steps.rnn(
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
        if self.stateful:
            for variable, value in zip(self.states, nest.flatten(after), strict=True):
                variable.assign(value)
        result = outputs if self.return_sequences else last
        return [result, *after] if self.return_state else result

    def _first_states(self, inputs: Any, given: Any) -> list[Any]:
        if given is not None and not all(s is None for s in nest.flatten(given)):
            hint = nest.flatten(inputs)[0].dtype
            flat = [convert_to_tensor(s, dtype_hint=hint) for s in nest.flatten(given)]
        elif self.stateful:
            flat = [v.value() for v in self.states]
        else:
            flat = nest.flatten(self.get_initial_state(inputs))
        return list(nest.pack_sequence_as(self._state_sizes, flat))

    def _step(self, inputs: Any, first: Any, constants: Any, training: Any) -> tuple[Any, Any]:
        """The sequences to loop over, and what is done in each step."""
        cell = self.cell
        if isinstance(cell, GatedCell) and type(cell).call is GatedCell.call:
            keep = cell.masks(first, training)
            time_keep = keep[0]
            if time_keep is not None and self.time_major:
                inputs, time_keep = inputs * time_keep, None
            with cell._reading_weights():
                projected = cell.project(inputs, time_keep)

            def advance(x: Any, states: Any) -> Any:
                with cell._reading_weights():
                    return cell.advance(x, list(states), keep[1])

            return projected, advance
        if hasattr(cell, "hold_masks"):
            cell.hold_masks(first, training)
        single = not isinstance(cell.state_size, (list, tuple))
        count = len(self._state_sizes)

        def step(x: Any, states: Any) -> Any:
            own = list(states[:count])
            nested = isinstance(cell, cells.StackedRNNCells) or not single
            given = tuple(own) if nested else own
            output, after = cells.call_cell(cell, x, given, constants, training)
            return output, list(after) if isinstance(after, (list, tuple)) else [after]

        return inputs, step

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output; with `return_state` a list with the states' shapes."""
        sizes = TensorShape(first_shape(input_shape)).as_list()
        batch, time = (sizes[1], sizes[0]) if self.time_major else (sizes[0], sizes[1])
        own = TensorShape(cells._as_shape(cells.output_size(self.cell))).as_list()
        shape = TensorShape([batch, *own])
        if self.return_sequences:
            shape = TensorShape([time, batch, *own] if self.time_major else [batch, time, *own])
        if not self.return_state:
            return shape
        states = nest.flatten(self._state_sizes)
        return [
            shape,
            *(TensorShape([batch, *TensorShape(cells._as_shape(s)).as_list()]) for s in states),
        ]

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the output: the input's where sequences are returned."""
        mask = nest.flatten(mask)[0] if isinstance(mask, (list, tuple)) else mask
        own = mask if self.return_sequences else None
        if not self.return_state:
            return own
        return [own, *[None] * len(nest.flatten(self._state_sizes))]

    def _run_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "unroll": self.unroll,
            "time_major": self.time_major,
        }
        if self._constants_count is not None:
            config["num_constants"] = self._constants_count
        if self.zero_output_for_mask:
            config["zero_output_for_mask"] = True
        return config

    def get_config(self) -> dict[str, Any]:
        """The configuration, with the cell's."""
        return {
            **super().get_config(),
            **self._run_config(),
            "cell": serialization.serialize(self.cell),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The layer with a configuration."""
        config = dict(config)
        count = config.pop("num_constants", None)
        if "cell" in config:
            cell = registry.LAYERS.deserialize(config.pop("cell"), custom_objects)
            layer = cls(cell, **config)
        else:
            layer = cls(**config)
        layer._constants_count = count
        return layer


def first_shape(input_shape: Any) -> Any:
    """The sequences' shape: the shape given, or the first of a list of shapes."""
    if isinstance(input_shape, (list, tuple)) and isinstance(
        input_shape[0], (list, tuple, TensorShape)
    ):
        return input_shape[0]
    return input_shape
