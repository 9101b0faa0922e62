"""Ctrl-C during training: the step in progress ends first, so that no variable is half written."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interruptible:
    """Within its `with` block an interrupt only sets a flag; `check` raises it between steps.

    A second Ctrl-C raises at once. Outside the main thread signals cannot be handled, and
    nothing changes.
    """

    def __init__(self) -> None:
        self._pending = False
        self._previous: Any = None

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            if self._previous is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._handle)
            else:
                # Somebody (a notebook, a test) handles interrupts in their own way.
                self._previous = None
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            raise KeyboardInterrupt
        self._pending = True

    def check(self) -> None:
        """Raises KeyboardInterrupt when one is pending."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
