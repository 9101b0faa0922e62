"""Writing in a thread, while training goes on.

What is written is held as it was when writing began: whoever writes a variable meanwhile finds its array shared,
and goes on with a copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("meshflow")


class Background:
    """One piece of work at a time in a thread; the program does not end before it has."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Begins work, after what was begun before has ended.

        Args:
          work: called in the thread.

        Raises:
          Exception: what the work before raised.
        """
        self.wait()

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
                _log.error("A checkpoint could not be written: %s", error)

        self._thread = threading.Thread(target=guarded, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits until all is done.

        Raises:
          Exception: what the work raised, once.
        """
        # What the work itself calls does not wait for it.
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
