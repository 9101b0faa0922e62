"""Errors of Python code that a compiled program calls (checks, `py_function`).

XLA reports a failed callback as an error of its own that quotes a traceback. The callbacks keep
the original exception here, and whoever runs the program raises that instead.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import jax

_failures: collections.deque[BaseException] = collections.deque(maxlen=8)


def keeping_errors(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback whose exception `finish` can raise again."""

    @functools.wraps(callback)
    def wrapped(*args: Any) -> Any:
        try:
            return callback(*args)
        except Exception as error:
            _failures.append(error)
            raise

    return wrapped


def keep_error(error: BaseException) -> None:
    """Keeps an error that `finish` raises when the program has ended."""
    _failures.append(error)


def finish(run: Callable[..., Any], *args: Any) -> Any:
    """Runs a program that calls Python and waits for its end, as its checks are part of it.

    Raises:
      Exception: the first one that the called Python code raised.
    """
    _failures.clear()
    try:
        outputs = run(*args)
        jax.block_until_ready(outputs)
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        if _failures:
            raise _failures[0] from None
        raise
    if _failures:
        raise _failures[0]
    return outputs
