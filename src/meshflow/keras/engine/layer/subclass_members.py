"""Methods of layers that subclasses and tools for TensorFlow call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from meshflow.core.variables.variable import Variable
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.symbolic.call_signature import CallSignature, get_call_signature
from meshflow.keras.mixed_precision import policy as policies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshflow.keras.engine.layer.tracking import Tracker


class OwnWeights(list[Variable]):
    """Weights of a layer without those of sublayers; an additional one becomes a weight of the layer.

    Args:
      owner: The layer.
      weights: The weights.
    """

    def __init__(self, owner: SubclassMembers, weights: Iterable[Variable]) -> None:
        super().__init__(weights)
        self._owner = owner

    def append(self, variable: Variable) -> None:
        """Add a weight to the layer, unless it is one of its weights."""
        super().append(variable)
        if all(variable is not v for v in self._owner._tracked.variables):
            self._owner._own_weights.append(variable)

    def extend(self, variables: Iterable[Variable]) -> None:
        """Add weights to the layer."""
        for variable in variables:
            self.append(variable)

    def __iadd__(self, variables: Iterable[Variable]) -> Self:  # type: ignore[override, misc]
        self.extend(variables)
        return self

    def __reduce__(self) -> tuple[type, tuple[list[Variable]]]:
        return list, (list(self),)


class SubclassMembers:
    """Mix-in of `Layer` with methods that are private in TensorFlow, or part of its saving protocol."""

    if TYPE_CHECKING:
        call: Callable[..., Any]
        trainable: bool
        _dtype_policy: policies.Policy

        def _flatten_layers(
            self, recursive: bool = True, include_self: bool = True
        ) -> Iterator[Any]: ...

        _own_weights: list[Variable]

        @property
        def _tracked(self) -> Tracker: ...

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
        return OwnWeights(self, self._list_own_variables(True))

    @_trainable_weights.setter
    def _trainable_weights(self, value: Iterable[Variable]) -> None:
        self._set_own_weights(value, True)

    @property
    def _non_trainable_weights(self) -> list[Variable]:
        return OwnWeights(self, self._list_own_variables(False))

    @_non_trainable_weights.setter
    def _non_trainable_weights(self, value: Iterable[Variable]) -> None:
        self._set_own_weights(value, False)

    def _set_own_weights(self, weights: Iterable[Variable], trainable: bool) -> None:
        others = [v for v in self._own_weights if v.trainable != trainable]
        self._own_weights = remove_duplicates([*others, *weights])

    def _dedup_weights(self, weights: Iterable[Variable]) -> list[Variable]:
        """Return weights without repetitions."""
        return remove_duplicates(list(weights))

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
