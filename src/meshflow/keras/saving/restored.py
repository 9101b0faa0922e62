"""Models made of the functions that `tf.saved_model` holds."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.keras.engine.models.model import Model

__all__ = ["RestoredModel"]


class RestoredModel(Model):
    """A model whose class is not known any more: it predicts and trains as when it was saved.

    Args:
      restored: what `tf.saved_model.load` gave.
    """

    def __init__(self, restored: Any) -> None:
        super().__init__(name=restored.name)
        self.restored = restored
        self.signatures = restored.signatures
        self.built = True

    def call(
        self, inputs: Any, *args: Any, training: Any = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Calls the saved model's function, or its signature where it has no other one."""
        # What Keras 3 exports has its inputs in order there; in signatures they have names only.
        own = self.restored.__dict__
        function = own.get("__call__", own.get("serve"))
        if function is not None:
            takes = {name for name, *_ in function.python_function.parameters}
            more = {"training": bool(training)} if "training" in takes else {}
            return function(inputs, *args, **kwargs, **more)
        signature = self.signatures["serving_default"]
        names = list(signature.structured_input_signature[1])
        given = (
            inputs
            if isinstance(inputs, dict)
            else dict(zip(names, nest.flatten(inputs), strict=True))
        )
        outputs = signature(**given)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    @property
    def weights(self) -> list[Any]:
        """Trainable weights, then the others."""
        return [*self.trainable_weights, *self.non_trainable_weights]

    @property
    def trainable_weights(self) -> list[Any]:
        """The weights that are trained."""
        own = self.__dict__.get("restored")
        return list(own.trainable_variables) if own is not None and self.trainable else []

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The others."""
        own = self.__dict__.get("restored")
        known = {id(w) for w in self.trainable_weights}
        return [] if own is None else [v for v in own.variables if id(v) not in known]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """As the outputs of the saved signature, for other batch sizes too."""
        outputs = list(self.signatures["serving_default"].structured_outputs.values())
        shapes = [TensorShape([None, *spec.shape[1:]]) for spec in outputs]
        return shapes[0] if len(shapes) == 1 else shapes
