"""A model's call as functions with positional arguments, which files can hold as programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meshflow.core.autograph.status import override_status
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import PyTree

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import Layer

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


class PositionalCall:
    """A model's arguments in a fixed order, with `training` among them.

    Args:
      model: The model.
      values: Specs (or constants) of the model's arguments by name, in order, without `training`.
      defaults: Default values, by argument name.
      training: Index of `training` among the arguments.

    Attributes:
      call: Function of all arguments, including `training`.
      predict: Function of all arguments except `training`.
    """

    def __init__(
        self, model: Layer, values: Mapping[str, Any], defaults: Mapping[str, Any], training: int
    ) -> None:
        self._values, self._training = list(values.values()), training
        names = list(values)

        def predict(*args: PyTree) -> PyTree:
            return run(args, False)

        def call(*args: PyTree) -> PyTree:
            return run((*args[:training], *args[training + 1 :]), args[training])

        def run(args: tuple[PyTree, ...], is_training: bool) -> PyTree:
            first, *rest = args
            # AutoGraph converts the model's Python control flow, which may depend on tensors.
            with override_status(True):
                return model(first, **dict(zip(names[1:], rest, strict=True)), training=is_training)

        parameters = [_make_parameter(name, defaults) for name in names]
        predict.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        parameters.insert(training, _make_parameter("training", {"training": False}))
        call.__signature__ = inspect.Signature(_fill_defaults(parameters))  # type: ignore[attr-defined]
        self.call: Callable[..., Any] = call
        self.predict: Callable[..., Any] = predict

    @classmethod
    def from_arguments(
        cls, model: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> PositionalCall:
        """Create the positional form of a model that was called with these arguments.

        Args:
          model: The model.
          args: Specs of the positional arguments.
          kwargs: Specs of the keyword arguments; `training` is ignored.
        """
        if len(args) == 1 and not kwargs:
            return cls(model, {"inputs": args[0]}, {}, 1)
        parameters = inspect.signature(model.call).parameters
        names = [p.name for p in parameters.values() if p.kind in _POSITIONAL]
        explicit = dict(zip(names, args, strict=False)) | dict(kwargs)
        explicit.pop("training", None)
        last = max(names.index(n) for n in explicit if n in names)
        before = [n for n in names[: last + 1] if n != "training"]
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        explicit = {
            n: nest.map_structure(_make_spec_namer(n), value) for n, value in explicit.items()
        }
        values = {n: explicit[n] if n in explicit else defaults.get(n) for n in before}
        training = names.index("training") if "training" in names[: last + 1] else len(before)
        return cls(
            model,
            values | {n: explicit[n] for n in explicit if n not in values},
            defaults,
            training,
        )

    def get_arguments(self, training: bool | None = None) -> tuple[Any, ...]:
        """Return the arguments of `call`, or of `predict` if `training` is None.

        Args:
          training: Value of the argument `training`, or None.
        """
        if training is None:
            return tuple(self._values)
        return *self._values[: self._training], training, *self._values[self._training :]


def _make_spec_namer(name: str) -> Callable[[TensorSpec | None], TensorSpec | None]:
    """Return a function that names unnamed specs after their parameter, for use in signatures."""

    def add_name(spec: TensorSpec | None) -> TensorSpec | None:
        if not isinstance(spec, TensorSpec) or spec.name:
            return spec
        return TensorSpec(spec.shape, spec.dtype, name)

    return add_name


def _make_parameter(name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    default = defaults.get(name, inspect.Parameter.empty)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def _fill_defaults(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Give every parameter after the first optional one a default, as Python signatures require."""
    filled, is_optional = [], False
    for parameter in parameters:
        is_optional = is_optional or parameter.default is not parameter.empty
        is_required = parameter.default is parameter.empty
        filled.append(parameter.replace(default=None) if is_optional and is_required else parameter)
    return filled
