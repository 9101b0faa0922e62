"""What a program is doing, in the words of profiles: regions of the host, and scopes of what is computed.

A region costs a third of a microsecond while no profile is taken. A scope costs nothing where a program runs: it
names what is traced inside, and the compiled program keeps the names.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import jax

from meshflow.core.runtime.context import context
from meshflow.environment.jax_internals import source_info_util

F = TypeVar("F", bound=Callable[..., Any])

# What regions of the host are called; readers of profiles know them by these names.
INPUT = "meshflow:input"
CALLBACK = "meshflow:callback"
CHECKPOINT = "meshflow:checkpoint"
TRACING = "meshflow:tracing"
COMMUNICATION = "meshflow:communication"
WAITING = "meshflow:waiting"
DATA = "meshflow:data"
# The outermost scope of gradients.
GRADIENT = "gradient"
_NOTHING: AbstractContextManager[None] = nullcontext()


def region(kind: str, detail: str = "") -> AbstractContextManager[Any]:
    """A part of the host's work, for a `with` block.

    Args:
      kind: one of the names above.
      detail: whose work it is, such as a callback's class.

    Example:
      >>> with region(CALLBACK, "EarlyStopping"):
      ...     pass
    """
    return jax.profiler.TraceAnnotation(f"{kind}/{detail}" if detail else kind)


def inside(kind: str, detail: str = "") -> Callable[[F], F]:
    """A decorator for functions that are such a part."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            with region(kind, detail):
                return function(*args, **kwargs)

        return named  # type: ignore[return-value]

    return decorate


def name_thread(name: str) -> None:
    """Names the thread that calls it, in profiles and debuggers: Python tells its names nobody. At most 15 letters.

    A profile has the name that a thread had in its first region.
    """
    task = f"/proc/self/task/{threading.get_native_id()}/comm"
    with contextlib.suppress(OSError), open(task, "w") as file:
        file.write(name)


def scope(name: str) -> AbstractContextManager[Any]:
    """Names what is traced inside a `with` block: a layer, a loss. Does nothing where nothing is traced."""
    return _NOTHING if context.trace is None else jax.named_scope(name)


def current_scope() -> str:
    """The open scopes of what is being traced, joined by slashes."""
    return str(source_info_util.current_name_stack())


def gradient_scope(name: str) -> AbstractContextManager[Any]:
    """The scope of the gradients of ops that were traced in a scope."""
    return jax.named_scope(f"{GRADIENT}/{name}") if name and context.trace is not None else _NOTHING


def scoped(name: str) -> Callable[[F], F]:
    """A decorator that runs a function in such a scope."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            with scope(name):
                return function(*args, **kwargs)

        return named  # type: ignore[return-value]

    return decorate
