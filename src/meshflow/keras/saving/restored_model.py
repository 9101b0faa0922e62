"""Models that consist of the functions of a SavedModel."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.saving.serving_signatures import LOSSES_FUNCTION

# The function with losses in SavedModels of tf-keras.
_KERAS_FUNCTION = "call_and_return_all_conditional_losses"


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
        # SavedModels of tf-keras have a function for each regularizer.
        penalties = getattr(restored, "regularization_losses", [])
        if callable(getattr(restored, _KERAS_FUNCTION, None)):
            self.add_loss([penalty for penalty in penalties if callable(penalty)])

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
        candidates = (LOSSES_FUNCTION, _KERAS_FUNCTION, "__call__", "serve")
        name = next((n for n in candidates if attributes.get(n) is not None), None)
        if name is not None:
            function = attributes[name]
            parameters = {p for p, *_ in function.python_function.parameters}
            options = {"training": bool(training)} if "training" in parameters else {}
            results = function(inputs, *args, **kwargs, **options)
            if name not in (LOSSES_FUNCTION, _KERAS_FUNCTION):
                return results
            outputs, losses, *metrics = results
            self.add_loss(losses)
            for metric, value in dict(*metrics).items():
                self.add_metric(value, name=metric)
            return outputs
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
