"""Calls of `keras.ops` in models that Keras 3 saved, where a function in a graph is an object with settings."""

from __future__ import annotations

import inspect
from typing import Any

from meshflow.keras.engine.saving.keras3_operations import function_of

__all__ = ["Operation"]


class Operation:
    """A function of `keras.ops` with some of its arguments; it stands for a layer while a graph is made.

    Args:
      name: what the graph calls it.
      operation: Keras 3's name of the class, such as 'NotEqual'.
      arguments: arguments besides the tensors.

    Raises:
      ValueError: for a function that `keras.ops` does not have.
    """

    _inbound_nodes = ()

    def __init__(self, name: str, operation: str, arguments: dict[str, Any]) -> None:
        self.name = name
        function = _item if operation == "GetItem" else function_of(operation)
        if not callable(function) or isinstance(function, type):
            raise ValueError(
                f"The model calls {operation} of keras.src.ops as {name!r}, and keras.ops has no such function here."
            )
        self._function = function
        known = inspect.signature(function).parameters
        self._arguments = {k: v for k, v in arguments.items() if k != "dtype" or k in known}
        # What stands before the operands, of any number.
        self._first = [self._arguments.pop("subscripts")] if operation == "Einsum" else []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Operation:
        """The call with a configuration."""
        return cls(config["name"], config["operation"], config["arguments"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._function(*self._first, *args, **{**kwargs, **self._arguments})


def _item(x: Any, key: Any) -> Any:
    return x[tuple(key) if isinstance(key, list) else key]
