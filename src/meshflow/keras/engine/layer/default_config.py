"""Default configurations of layers without a `get_config` method: their constructor arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.environment.types import Config

F = TypeVar("F", bound=Callable[..., Any])


def mark_default(method: F) -> F:
    """Mark a `get_config` method that classes of users override."""
    method.__dict__["is_default"] = True
    return method


def is_default(method: object) -> bool:
    """Check whether a `get_config` method is the one of the base class."""
    return bool(getattr(method, "is_default", False))


def store_init_arguments(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Store the constructor arguments of a layer, if its configuration will be created from them."""
    cls = type(layer)
    if _is_user_class(cls) and is_default(cls.get_config) and _is_plain((args, kwargs)):
        object.__setattr__(layer, "_init_arguments", (args, kwargs))


def record_build_shape(build: F) -> F:
    """Wrap a `build` method so that it stores its input shape for the build configuration."""

    @functools.wraps(build)
    def build_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__.get("_build_input_shape") is None:
            self._build_input_shape = next(iter((*args, *kwargs.values())), None)
        return build(self, *args, **kwargs)

    return build_and_record  # type: ignore[return-value]


def _is_user_class(cls: type) -> bool:
    return not cls.__module__.startswith("meshflow.")


def _is_plain(value: Any) -> bool:
    """Check whether JSON can represent a value."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def get_init_arguments(layer: Any) -> Config | None:
    """Return the constructor arguments of a layer by name, or None if a file cannot hold them."""
    if not _is_user_class(type(layer)):
        return {}
    if "_init_arguments" not in layer.__dict__:
        return None
    args, kwargs = layer._init_arguments
    return {**dict(zip(_list_init_parameters(layer), args, strict=False)), **kwargs}


def merge_config(layer: Any, config: Config, init_arguments: Config) -> Config:
    """Merge two configurations, without base class entries that the constructor does not accept."""
    merged = config | init_arguments
    parameters = inspect.signature(type(layer).__init__).parameters.values()
    if not _is_user_class(type(layer)) or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return merged
    accepted_names = {*_list_init_parameters(layer), *init_arguments}
    return {key: value for key, value in merged.items() if key in accepted_names}


def _list_init_parameters(layer: object) -> list[str]:
    parameters = list(inspect.signature(type(layer).__init__).parameters.values())[1:]
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
