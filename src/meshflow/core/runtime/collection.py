"""Python's collector of cycles, which rests while modules are imported, and programs traced and lowered.

Both make some hundred thousand objects that live as long as the program. The collector starts again and again
because of them, and looks at every object of the process each time, for a tenth of the time that they take.
What imports made it leaves alone from then on; to take it apart at a process's end took a third of a short one's time.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType

from meshflow.environment.jax_internals import xla_bridge

__all__ = ["leave_imports_alone", "resting"]


class _Rest:
    """A `with` block in which the collector does not start by itself; in one that was off before, nothing changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0 and self._was_on:
                gc.enable()


# One for all threads: the last that leaves it has the collector go on.
resting = _Rest()


def leave_imports_alone() -> None:
    """Has the collector leave alone all that is there (`gc.freeze`), as long as the program only imported.

    Once a device was used there may be models, which are cycles and have to go when nobody needs them.
    """
    if not xla_bridge.backends_are_initialized():
        gc.freeze()
