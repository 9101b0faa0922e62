"""Names of TensorFlow's graph mode that programs for version 2 still use, and logging."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.eager import executing_eagerly
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


class Graph:
    """Graph of TensorFlow 1, without ops: those in a block with it run at once, as in all other code.

    A session returns the values that tensors have. Use `tf.function` for programs that run more than once.
    A block adds the variables that are created in it to the collections of the graph.
    Members that need the ops of a graph raise `NotAvailableError`.

    Example:
      >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      ...     session.run(tf.constant(1) + 1)
      np.int32(2)
    """

    seed: int | None = None
    finalized = False
    version = 0

    def __init__(self) -> None:
        self._name_counts: dict[str, int] = {}
        self._collections: dict[object, list[Any]] = {}
        self._variable_collections: Iterable[object] | None = None

    @property
    def building_function(self) -> bool:
        """Return whether a function is being traced."""
        return not executing_eagerly()

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Self]:
        """Return a context in which `tf.compat.v1.get_default_graph` returns the graph."""
        token, creators = _default_graph.set(self), context.variable_creators
        in_graph, context.in_graph = context.in_graph, True
        context.variable_creators = [*creators, self._create_variable]
        try:
            yield self
        finally:
            context.in_graph = in_graph
            context.variable_creators = creators
            _default_graph.reset(token)

    @contextlib.contextmanager
    def set_variable_collections(self, names: Iterable[object] | None) -> Iterator[None]:
        """Add the variables created in a context to these collections, by default to that of all variables."""
        saved, self._variable_collections = self._variable_collections, names
        try:
            yield
        finally:
            self._variable_collections = saved

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Create a variable, and add it to collections."""
        variable = next_creator(**kwargs)
        # A variable that a traced function creates belongs only to the function. In nested blocks, a variable
        # belongs to the graph of the innermost one.
        if context.trace is None and get_default_graph() is self:
            names = self._variable_collections
            trainable = ["trainable_variables"] if variable.trainable else []
            self.add_to_collections(
                [*(["variables"] if names is None else names), *trainable], variable
            )
        return variable

    def get_name_scope(self) -> str:
        """Return the current name scope."""
        return get_current_name_scope()

    def finalize(self) -> None:
        """Do nothing: the graph has no ops."""

    def reset(self) -> None:
        """Forget the names that were used, and all collections."""
        self._name_counts.clear()
        self._collections.clear()

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Return a name that was not used before: `name`, `name_1` and so on."""
        unique, key = name, name.lower()
        count = self._name_counts.get(key, 0)
        while unique.lower() in self._name_counts:
            count, unique = count + 1, f"{name}_{max(count, 1)}"
        if mark_as_used:
            self._name_counts[key] = max(count, 1)
            self._name_counts.setdefault(unique.lower(), 1)
        return unique

    def get_operations(self) -> list[Any]:
        """Return an empty list."""
        return []

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
            if name.startswith("__"):
                raise AttributeError(name)
            raise NotAvailableError(
                f"tf.Graph has no member {name!r}, because ops are executed at once. Define a tf.function, whose "
                "get_concrete_function(...).graph has the members of a graph."
            )


_root_graph = Graph()
_default_graph: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("graph", default=None)


def get_default_graph() -> Graph:
    """Return the graph of the innermost context, or one for all other code."""
    return _default_graph.get() or _root_graph


def has_explicit_graph() -> bool:
    """Check whether the code is in a block of a `tf.Graph`, and not in a function that is traced there."""
    return _default_graph.get() is not None and context.trace is None


class Operation:
    """A placeholder for `isinstance` checks: ops are functions and have no objects."""


def timestamp(name: str | None = None) -> Tensor:
    """Return the seconds since 1970 as a float64 scalar; in a compiled function, the time of tracing."""
    return Tensor(np.array(time.time(), np.float64))


def get_logger() -> logging.Logger:
    """Return the logger of the package.

    Example:
      >>> tf.get_logger().isEnabledFor(40)  # errors
      True
    """
    return logging.getLogger("meshflow")
