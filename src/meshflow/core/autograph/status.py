"""Whether AutoGraph is on in this thread, and the switches that users have.

`tf.function(autograph=True)` turns it on while it traces. Parts of Meshflow that call functions of
the user's (Keras layers, `tf.map_fn`, `Dataset.map`) then convert them with `convert_if_enabled`.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("meshflow.autograph")


class _Status(threading.local):
    enabled = False


_status = _Status()


def is_enabled() -> bool:
    """Whether functions called now should be converted."""
    return _status.enabled


@contextlib.contextmanager
def switched(enabled: bool) -> Iterator[None]:
    """Turns AutoGraph on or off for a block."""
    saved, _status.enabled = _status.enabled, enabled
    try:
        yield
    finally:
        _status.enabled = saved


class Feature(enum.Enum):
    """Optional features of TensorFlow's AutoGraph; accepted where TensorFlow takes them, and ignored."""

    ALL = "ALL"
    AUTO_CONTROL_DEPS = "AUTO_CONTROL_DEPS"
    ASSERT_STATEMENTS = "ASSERT_STATEMENTS"
    BUILTIN_FUNCTIONS = "BUILTIN_FUNCTIONS"
    EQUALITY_OPERATORS = "EQUALITY_OPERATORS"
    LISTS = "LISTS"
    NAME_SCOPES = "NAME_SCOPES"

    @classmethod
    def all(cls) -> tuple[Feature, ...]:
        """All features."""
        return tuple(cls)

    @classmethod
    def all_but(cls, exclude: Any) -> tuple[Feature, ...]:
        """All features but one, or but those in a collection."""
        left_out = exclude if isinstance(exclude, (list, tuple, set)) else (exclude,)
        return tuple(f for f in cls if f not in left_out)


def do_not_convert(func: F | None = None) -> Any:
    """Decorator: the function and what it calls run as plain Python while traced.

    Args:
      func: the function; None to use `do_not_convert()` as a decorator with parentheses.

    Returns:
      A function that AutoGraph leaves alone.

    Example:
      >>> import meshflow as tf
      >>> @tf.autograph.experimental.do_not_convert
      ... def choose(flag):
      ...     return "yes" if flag else "no"
      >>> choose(True)
      'yes'
    """
    if func is None:
        return do_not_convert

    @functools.wraps(func)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with switched(False):
            return func(*args, **kwargs)

    plain.ag_do_not_convert = True  # type: ignore[attr-defined]
    return plain


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Sets how much AutoGraph tells through the logger `meshflow.autograph`.

    Args:
      level: 0 for nothing but warnings; 1 and more to name functions that stay unconverted, and why.
      alsologtostdout: also print the messages.

    Example:
      >>> import meshflow as tf
      >>> tf.autograph.set_verbosity(0)
    """
    log.setLevel(logging.DEBUG if level > 0 else logging.WARNING)
    for handler in list(log.handlers):
        log.removeHandler(handler)
    if alsologtostdout:
        log.addHandler(logging.StreamHandler(sys.stdout))


def set_loop_options(
    parallel_iterations: int | None = None,
    swap_memory: bool | None = None,
    maximum_iterations: Any = None,
    shape_invariants: Any = None,
) -> None:
    """Gives options to the loop whose body starts with this call.

    Outside a staged loop it does nothing. Only `maximum_iterations` has an effect: XLA schedules
    iterations itself, and shapes are always invariant.

    Args:
      parallel_iterations: ignored.
      swap_memory: ignored.
      maximum_iterations: the most iterations a staged loop may run.
      shape_invariants: ignored.

    Example:
      >>> import meshflow as tf
      >>> @tf.function
      ... def f(n):
      ...     i = 0
      ...     while i < n:
      ...         tf.autograph.experimental.set_loop_options(maximum_iterations=3)
      ...         i += 1
      ...     return i
      >>> int(f(tf.constant(10)))
      3
    """
    del parallel_iterations, swap_memory, maximum_iterations, shape_invariants
