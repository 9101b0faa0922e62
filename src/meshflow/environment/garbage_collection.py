"""Control of Python's garbage collector during imports, tracing and lowering, and counts of references.

Imports, tracing and lowering allocate some hundred thousand long-lived objects. Each batch of
allocations triggers the collector, which visits every object of the process and takes about a tenth
of their time. Objects made by imports are therefore frozen: freeing them when a process exits took
a third of the run time of a short process.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from types import TracebackType

from meshflow.environment.jax_internals import xla_bridge


def _count_local_references() -> int:
    value = object()
    return sys.getrefcount(value)


# `sys.getrefcount(name)` returns this number for an object to which only the local variable `name` refers: 2, or 1 from
# Python 3.14 on, where an argument borrows the reference of its variable.
LOCAL_REFERENCES = _count_local_references()


class _CollectorSuspension:
    """A reentrant, thread-safe context manager that disables automatic collections.

    It does not enable a collector that was disabled before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._was_enabled = gc.isenabled()
                gc.disable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._was_enabled:
                gc.enable()


# All threads share this object: the last thread that exits it enables the collector again.
suspend_collector = _CollectorSuspension()


class _Marker:
    """An object that only the collector frees, because it refers to itself."""

    def __init__(self) -> None:
        self._reference = self


def collect_garbage(timeout: float = 10.0) -> None:
    """Run a complete garbage collection.

    `gc.collect()` returns at once while another thread is collecting, although that collection may not see the
    newest garbage. This function repeats it until an object that has just become garbage is free.

    Args:
      timeout: Seconds after which it returns in any case, because the finalizer that the other thread runs may wait for
        a lock of this thread.

    Example:
      >>> cycle = []
      >>> cycle.append(cycle)
      >>> del cycle
      >>> collect_garbage()
    """
    marker = weakref.ref(_Marker())
    end = time.monotonic() + timeout
    gc.collect()
    while marker() is not None and time.monotonic() < end:
        time.sleep(0.001)
        gc.collect()


def freeze_imports() -> None:
    """Exclude all existing objects from garbage collection, if no device has been used.

    Once a device has been used, models may exist. They contain reference cycles, which must remain
    collectable.
    """
    if not xla_bridge.backends_are_initialized():
        gc.freeze()
