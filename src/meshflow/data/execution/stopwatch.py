"""How long something took, and how many elements it gave."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """What a transformation, and all before it, spent in all passes so far.

    Attributes:
      elements: how many elements it gave.
      seconds: how long they took.
      running: whether a clock runs for it.
    """

    def __init__(self) -> None:
        self.elements = 0
        self.seconds = 0.0
        self.running = False

    def call(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function, with its time added."""
        if self.running:
            return fn(*arguments)
        self.running = True
        start = time.perf_counter()
        try:
            return fn(*arguments)
        finally:
            self.seconds += time.perf_counter() - start
            self.running = False
