"""The names that training from generators had before `fit` took them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any


class GeneratorMethods:
    """`fit_generator` and its like; a base class of `Trainer`."""

    if TYPE_CHECKING:
        # What `Trainer` gives it.
        def fit(self, *args: Any, **kwargs: Any) -> Any: ...
        def evaluate(self, *args: Any, **kwargs: Any) -> Any: ...
        def predict(self, *args: Any, **kwargs: Any) -> Any: ...

    def fit_generator(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The old name of `fit` for generators."""
        _warn_of_old_name("fit")
        names = (
            *("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data"),
            *("validation_steps", "validation_freq", "class_weight"),
        )
        return self.fit(generator, **dict(zip(names, args, strict=False)), **kwargs)

    def evaluate_generator(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The old name of `evaluate` for generators; silent unless told otherwise."""
        _warn_of_old_name("evaluate")
        given = dict(zip(("steps", "callbacks"), args, strict=False))
        return self.evaluate(generator, **{"verbose": 0, **given, **kwargs})

    def predict_generator(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
        """The old name of `predict` for generators; silent unless told otherwise."""
        _warn_of_old_name("predict")
        given = dict(zip(("steps", "callbacks"), args, strict=False))
        return self.predict(generator, **{"verbose": 0, **given, **kwargs})


def _warn_of_old_name(method: str) -> None:
    warnings.warn(
        f"`Model.{method}_generator` is deprecated. Use `Model.{method}`.",
        DeprecationWarning,
        stacklevel=3,
    )
