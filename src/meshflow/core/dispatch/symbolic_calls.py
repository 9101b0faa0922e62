"""Redirection of op calls on symbolic tensors of Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.core.runtime.context import context
from meshflow.core.runtime.tracebacks import (
    explain_error,
    hide_frames,
    hide_frames_of_errors,
    mark_boundary,
)
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree

F = TypeVar("F", bound=Callable[..., Any])

# The symbolic tensor types of Keras, ragged tensors and types of the user, and the function that handles
# calls with such arguments.
types: tuple[type, ...] = ()
handler: Callable[..., Any] | None = None


class UnknownString(bytes):
    """Empty string in the place of an unknown one, while the shapes of results are inferred."""


def register_symbolic_type(symbolic_type: type, call: Callable[..., Any]) -> None:
    """Redirect every op call that has an argument of a type to `call(public_op, args, kwargs)`.

    The type of the latest registration takes precedence: Keras' symbolic tensors.

    Args:
      symbolic_type: The type of symbolic tensors.
      call: The handler. If it returns NotImplemented, an earlier one or the function itself is called.
    """
    global types, handler
    types = (symbolic_type, *types)
    inner = handler

    def choose(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = NotImplemented
        if has_symbolic(args, kwargs, symbolic_type):
            result = call(function, args, kwargs)
        if result is NotImplemented and inner is not None:
            result = inner(function, args, kwargs)
        return result

    handler = choose


def accept_symbolic(function: F) -> F:
    """Make a function accept symbolic Keras tensors, and register its name for files.

    Args:
      function: A public function that needs the values of its arguments, for example the shape in
        `tf.zeros`.
    """
    return op_names.register_name(accept_symbolic_unnamed(function))


def accept_symbolic_unnamed(function: F) -> F:
    """Make a function accept symbolic Keras tensors, without registering its name for files.

    Args:
      function: A public function that files must not refer to, such as a loop with a function
        argument, or that is registered under another name.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        try:
            if types and has_symbolic(args, kwargs):
                result = handler(public, args, kwargs)  # type: ignore[misc]
                if result is not NotImplemented:
                    return result
            if context.graph is not None and context.trace is None:
                return context.graph.call(public, args, kwargs)
            result = function(*args, **kwargs)
            if context.trace is not None and "name" in kwargs:
                context.trace.label_call(result, kwargs["name"])
            return result
        except Exception as error:
            explained = explain_error(error, function.__name__)
            if explained is error:
                raise
            raise explained from explained.__cause__

    public.is_dispatchable = True  # type: ignore[attr-defined]
    return mark_boundary(public)  # type: ignore[return-value]


def record_in_graph(function: F) -> F:
    """Make a function with effects, or with functions as arguments, an operation of version 1 graphs.

    Args:
      function: A public function or method.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if context.graph is not None and context.trace is None:
            return context.graph.call(public, args, kwargs)
        return function(*args, **kwargs)

    # A graph calls the function in each run, also with constants.
    public.is_recorded = True  # type: ignore[attr-defined]
    return public  # type: ignore[return-value]


def run_outside_of_graphs(function: F) -> F:
    """Make a function run at once in a version 1 graph, such as the training of a Keras model.

    Args:
      function: A public function or method.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        graph, context.graph = context.graph, None
        if graph is not None:
            graph.initialize_weights()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise
        finally:
            context.graph = graph

    return public  # type: ignore[return-value]


@hide_frames_of_errors
def call_symbolically(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    """Call the handler for an op with symbolic arguments."""
    return handler(function, args, kwargs)  # type: ignore[misc]


# Common types of arguments that are not symbolic.
_OTHER_TYPES = frozenset([Tensor, np.ndarray, int, float, bool, str, type(None)])


def has_symbolic(
    args: Iterable[Any],
    kwargs: dict[str, Any],
    symbolic_type: type | tuple[type, ...] | None = None,
) -> bool:
    """Check whether the arguments of a call contain a symbolic tensor.

    Nested lists and dictionaries are searched, too.

    Args:
      args: Positional arguments.
      kwargs: Keyword arguments.
      symbolic_type: The type or types to search; by default all registered ones.
    """
    searched = symbolic_type or types
    for value in args:
        if type(value) in _OTHER_TYPES:
            continue
        if isinstance(value, searched):
            return True
        if isinstance(value, (list, tuple)) and has_symbolic(value, {}, symbolic_type):
            return True
        if isinstance(value, dict) and has_symbolic(value.values(), {}, symbolic_type):
            return True
    return bool(kwargs) and has_symbolic(kwargs.values(), {}, symbolic_type)


# The types without those of Keras, and the function that handles calls with such arguments.
composite_types: tuple[type, ...] = ()
composite_handler: Callable[..., Any] | None = None


def register_composite_type(composite_type: type, call: Callable[..., Any]) -> None:
    """Redirect calls of ops and of functions that are composed of ops; see `register_symbolic_type`."""
    global composite_types, composite_handler
    register_symbolic_type(composite_type, call)
    composite_types = (composite_type, *composite_types)
    inner = composite_handler

    def choose(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_symbolic(args, kwargs, composite_type):
            result = call(function, args, kwargs)
            if result is not NotImplemented:
                return result
        return NotImplemented if inner is None else inner(function, args, kwargs)

    composite_handler = choose


def dispatch_composites(function: F) -> F:
    """Make a function that is composed of ops dispatch on the types of its arguments, like an op.

    Args:
      function: A public function. Symbolic Keras tensors are not dispatched.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if composite_types and has_symbolic(args, kwargs, composite_types):
            result = call_composite(public, args, kwargs)
            if result is not NotImplemented:
                return result
        if context.graph is not None and context.trace is None:
            return context.graph.call(public, args, kwargs)
        result = function(*args, **kwargs)
        if context.trace is not None and "name" in kwargs:
            context.trace.label_call(result, kwargs["name"])
        return result

    public.is_dispatchable = True  # type: ignore[attr-defined]
    return public  # type: ignore[return-value]


@hide_frames_of_errors
def call_composite(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    """Call the handlers of composite types; return NotImplemented if none of them handles the call."""
    return composite_handler(function, args, kwargs)  # type: ignore[misc]
