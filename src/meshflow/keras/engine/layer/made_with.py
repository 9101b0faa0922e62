"""Configurations of layers whose classes define none: what their constructors were given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def default(method: F) -> F:
    """Marks a `get_config` that users' classes override."""
    method.__dict__["is_default"] = True
    return method


def is_default(method: Any) -> bool:
    """Whether a class has not overridden its `get_config`."""
    return bool(getattr(method, "is_default", False))


def remember(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keeps what a layer is made with, where its configuration is to be made of that.

    Args:
      layer: the layer, before its constructor runs.
      args: positional arguments of the constructor.
      kwargs: its keywords.
    """
    cls = type(layer)
    if _is_users(cls) and is_default(cls.get_config) and _is_plain((args, kwargs)):
        object.__setattr__(layer, "_init_arguments", (args, kwargs))


def noting_shape(build: F) -> F:
    """A layer's `build` that keeps the shape it is called with, for the configuration of what was built.

    Args:
      build: the method of a class.
    """

    @functools.wraps(build)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__.get("_build_input_shape") is None:
            self._build_input_shape = next(iter((*args, *kwargs.values())), None)
        return build(self, *args, **kwargs)

    return noting  # type: ignore[return-value]


def _is_users(cls: type) -> bool:
    return not cls.__module__.startswith("meshflow.")


def _is_plain(value: Any) -> bool:
    """Whether a file can hold a value as it is."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def arguments(layer: Any) -> dict[str, Any] | None:
    """What a layer was made with, by name; None when a file cannot hold it.

    Args:
      layer: one of a class without a `get_config` of its own.
    """
    if not _is_users(type(layer)):
        return {}
    if "_init_arguments" not in layer.__dict__:
        return None
    args, kwargs = layer._init_arguments
    return {**dict(zip(_names(layer), args, strict=False)), **kwargs}


def accepted(layer: Any, config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what the base class has and the layer's constructor does not take.

    Args:
      layer: the layer.
      config: the base class's configuration.
      given: what `arguments` gave, which is part of the result.
    """
    whole = config | given
    if not _is_users(type(layer)) or "kwargs" in inspect.signature(type(layer).__init__).parameters:
        return whole
    taken = {*_names(layer), *given}
    return {key: value for key, value in whole.items() if key in taken}


def _names(layer: Any) -> list[str]:
    parameters = list(inspect.signature(type(layer).__init__).parameters.values())[1:]
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
