"""A stopwatch that measures the time and number of elements of a transformation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """The time and number of elements of a transformation and its ancestors, in all passes so far.

    Attributes:
      elements: Number of elements that the transformation produced.
      seconds: Time that they took.
      running: Whether the time is being measured, by an outer call.
    """

    def __init__(self) -> None:
        self.elements = 0
        self.seconds = 0.0
        self.running = False

    def call(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and add its time."""
        if self.running:
            return fn(*arguments)
        self.running = True
        start = time.perf_counter()
        try:
            return fn(*arguments)
        finally:
            self.seconds += time.perf_counter() - start
            self.running = False
