"""Annotations for profiles: regions of host work, and name scopes of traced computations.

A region costs about 0.3 microseconds while no profile is recorded. A scope has no cost at run time:
it names the equations that are traced inside it, and the compiled program keeps the names.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import jax

from meshflow.core.runtime.context import context
from meshflow.environment.jax_internals import source_info_util

P = ParamSpec("P")
T = TypeVar("T")

# Names of host regions. The readers of profiles look for these strings.
INPUT = "meshflow:input"
CALLBACK = "meshflow:callback"
CHECKPOINT = "meshflow:checkpoint"
TRACING = "meshflow:tracing"
COMMUNICATION = "meshflow:communication"
WAITING = "meshflow:waiting"
DATA = "meshflow:data"
# The outermost scope of gradient computations.
GRADIENT = "gradient"
_NO_SCOPE: AbstractContextManager[None] = nullcontext()


def region(kind: str, detail: str = "") -> AbstractContextManager[Any]:
    """Return a context manager that marks a part of the host's work in profiles.

    Args:
      kind: One of the region names of this module, such as `CALLBACK`.
      detail: Object that does the work, for example the class name of a callback.

    Example:
      >>> with region(CALLBACK, "EarlyStopping"):
      ...     pass
    """
    return jax.profiler.TraceAnnotation(f"{kind}/{detail}" if detail else kind)


def annotate_region(kind: str, detail: str = "") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that runs a function inside a `region`.

    Args:
      kind: One of the region names of this module.
      detail: Object that does the work.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with region(kind, detail):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def name_thread(name: str) -> None:
    """Name the calling thread for profilers and debuggers.

    Python's own thread names are not visible to these tools.

    A profile shows the name that the thread had in its first region.

    Args:
      name: The name; Linux keeps the first 15 characters.
    """
    task = f"/proc/self/task/{threading.get_native_id()}/comm"
    with contextlib.suppress(OSError), open(task, "w") as file:
        file.write(name)


def scope(name: str) -> AbstractContextManager[Any]:
    """Return a context manager that names the equations traced inside it.

    It does nothing outside of a trace.

    Args:
      name: Name of a layer, loss or another part of a model.
    """
    return _NO_SCOPE if context.trace is None else jax.named_scope(name)


def get_current_scope() -> str:
    """Return the open scopes of the computation that is being traced, joined by slashes."""
    return str(source_info_util.current_name_stack())


def gradient_scope(name: str) -> AbstractContextManager[Any]:
    """Return the scope for the gradients of ops that were traced in the scope `name`."""
    return (
        jax.named_scope(f"{GRADIENT}/{name}") if name and context.trace is not None else _NO_SCOPE
    )


def annotate_scope(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that runs a function inside a `scope`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with scope(name):
                return function(*args, **kwargs)

        return wrapper

    return decorate
