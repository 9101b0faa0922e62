"""Ctrl-C during training: the current step ends first, so that no variable is partly updated."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interruptible:
    """Context manager that defers interrupts until `check` is called between steps.

    A second Ctrl-C raises `KeyboardInterrupt` immediately. Outside the main thread, where Python
    cannot handle signals, the context manager has no effect.
    """

    def __init__(self) -> None:
        self._pending = False
        self._previous: Any = None

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            if self._previous is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._handle_signal)
            else:
                # A notebook or a test installed its own handler, which remains in use.
                self._previous = None
        return self

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        if self._pending:
            raise KeyboardInterrupt
        self._pending = True

    def raise_if_pending(self) -> None:
        """Raise `KeyboardInterrupt` if an interrupt is pending."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
