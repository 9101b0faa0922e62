"""Calls of `keras.ops` in files of Keras 3, which describe them as objects with settings."""

from __future__ import annotations

import inspect
from typing import Any

from meshflow.environment.types import Config
from meshflow.keras.engine.saving.keras3_operations import find_function


class BoundOp:
    """Function of `keras.ops` with fixed arguments; a graph is built from it as from a layer.

    Args:
      name: Name of the operation in the graph.
      operation: Name of the class in Keras 3, for example 'NotEqual'.
      arguments: Arguments other than tensors.

    Raises:
      ValueError: If `keras.ops` has no such function.
    """

    inbound_nodes = ()

    def __init__(self, name: str, operation: str, arguments: dict[str, Any]) -> None:
        self.name = name
        function = _get_item if operation == "GetItem" else find_function(operation)
        if not callable(function) or isinstance(function, type):
            raise ValueError(
                f"The model calls {operation} of keras.src.ops as {name!r}, which keras.ops of Meshflow does not have."
            )
        self._function = function
        parameters = inspect.signature(function).parameters
        self._arguments = {k: v for k, v in arguments.items() if k != "dtype" or k in parameters}
        # The equation of `einsum` precedes its operands.
        self._leading_arguments = (
            [self._arguments.pop("subscripts")] if operation == "Einsum" else []
        )

    @classmethod
    def from_config(cls, config: Config) -> BoundOp:
        """Create the operation from its configuration."""
        return cls(config["name"], config["operation"], config["arguments"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*self._leading_arguments, *args, **{**kwargs, **self._arguments})


def _get_item(x: Any, key: Any) -> Any:
    return x[tuple(key) if isinstance(key, list) else key]
