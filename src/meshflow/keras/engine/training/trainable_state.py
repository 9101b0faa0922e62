"""The layers that a compiled model trains.

As in Keras, a model trains the layers that were trainable when it was compiled. A GAN relies on
this: the discriminator is compiled, then frozen, and the combined model is compiled. Without such a
second model, a change of `trainable` takes effect in the next epoch or in the next call of `fit` or
`train_on_batch`, where Keras ignores it until the model is compiled again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers
from meshflow.keras.engine.layer.weights import TrainableChanges
from meshflow.keras.engine.training.training_steps import TrainingSteps

_log = logging.getLogger("meshflow")
_compiled_models: weakref.WeakSet[Any] = weakref.WeakSet()
_compile_indices = itertools.count(1)
_MAX_LISTED = 5


class TrainableState(TrainingSteps):
    """The attribute `trainable` of all layers when a model was compiled; a base class of `Trainer`."""

    _compiled_trainable: IdentityWeakDict | None = None
    _compile_index = 0
    _trainable_changes = 0

    if TYPE_CHECKING:
        # `Layer` and `CompileMethods` provide these members.
        def _reset_steps(self) -> None: ...

    def _record_trainable_state(self) -> None:
        self._compiled_trainable = IdentityWeakDict()
        for layer in self._flatten_layers():
            self._compiled_trainable[layer] = layer.trainable
        self._compile_index = next(_compile_indices)
        self._trainable_changes = TrainableChanges.count
        _compiled_models.add(self)

    def _list_changed_layers(self) -> list[Any]:
        """List the layers with another value of `trainable` than when the model was compiled."""
        states = self._compiled_trainable
        if states is None:
            return []
        layers = remove_duplicates(list(self._flatten_layers()))
        return [layer for layer in layers if states.get(layer) not in (None, layer.trainable)]

    def _apply_trainable_changes(self) -> bool:
        """Train the layers that are trainable now, unless a model compiled later shares them.

        Returns:
          Whether the training step changes.
        """
        if self._trainable_changes == TrainableChanges.count:
            return False
        self._trainable_changes = TrainableChanges.count
        changed = self._list_changed_layers()
        if not changed or self._is_compiled_later_with(changed):
            return False
        self._record_trainable_state()
        self._reset_steps()
        parts = []
        for is_trainable, verb in ((True, "trains"), (False, "no longer trains")):
            names = [layer.name for layer in changed if layer.trainable == is_trainable]
            if names:
                listed = ", ".join(names[:_MAX_LISTED]) + ", ..." * (len(names) > _MAX_LISTED)
                parts.append(f"{verb} {listed}")
        _log.warning(
            "`trainable` changed after model.compile(), so model %s now %s. The optimizer keeps its "
            "state. Call compile() after the change to avoid this message.",
            self.name,
            " and ".join(parts),
        )
        return True

    def _is_compiled_later_with(self, layers: list[Any]) -> bool:
        """Check whether a model that was compiled after this one contains one of the layers."""
        ids = {id(layer) for layer in layers}
        return any(
            model._compile_index > self._compile_index
            and any(id(layer) in ids for layer in flatten_layers(model))
            for model in list(_compiled_models)
        )

    @contextlib.contextmanager
    def _compiled_trainable_scope(self, kind: str) -> Iterator[None]:
        """Train the layers that were trainable when the model was compiled."""
        changed = self._list_changed_layers() if kind == "train" else []
        for layer in changed:
            layer._trainable = not layer.trainable
        try:
            yield
        finally:
            for layer in changed:
                layer._trainable = not layer.trainable
