"""The deprecated methods `fit_generator`, `evaluate_generator` and `predict_generator`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from meshflow.environment.types import PyTree

if TYPE_CHECKING:
    from meshflow.keras.engine.training.callbacks import History


class GeneratorMethods:
    """The deprecated methods for generators; a base class of `Trainer`."""

    if TYPE_CHECKING:
        # `Trainer` provides these methods.
        def fit(self, *args: Any, **kwargs: Any) -> History:
            """Train the model for a number of epochs."""

        def evaluate(self, *args: Any, **kwargs: Any) -> PyTree:
            """Compute the loss and metrics on data."""

        def predict(self, *args: Any, **kwargs: Any) -> PyTree:
            """Compute the outputs for inputs, as NumPy arrays."""

    def fit_generator(self, generator: PyTree, *args: Any, **kwargs: Any) -> History:
        """Train on a generator; the deprecated form of `fit`.

        Args:
          generator: Iterable of batches.
          *args: Other arguments of `fit`, in the old order.
          **kwargs: Other arguments of `fit`.
        """
        _warn_deprecated("fit")
        names = (
            *("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data"),
            *("validation_steps", "validation_freq", "class_weight"),
        )
        return self.fit(generator, **dict(zip(names, args, strict=False)), **kwargs)

    def evaluate_generator(self, generator: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Evaluate on a generator; the deprecated form of `evaluate`, without output by default.

        Args:
          generator: Iterable of batches.
          *args: `steps` and `callbacks`.
          **kwargs: Other arguments of `evaluate`.
        """
        _warn_deprecated("evaluate")
        positional = dict(zip(("steps", "callbacks"), args, strict=False))
        return self.evaluate(generator, **{"verbose": 0, **positional, **kwargs})

    def predict_generator(self, generator: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Predict for a generator; the deprecated form of `predict`, without output by default.

        Args:
          generator: Iterable of batches.
          *args: `steps` and `callbacks`.
          **kwargs: Other arguments of `predict`.
        """
        _warn_deprecated("predict")
        positional = dict(zip(("steps", "callbacks"), args, strict=False))
        return self.predict(generator, **{"verbose": 0, **positional, **kwargs})


def _warn_deprecated(method: str) -> None:
    warnings.warn(
        f"`Model.{method}_generator` is deprecated. Use `Model.{method}`.",
        DeprecationWarning,
        stacklevel=3,
    )
