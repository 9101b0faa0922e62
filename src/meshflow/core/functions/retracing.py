"""Limits of retracing: a warning about frequent retracing, and the number of cached traces."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("meshflow")

# Maximum number of traces of a function. Beyond it, the trace with the oldest last call is deleted.
MAX_TRACES = 512
_RECENT_CALLS = 10
_MIN_TRACES_TO_WARN = 5
_MAX_WARNINGS = 2


class CallHistory:
    """The latest calls of all functions created from one piece of code, and which of them traced.

    Functions that are repeatedly created from the same code, for example by a decorator in a loop,
    share a history, because each of them is traced only once.

    Args:
      warns: Whether to warn about frequent traces.

    Attributes:
      calls: Number of calls.
    """

    def __init__(self, warns: bool = True) -> None:
        self.calls = 0
        self._warns = warns
        self._traced_calls: list[int] = []
        self._warnings = 0

    def add_trace(self, name: str) -> None:
        """Record that the present call traced; warn if many of the latest calls did."""
        if not self._warns:
            return
        self._traced_calls = [
            call for call in self._traced_calls if call > self.calls - _RECENT_CALLS
        ]
        self._traced_calls.append(self.calls)
        if len(self._traced_calls) < _MIN_TRACES_TO_WARN or self._warnings == _MAX_WARNINGS:
            return
        self._warnings += 1
        _log.warning(
            "%d out of the last %d calls to %s triggered tf.function retracing. Tracing is expensive "
            "and the excessive number of tracings could be due to (1) creating @tf.function repeatedly "
            "in a loop, (2) passing tensors with different shapes, (3) passing Python objects instead "
            "of tensors.",
            len(self._traced_calls),
            min(self.calls, _RECENT_CALLS),
            name,
        )


_histories: weakref.WeakKeyDictionary[Any, CallHistory] = weakref.WeakKeyDictionary()


def get_history(function: Callable[..., Any]) -> CallHistory:
    """Return the history of the code of a Python function.

    Args:
      function: A function, method or other callable. If its attribute `is_stored_program` is true,
        it only calls programs that were traced before, and no Python code runs again.
    """
    if getattr(function, "is_stored_program", False):
        return CallHistory(warns=False)
    unwrapped = inspect.unwrap(function)
    unwrapped = getattr(unwrapped, "__func__", unwrapped)
    try:
        return _histories.setdefault(getattr(unwrapped, "__code__", unwrapped), CallHistory())
    except TypeError:  # The object does not support weak references or hashing.
        return CallHistory()
