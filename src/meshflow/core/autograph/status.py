"""State of AutoGraph in this thread, and the switches of the public API.

`tf.function(autograph=True)` turns it on while it traces. Parts of Meshflow that call user
functions (Keras layers, `tf.map_fn`, `Dataset.map`) then convert them with `convert_if_enabled`.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from meshflow.core.runtime.context import ThreadState

if TYPE_CHECKING:
    from meshflow.core.values.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("meshflow.autograph")


class _Status(ThreadState):
    enabled = False


_status = _Status()


def is_enabled() -> bool:
    """Check whether functions that are called now should be converted."""
    return _status.enabled


@contextlib.contextmanager
def override_status(enabled: bool) -> Iterator[None]:
    """Turn AutoGraph on or off for a block."""
    saved, _status.enabled = _status.enabled, enabled
    try:
        yield
    finally:
        _status.enabled = saved


class Feature(enum.Enum):
    """Optional features of TensorFlow's AutoGraph, which are accepted and ignored."""

    ALL = "ALL"
    AUTO_CONTROL_DEPS = "AUTO_CONTROL_DEPS"
    ASSERT_STATEMENTS = "ASSERT_STATEMENTS"
    BUILTIN_FUNCTIONS = "BUILTIN_FUNCTIONS"
    EQUALITY_OPERATORS = "EQUALITY_OPERATORS"
    LISTS = "LISTS"
    NAME_SCOPES = "NAME_SCOPES"

    @classmethod
    def all(cls) -> tuple[Feature, ...]:
        """Return all features."""
        return tuple(cls)

    @classmethod
    def all_but(cls, exclude: Feature | Iterable[Feature]) -> tuple[Feature, ...]:
        """Return all features except one, or except those in a collection."""
        excluded = exclude if isinstance(exclude, (list, tuple, set)) else (exclude,)
        return tuple(f for f in cls if f not in excluded)


def do_not_convert(func: F | None = None) -> Any:
    """Run a function, and the functions that it calls, as plain Python while it is traced.

    Args:
      func: The function; None to use `do_not_convert()` as a decorator with parentheses.

    Returns:
      A function that AutoGraph does not convert.

    Example:
      >>> @tf.autograph.experimental.do_not_convert
      ... def choose(flag):
      ...     return "yes" if flag else "no"
      >>> choose(True)
      'yes'
    """
    if func is None:
        return do_not_convert

    @functools.wraps(func)
    def run_unconverted(*args: Any, **kwargs: Any) -> Any:
        with override_status(False):
            return func(*args, **kwargs)

    run_unconverted.ag_do_not_convert = True  # type: ignore[attr-defined]
    return run_unconverted


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Set how many messages AutoGraph writes to the logger `meshflow.autograph`.

    Args:
      level: 0 for warnings only; 1 or more to log functions that are not converted.
      alsologtostdout: Whether to print the messages, too.

    Example:
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
    maximum_iterations: int | Tensor | None = None,
    shape_invariants: Sequence[tuple[Any, Any]] | None = None,
) -> None:
    """Set options of the loop that starts with this call.

    Outside of a staged loop it does nothing.

    Args:
      parallel_iterations: Ignored.
      swap_memory: Ignored.
      maximum_iterations: Maximum number of iterations of a staged loop.
      shape_invariants: With a value, loop variables may change their shapes; the program then runs op by op.

    Example:
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


def trace(*args: object) -> None:
    """Print values while a function is traced.

    Example:
      >>> tf.autograph.trace("size", 3)
      size 3
    """
    print(*args)
