"""Calls of ops on symbolic tensors of other packages (Keras), which take such calls over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from meshflow.core.dispatch import op_names

F = TypeVar("F", bound=Callable[..., Any])

# Symbolic tensor types of other packages (Keras) and the function that takes their calls.
types: tuple[type, ...] = ()
handler: Callable[..., Any] | None = None


def register_symbolic(kind: type, call: Callable[..., Any]) -> None:
    """Sends every op call that has an argument of type `kind` to `call(public_op, args, kwargs)`."""
    global types, handler
    types = (kind,)
    handler = call


def also_symbolic(function: F) -> F:
    """Hands the call of a function that is no op to Keras when an argument is a symbolic Keras tensor.

    Args:
      function: a public function that needs its arguments' values, such as `tf.zeros` its shape's.
    """
    return op_names.nameable(in_graphs(function))


def in_graphs(function: F) -> F:
    """`also_symbolic` for functions that files may not name, or name otherwise.

    Args:
      function: such a function, as a loop whose body is an argument.
    """

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if types and has_symbolic(args, kwargs):
            return handler(public, args, kwargs)  # type: ignore[misc]
        return function(*args, **kwargs)

    return public  # type: ignore[return-value]


def has_symbolic(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is, or a nested list or dictionary of arguments holds, a Keras tensor."""
    for value in args:
        if isinstance(value, types):
            return True
        if isinstance(value, (list, tuple)) and has_symbolic(value, {}):
            return True
        if isinstance(value, dict) and has_symbolic(value.values(), {}):
            return True
    return bool(kwargs) and has_symbolic(kwargs.values(), {})
