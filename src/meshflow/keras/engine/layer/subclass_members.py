"""Methods of layers that subclasses and tools for TensorFlow call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.variables.variable import Variable
from meshflow.keras.engine.symbolic.call_signature import CallSignature, get_call_signature
from meshflow.keras.mixed_precision import policy as policies

if TYPE_CHECKING:
    from collections.abc import Iterator


class SubclassMembers:
    """Mix-in of `Layer` with methods that are private in TensorFlow, or part of its saving protocol."""

    if TYPE_CHECKING:
        call: Callable[..., Any]
        trainable: bool
        _dtype_policy: policies.Policy

        def _flatten_layers(
            self, recursive: bool = True, include_self: bool = True
        ) -> Iterator[Any]: ...

        def _list_own_variables(self, trainable: bool) -> list[Variable]: ...

    # Names by which tools count the uses of layers and models.
    _instrumented_keras_api = True
    _instrumented_keras_layer_class = True
    _instrumented_keras_model_class = False

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Write the variables of the layer, except those of sublayers, to a dictionary.

        Args:
          store: Arrays by name; the names are indices.
        """
        variables = [*self._trainable_weights, *self._non_trainable_weights]
        store.update({str(i): np.asarray(v.numpy()) for i, v in enumerate(variables)})

    def load_own_variables(self, store: Mapping[str, np.ndarray]) -> None:
        """Read the variables that `save_own_variables` wrote.

        Args:
          store: Arrays by name.

        Raises:
          ValueError: If the number of arrays differs.
        """
        variables = [*self._trainable_weights, *self._non_trainable_weights]
        if len(store) != len(variables):
            raise ValueError(
                f"Layer '{getattr(self, 'name', '')}' expected {len(variables)} variables, but received {len(store)} "
                f"variables during loading. Expected: {[v.name for v in variables]}"
            )
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])

    def finalize_state(self) -> None:
        """Do nothing: the state of a layer is always complete."""

    @property
    def _trainable_weights(self) -> list[Variable]:
        return self._list_own_variables(True)

    @property
    def _non_trainable_weights(self) -> list[Variable]:
        return self._list_own_variables(False)

    @property
    def _self_tracked_trackables(self) -> list[Any]:
        """Return the sublayers among the attributes."""
        return list(self._flatten_layers(recursive=False, include_self=False))

    @property
    def _updates(self) -> list[Any]:
        """Return an empty list, because assignments take effect immediately."""
        return []

    @property
    def _call_spec(self) -> CallSignature:
        """Return the parameters of `call`."""
        return get_call_signature(type(self))

    @property
    def _call_fn_args(self) -> list[str]:
        """Return the names of the arguments of `call`."""
        return list(inspect.signature(self.call).parameters)

    @property
    def _expects_training_arg(self) -> bool:
        return "training" in self._call_fn_args

    @property
    def _expects_mask_arg(self) -> bool:
        return "mask" in self._call_fn_args

    def _set_dtype_policy(self, dtype: object) -> None:
        """Set the dtype policy of the layer."""
        self._dtype_policy = policies.get(dtype)

    def _get_trainable_state(self) -> dict[Any, bool]:
        """Return whether the layer and each of its sublayers is trainable."""
        return {layer: layer.trainable for layer in self._flatten_layers()}

    def _set_trainable_state(self, trainable_state: Mapping[Any, bool]) -> None:
        """Restore the result of `_get_trainable_state`."""
        for layer in self._flatten_layers():
            if layer in trainable_state:
                layer.trainable = trainable_state[layer]
