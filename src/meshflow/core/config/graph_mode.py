"""Names of TensorFlow's graph mode that have no effect here, and logging; graphs are in `legacy.graph`."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.runtime.name_scopes import get_current_name_scope
from meshflow.core.values.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class AggregationMethod:
    """Methods of adding gradients. They have no effect, because XLA chooses the method."""

    ADD_N = 0
    DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


# Functions of the gradients of graph ops by the type; None for ops without a gradient.
_gradients: dict[str, Callable[..., Any] | None] = {}


class RegisterGradient:
    """Decorator that registers the gradient of a type of graph ops.

    Programs of Meshflow consist of JAX primitives, so the registry has no effect; use `tf.custom_gradient`.

    Args:
      op_type: Type of the ops.

    Raises:
      TypeError: If the type is not a string.
      KeyError: If a function decorated before has the same type.

    Example:
      >>> @tf.RegisterGradient("Rounded")
      ... def pass_through(op, gradient):
      ...     return gradient
      >>> pass_through(None, 3)
      3
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):
            raise TypeError(f"op_type must be a string, got {op_type!r}.")
        self._op_type = op_type

    def __call__(self, f: F) -> F:
        """Register a function, and return it."""
        if self._op_type in _gradients:
            raise KeyError(f"Registering two gradient with name '{self._op_type}'!")
        _gradients[self._op_type] = f
        return f


def no_gradient(op_type: str) -> None:
    """Declare that a type of graph ops has no gradient; see `RegisterGradient`.

    Args:
      op_type: Type of the ops.

    Raises:
      TypeError: If the type is not a string.
    """
    RegisterGradient(op_type)
    _gradients[op_type] = None


class GraphBase:
    """Names and collections of a graph."""

    # Whether the graph is that of a `tf.function`.
    building_function = False
    finalized = False

    def __init__(self) -> None:
        self.seed: int | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the names that were used, and all collections."""
        self._name_counts: dict[str, int] = {}
        self._collections: dict[object, list[Any]] = {}

    def get_name_scope(self) -> str:
        """Return the current name scope."""
        return get_current_name_scope()

    def unique_name(self, name: str, mark_as_used: bool = True, in_scope: bool = True) -> str:
        """Return a name that was not used before: `name`, `name_1` and so on."""
        # The innermost graph has the open scopes.
        owner: object = context.graph
        scope = get_current_name_scope() if in_scope and owner is self else ""
        name = f"{scope}/{name}" if scope else name
        unique, key = name, name.lower()
        count = self._name_counts.get(key, 0)
        while unique.lower() in self._name_counts:
            count, unique = count + 1, f"{name}_{max(count, 1)}"
        if mark_as_used:
            self._name_counts[key] = max(count, 1)
            self._name_counts.setdefault(unique.lower(), 1)
        return unique

    @property
    def collections(self) -> list[object]:
        """Return the names of the collections."""
        return list(self._collections)

    def get_all_collection_keys(self) -> list[object]:
        """Return `collections`."""
        return self.collections

    def get_collection(self, name: object, scope: str | None = None) -> list[Any]:
        """Return the values of a collection.

        Args:
          name: Name of the collection.
          scope: Regular expression; only values with names that start with a match are returned.
        """
        values = self._collections.get(name, ())
        return [v for v in values if not scope or re.match(scope, getattr(v, "name", None) or "")]

    def get_collection_ref(self, name: object) -> list[Any]:
        """Return the list of the values of a collection; changes of it change the collection."""
        return self._collections.setdefault(name, [])

    def add_to_collection(self, name: object, value: object) -> None:
        """Add a value to a collection."""
        self.get_collection_ref(name).append(value)

    def add_to_collections(self, names: Iterable[object], value: object) -> None:
        """Add a value to each of several collections, or to one that is named by a string."""
        for name in dict.fromkeys([names] if isinstance(names, str) else names):
            self.add_to_collection(name, value)

    def clear_collection(self, name: object) -> None:
        """Remove all values of a collection."""
        self._collections.pop(name, None)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            raise NotAvailableError(
                f"tf.Graph has no member {name!r}: a graph consists of recorded calls, and has no protocol buffer."
            )


class Operation:
    """Operation of a graph; the operations of all kinds of graphs are instances."""


def timestamp(name: str | None = None) -> Tensor:
    """Return the seconds since 1970 as a float64 scalar; in a compiled function, the time of tracing."""
    return Tensor(np.array(time.time(), np.float64))


class _StderrHandler(logging.StreamHandler[Any]):
    """Handler that prints records to the current `sys.stderr`, unless the program has configured the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def get_logger() -> logging.Logger:
    """Return the logger of the package, which prints records of its level to `sys.stderr`.

    Example:
      >>> tf.get_logger().isEnabledFor(40)  # errors
      True
    """
    logger = logging.getLogger("meshflow")
    if not any(isinstance(h, _StderrHandler) for h in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        logger.addHandler(handler)
    return logger
