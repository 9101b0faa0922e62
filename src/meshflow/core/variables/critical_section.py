"""`CriticalSection`: functions that never run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class CriticalSection:
    """Call functions one after the other, also from several threads.

    Inside a `tf.function`, ops run in program order anyway.

    Args:
      name: Name of the section.
      shared_name: Ignored.
      critical_section_def: Not supported.
      import_scope: Not supported.

    Example:
      >>> section, v = tf.CriticalSection(), tf.Variable(1.0)
      >>> float(section.execute(lambda: v.assign_add(1.0)))
      2.0
    """

    def __init__(
        self,
        name: str | None = None,
        shared_name: str | None = None,
        critical_section_def: object = None,
        import_scope: str | None = None,
    ) -> None:
        if critical_section_def is not None or import_scope is not None:
            raise ValueError("CriticalSection: there are no graphs to import one from.")
        self._name = name or "critical_section"
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """Return the name of the section."""
        return self._name

    def execute(
        self, fn: Callable[[], T], exclusive_resource_access: bool = True, name: str | None = None
    ) -> T:
        """Call a function while no other function of this section runs, and return its result.

        Args:
          fn: A function without arguments.
          exclusive_resource_access: Ignored.
          name: Ignored.
        """
        with self._lock:
            return fn()
