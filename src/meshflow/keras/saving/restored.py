"""Models that consist of the functions of a SavedModel."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras.engine.models.model import Model

__all__ = ["RestoredModel"]


class RestoredModel(Model):
    """Model without its original class; it predicts and trains as when it was saved.

    Args:
      restored: Result of `tf.saved_model.load`.
    """

    def __init__(self, restored: Any) -> None:
        super().__init__(name=restored.name)
        self.restored = restored
        self.signatures = restored.signatures
        self.built = True

    def call(
        self,
        inputs: PyTree,
        *args: Any,
        training: bool | None = None,
        mask: TensorLike | None = None,
        **kwargs: Any,
    ) -> PyTree:
        """Call the function of the saved model, or its default signature if there is no function."""
        # `serve`, which Keras 3 exports, has ordered inputs; those of signatures only have names.
        attributes = self.restored.__dict__
        function = attributes.get("__call__", attributes.get("serve"))
        if function is not None:
            parameters = {name for name, *_ in function.python_function.parameters}
            options = {"training": bool(training)} if "training" in parameters else {}
            return function(inputs, *args, **kwargs, **options)
        signature = self.signatures["serving_default"]
        names = list(signature.structured_input_signature[1])
        arguments = (
            inputs
            if isinstance(inputs, dict)
            else dict(zip(names, nest.flatten(inputs), strict=True))
        )
        outputs = signature(**arguments)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    @property
    def weights(self) -> list[Variable]:
        """Return the trainable weights, then the others."""
        return [*self.trainable_weights, *self.non_trainable_weights]

    @property
    def trainable_weights(self) -> list[Variable]:
        """Return the trainable weights."""
        restored = self.__dict__.get("restored")
        return list(restored.trainable_variables) if restored is not None and self.trainable else []

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Return the weights that are not trainable."""
        restored = self.__dict__.get("restored")
        trainable_ids = {id(w) for w in self.trainable_weights}
        return (
            []
            if restored is None
            else [v for v in restored.variables if id(v) not in trainable_ids]
        )

    def compute_output_shape(self, input_shape: PyTree) -> TensorShape | list[TensorShape]:
        """Return the shapes of the outputs of the saved signature, with any batch size."""
        outputs = list(self.signatures["serving_default"].structured_outputs.values())
        shapes = [TensorShape([None, *spec.shape[1:]]) for spec in outputs]
        return shapes[0] if len(shapes) == 1 else shapes
