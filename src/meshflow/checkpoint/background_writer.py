"""Background thread that writes checkpoints while training continues.

The writer holds the arrays as they were when writing started. An assignment to a variable meanwhile
finds its array shared and
writes to a copy, so the snapshot is consistent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("meshflow")


class BackgroundWriter:
    """Thread that runs one task at a time. The program does not exit before a task is done."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, task: Callable[[], None]) -> None:
        """Start a task after the previous one has finished.

        Args:
          task: Function to call in the thread.

        Raises:
          Exception: The error of the previous task.
        """
        self.wait()

        def run_task() -> None:
            try:
                task()
            except BaseException as error:
                self._error = error
                _log.error("Could not write a checkpoint in the background: %s", error)

        self._thread = threading.Thread(target=run_task, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the current task has finished.

        Raises:
          Exception: The error of the task. It is raised once.
        """
        # A task that calls this function, for example through `sync`, must not wait for itself.
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
