"""`Bidirectional`: recurrent layers that process sequences in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.environment.types import Config, PyTree
from meshflow.keras import registry, serialization
from meshflow.keras.engine.layer.base_layer import Layer, build_sublayer
from meshflow.keras.engine.layer.keywords import copy_layouts
from meshflow.keras.engine.layer.layer_arguments import WrapperArguments
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers import merging
from meshflow.keras.layers.recurrent import get_sequence_shape
from meshflow.keras.layers.wrappers import Wrapper
from meshflow.ops import array

__all__ = ["Bidirectional"]

_MERGE_FUNCTIONS = {
    "sum": merging.add,
    "mul": merging.multiply,
    "ave": merging.average,
    "concat": merging.concatenate,
}


class Bidirectional(Wrapper):
    """Recurrent layer that processes sequences in both directions and merges the outputs.

    Args:
      layer: Recurrent layer such as `LSTM`, of which two copies are created.
      merge_mode: 'concat', 'sum', 'mul', 'ave', or None for both outputs as a list.
      weights: Initial weights of both layers.
      backward_layer: Layer for the backward direction, if its configuration differs.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, time, ...).

    Output shape:
      The output shape of the layer, with twice the features for 'concat', or a list of two for
      None.

    Raises:
      ValueError: For an object that is not a layer, an unknown `merge_mode`, or two layers that
        have the same direction or return different outputs.

    Example:
      >>> tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(4))(tf.ones([2, 5, 3])).shape
      TensorShape([2, 8])
    """

    def __init__(
        self,
        layer: Layer,
        merge_mode: Literal["sum", "mul", "concat", "ave"] | None = "concat",
        weights: Sequence[Any] | None = None,
        backward_layer: Layer | None = None,
        **kwargs: Unpack[WrapperArguments],
    ) -> None:
        for candidate in (layer, backward_layer):
            if candidate is not None and not isinstance(candidate, Layer):
                raise ValueError(
                    "Please initialize `Bidirectional` layer with a `tf.keras.layers.Layer` instance. Received: "
                    f"{candidate}"
                )
        if merge_mode not in (*_MERGE_FUNCTIONS, None):
            raise ValueError(
                f'Invalid merge mode. Received: {merge_mode}. Merge mode should be one of {{"sum", "mul", "ave", '
                '"concat", None}'
            )
        super().__init__(layer, **kwargs)
        # The argument is a template only, so its weights are not tracked.
        del self.layer
        self._untracked = layer
        self._has_explicit_backward_layer = backward_layer is not None
        self.merge_mode = merge_mode
        self.forward_layer = _clone_layer(layer, f"forward_{layer.name}", layer.go_backwards)  # type: ignore[attr-defined]
        if backward_layer is None:
            backward = _clone_layer(layer, f"backward_{layer.name}", not layer.go_backwards)  # type: ignore[attr-defined]
        else:
            backward = backward_layer
            backward._name = f"backward_{backward.name}"
        self.backward_layer = backward
        copy_layouts(layer, self.forward_layer)
        if backward_layer is None:
            copy_layouts(layer, backward)
        self._check_layers()
        for direction in (self.forward_layer, self.backward_layer):
            # In a direction that repeats its last output, merged sequences would combine outputs of
            # different steps.
            direction.zero_output_for_mask = direction.return_sequences
        if weights:
            half = len(weights) // 2
            self.forward_layer._initial_weights = weights[:half]
            self.backward_layer._initial_weights = weights[half:]
        self.supports_masking = True
        self.input_spec = layer.input_spec
        self.stateful = layer.stateful

    def __getattr__(self, name: str) -> Any:
        if name == "layer" and "_untracked" in self.__dict__:
            return self.__dict__["_untracked"]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check_layers(self) -> None:
        forward, backward = self.forward_layer, self.backward_layer
        if forward.go_backwards == backward.go_backwards:
            raise ValueError(
                "Forward layer and backward layer should have different `go_backwards` value. "
                f"forward_layer.go_backwards = {forward.go_backwards}, "
                f"backward_layer.go_backwards = {backward.go_backwards}"
            )
        for name in ("stateful", "return_sequences", "return_state"):
            forward_value, backward_value = getattr(forward, name), getattr(backward, name)
            if forward_value != backward_value:
                raise ValueError(
                    "Forward layer and backward layer are expected to have the same value for attribute "
                    f'"{name}", got "{forward_value}" for forward layer and "{backward_value}" for backward layer'
                )

    @property
    def return_sequences(self) -> bool:
        """Return whether the layer returns the outputs of all steps instead of the last."""
        return self.forward_layer.return_sequences

    @property
    def return_state(self) -> bool:
        """Return whether the layer returns the states as well."""
        return self.forward_layer.return_state

    def build(self, input_shape: PyTree = None) -> None:
        """Build both layers."""
        shape = get_sequence_shape(input_shape)
        for layer in (self.forward_layer, self.backward_layer):
            build_sublayer(layer, KerasTensor(TensorSpec(shape, self.compute_dtype)))
        self.built = True

    @hide_frames_of_errors
    def __call__(
        self,
        inputs: PyTree,
        initial_state: PyTree = None,
        constants: Sequence[Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Run both layers.

        Args:
          inputs: Sequences, or a list of sequences and initial states.
          initial_state: States of the forward layer, followed by those of the backward layer.
          constants: Tensors that are passed to every step.
          **kwargs: `training` and `mask`.
        """
        if isinstance(inputs, (list, tuple)):
            inputs, states = inputs[0], list(inputs[1:])
            initial_state = states or initial_state
        if initial_state is not None:
            initial_state = [initial_state] if is_tensor(initial_state) else list(initial_state)
            if len(initial_state) % 2:
                raise ValueError(
                    "When passing `initial_state` to a Bidirectional RNN, the state should be a list containing "
                    f"the states of the underlying RNNs. Received: {initial_state}"
                )
            kwargs["initial_state"] = initial_state
        if constants is not None:
            kwargs["constants"] = constants
        return super().__call__(inputs, **kwargs)

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        training: Any = None,
        initial_state: PyTree = None,
        constants: Sequence[Tensor] | None = None,
    ) -> PyTree:
        """Compute the merged outputs, and with `return_state` the states of both layers.

        Args:
          inputs: Sequences [batch, time, features].
          mask: Bool tensor [batch, time]; steps where it is False are skipped.
          training: Whether to apply dropout.
          initial_state: States of the forward layer, followed by those of the backward layer.
          constants: Tensors that are passed to every step.
        """
        half = len(initial_state) // 2 if initial_state else 0
        states = (initial_state[:half], initial_state[half:]) if half else (None, None)
        results = []
        for layer, initial in zip((self.forward_layer, self.backward_layer), states, strict=True):
            arguments = {"initial_state": initial, "constants": constants, "training": training}
            options = {k: v for k, v in arguments.items() if v is not None}
            results.append(layer(inputs, mask=mask, **options))
        final_states: list[Any] = []
        if self.return_state:
            final_states = [*results[0][1:], *results[1][1:]]
            results = [r[0] for r in results]
        forward, backward = results
        if self.return_sequences:
            time = 0 if getattr(self.forward_layer, "time_major", False) else 1
            backward = array.reverse(backward, [time])
        merged = [forward, backward]
        if self.merge_mode is not None:
            merged = [_MERGE_FUNCTIONS[self.merge_mode](merged)]
        return [*merged, *final_states] if final_states or self.merge_mode is None else merged[0]

    def reset_states(self) -> None:
        """Reset the states of stateful layers to zeros."""
        self.forward_layer.reset_states()
        self.backward_layer.reset_states()

    def compute_output_shape(self, input_shape: PyTree) -> PyTree:
        """Compute the shape of the output, or a list that contains the shapes of states."""
        shapes = self.forward_layer.compute_output_shape(input_shape)
        states: list[Any] = []
        if self.return_state:
            states, shapes = shapes[1:] * 2, shapes[0]
        if self.merge_mode == "concat":
            sizes = shapes.as_list()
            outputs = [TensorShape([*sizes[:-1], 2 * sizes[-1]])]
        else:
            outputs = [shapes] * (2 if self.merge_mode is None else 1)
        return [*outputs, *states] if states or len(outputs) > 1 else outputs[0]

    def compute_mask(self, inputs: PyTree, mask: PyTree = None) -> PyTree:
        """Return the mask of the input if sequences are returned, else None."""
        mask = nest.flatten(mask)[0] if isinstance(mask, (list, tuple)) else mask
        output_mask = mask if self.return_sequences else None
        outputs = [output_mask] * (2 if self.merge_mode is None else 1)
        states = [None] * (2 * len(self.forward_layer._state_sizes)) if self.return_state else []
        return [*outputs, *states] if states or len(outputs) > 1 else outputs[0]

    def get_config(self) -> Config:
        """Return the configuration, which contains those of the layers."""
        config = {**super().get_config(), "merge_mode": self.merge_mode}
        if self._has_explicit_backward_layer:
            backward: Any = serialization.serialize(self.backward_layer)
            backward["config"]["name"] = backward["config"]["name"].removeprefix("backward_")
            config["backward_layer"] = backward
        return config

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create the layer from its configuration."""
        config = dict(config)
        if config.get("backward_layer") is not None:
            config["backward_layer"] = registry.LAYERS.deserialize(
                config["backward_layer"], custom_objects
            )
        return super().from_config(config, custom_objects)


def _clone_layer(layer: Any, name: str, go_backwards: bool) -> Any:
    config = {**layer.get_config(), "name": name, "go_backwards": go_backwards}
    return type(layer).from_config(config)
