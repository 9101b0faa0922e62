"""A model's call as functions of arguments by position, for which files hold programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from meshflow.core.autograph.status import switched
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec

__all__ = ["CallForm"]

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


class CallForm:
    """What a model takes, in order, with `training` among it.

    Args:
      model: the model.
      values: specs (or constants) of its arguments by name, in order.
      defaults: of those of them that have one.
      training: the place of `training`.

    Attributes:
      call: a function of them, and of whether the model is trained.
      predict: a function of them.
    """

    def __init__(
        self, model: Any, values: Mapping[str, Any], defaults: Mapping[str, Any], training: int
    ) -> None:
        self._values, self._training = list(values.values()), training
        names = list(values)

        def predict(*given: Any) -> Any:
            return run(given, False)

        def call(*given: Any) -> Any:
            return run((*given[:training], *given[training + 1 :]), given[training])

        def run(given: tuple[Any, ...], trained: Any) -> Any:
            first, *others = given
            # Python control flow of the user's model may depend on tensors.
            with switched(True):
                return model(first, **dict(zip(names[1:], others, strict=True)), training=trained)

        parameters = [_parameter(name, defaults) for name in names]
        predict.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        parameters.insert(training, _parameter("training", {"training": False}))
        call.__signature__ = inspect.Signature(_in_order(parameters))  # type: ignore[attr-defined]
        self.call: Callable[..., Any] = call
        self.predict: Callable[..., Any] = predict

    @classmethod
    def of(cls, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm:
        """The form of a model that was called with such arguments."""
        if len(args) == 1 and not kwargs:
            return cls(model, {"inputs": args[0]}, {}, 1)
        parameters = inspect.signature(model.call).parameters
        names = [p.name for p in parameters.values() if p.kind in _POSITIONAL]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        given.pop("training", None)
        last = max(names.index(n) for n in given if n in names)
        before = [n for n in names[: last + 1] if n != "training"]
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        given = {n: nest.map_structure(_named(n), value) for n, value in given.items()}
        values = {n: given[n] if n in given else defaults.get(n) for n in before}
        place = names.index("training") if "training" in names[: last + 1] else len(before)
        return cls(model, values | {n: given[n] for n in given if n not in values}, defaults, place)

    def arguments(self, training: bool | None = None) -> tuple[Any, ...]:
        """What `call` takes when the model is trained or not; None: what `predict` takes."""
        if training is None:
            return tuple(self._values)
        return *self._values[: self._training], training, *self._values[self._training :]


def _named(name: str) -> Callable[[Any], Any]:
    """Gives specs without a name their parameter's, which signatures show."""

    def named(spec: Any) -> Any:
        return spec if spec is None or spec.name else TensorSpec(spec.shape, spec.dtype, name)

    return named


def _parameter(name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    default = defaults.get(name, inspect.Parameter.empty)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def _in_order(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Parameters after one that has a default have one, too."""
    found, optional = [], False
    for parameter in parameters:
        optional = optional or parameter.default is not parameter.empty
        bare = parameter.default is parameter.empty
        found.append(parameter.replace(default=None) if optional and bare else parameter)
    return found
