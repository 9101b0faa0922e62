"""Functions that do not run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["CriticalSection"]


class CriticalSection:
    """Calls functions one after the other, also from several threads.

    Inside a `tf.function` ops run in program order anyway.

    Args:
      name: its name.
      shared_name: ignored.
      critical_section_def: not supported.
      import_scope: not supported.

    Example:
      >>> import meshflow as tf
      >>> section, v = tf.CriticalSection(), tf.Variable(1.0)
      >>> float(section.execute(lambda: v.assign_add(1.0)))
      2.0
    """

    def __init__(
        self,
        name: str | None = None,
        shared_name: str | None = None,
        critical_section_def: Any = None,
        import_scope: str | None = None,
    ) -> None:
        if critical_section_def is not None or import_scope is not None:
            raise ValueError("CriticalSection: there are no graphs to import one from.")
        self._name = name or "critical_section"
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def execute(
        self, fn: Callable[[], Any], exclusive_resource_access: bool = True, name: str | None = None
    ) -> Any:
        """What a function returns, called while no other one of this section runs.

        Args:
          fn: a function without arguments.
          exclusive_resource_access: ignored.
          name: ignored.
        """
        with self._lock:
            return fn()
