"""Handlers of calls with arguments that a function of a library does not support, in `tf.__internal__.dispatch`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.environment.types import PyTree

F = TypeVar("F", bound=Callable[..., Any])
_DISPATCHERS = "_tf_fallback_dispatchers"


class OpDispatcher:
    """Base class of the handlers of calls for which a function raises `TypeError` or `ValueError`.

    Example:
      >>> @tf.__internal__.dispatch.add_dispatch_support
      ... def double(x):
      ...     return 2 * float(x)
      >>> class TextDispatcher(tf.__internal__.dispatch.OpDispatcher):
      ...     def handle(self, args, kwargs):
      ...         return args[0] * 2 if isinstance(args[0], str) else self.NOT_SUPPORTED
      >>> TextDispatcher().register(double)
      >>> double("ab"), double(3)
      ('abab', 6.0)
    """

    NOT_SUPPORTED = object()

    def handle(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """Return the result of a call, or `NOT_SUPPORTED`."""
        return self.NOT_SUPPORTED

    def register(self, op: Callable[..., Any]) -> None:
        """Handle the calls of a function that `add_dispatch_support` decorates.

        Raises:
          NotAvailableError: If the function is not decorated.
        """
        if not hasattr(op, _DISPATCHERS):
            raise NotAvailableError(
                f"{getattr(op, '__name__', op)} has no dispatchers. Decorate it with "
                "tf.__internal__.dispatch.add_dispatch_support, or use tf.experimental.dispatch_for_api for an op."
            )
        getattr(op, _DISPATCHERS).append(self)


def add_dispatch_support(
    target: Callable[..., Any] | None = None, iterable_parameters: object = None
) -> Callable[..., Any]:
    """Make a function, or with options a decorator, call the dispatchers that are registered for it."""
    if target is None:
        return add_dispatch_support
    dispatchers: list[OpDispatcher] = []

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> PyTree:
        try:
            return target(*args, **kwargs)
        except (TypeError, ValueError):
            for dispatcher in dispatchers:
                result = dispatcher.handle(args, kwargs)
                if result is not OpDispatcher.NOT_SUPPORTED:
                    return result
            raise

    setattr(call, _DISPATCHERS, dispatchers)
    return call
