"""Functions that are traced again and again: the warning, and how many of their traces are kept."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("meshflow")

# Traces that a function keeps: beyond, the one goes that was called least recently, with its program.
TRACES = 512
_CALLS = 10
_TRACES = 5
_WARNINGS = 2


class CallHistory:
    """The latest calls of the functions that one piece of code makes, and which of them traced.

    Functions made again and again from the same code, as by a decorator inside a loop, share a
    history, as each of them alone is traced only once.

    Args:
      warns: whether many traces are worth a warning.

    Attributes:
      calls: how many calls there have been.
    """

    def __init__(self, warns: bool = True) -> None:
        self.calls = 0
        self._warns = warns
        self._traced: list[int] = []
        self._warnings = 0

    def add_trace(self, name: str) -> None:
        """Notes that the present call traced; warns when many of the latest did.

        Args:
          name: the function's name.
        """
        if not self._warns:
            return
        self._traced = [call for call in self._traced if call > self.calls - _CALLS]
        self._traced.append(self.calls)
        if len(self._traced) < _TRACES or self._warnings == _WARNINGS:
            return
        self._warnings += 1
        _log.warning(
            "%d out of the last %d calls to %s triggered tf.function retracing. Tracing is expensive "
            "and the excessive number of tracings could be due to (1) creating @tf.function repeatedly "
            "in a loop, (2) passing tensors with different shapes, (3) passing Python objects instead "
            "of tensors.",
            len(self._traced),
            min(self.calls, _CALLS),
            name,
        )


_histories: weakref.WeakKeyDictionary[Any, CallHistory] = weakref.WeakKeyDictionary()


def history_of(function: Callable[..., Any]) -> CallHistory:
    """The history of the code of a Python function.

    Args:
      function: a function, method or other callable; one with a true attribute `is_stored_program` only calls
        programs that were traced before, of which no Python code runs again.
    """
    if getattr(function, "is_stored_program", False):
        return CallHistory(warns=False)
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    try:
        return _histories.setdefault(getattr(plain, "__code__", plain), CallHistory())
    except TypeError:  # no weak references to it, or no hash
        return CallHistory()
