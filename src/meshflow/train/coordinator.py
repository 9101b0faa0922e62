"""`tf.train.Coordinator`: coordinated termination of threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from meshflow.core.runtime.errors import OutOfRangeError

_POLL_SECONDS = 0.05


class Coordinator:
    """Coordinator that requests threads to stop, joins them, and raises the error of one of them.

    Args:
      clean_stop_exception_types: Errors that stop all threads, but that `join` does not raise;
        default the end of a dataset, `tf.errors.OutOfRangeError`.

    Example:
      >>> import threading
      >>> coordinator, done = tf.train.Coordinator(), []
      >>> def work():
      ...     while not coordinator.should_stop():
      ...         done.append(len(done))
      ...         if len(done) == 3:
      ...             coordinator.request_stop()
      >>> thread = threading.Thread(target=work)
      >>> thread.start()
      >>> coordinator.join([thread])
      >>> done
      [0, 1, 2]
    """

    def __init__(self, clean_stop_exception_types: tuple[type[BaseException], ...] | None = None):
        self._clean_types = (
            (OutOfRangeError,)
            if clean_stop_exception_types is None
            else tuple(clean_stop_exception_types)
        )
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._threads: set[threading.Thread] = set()
        self._joined = False

    @property
    def joined(self) -> bool:
        """Return whether `join` has finished, and all threads have ended."""
        return self._joined

    def should_stop(self) -> bool:
        """Check whether threads should stop."""
        return self._stop.is_set()

    def request_stop(self, ex: BaseException | tuple[Any, ...] | None = None) -> None:
        """Request all threads to stop.

        Args:
          ex: Error that `join` raises, or a tuple like `sys.exc_info()`; only the first error
            counts.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if self._joined:
                if error is not None:
                    raise error
                return
            if not self._stop.is_set():
                self._error = None if isinstance(error, self._clean_types) else error
                self._stop.set()

    def clear_stop(self) -> None:
        """Clear the request to stop and its error, so that threads can continue."""
        with self._lock:
            self._joined, self._error = False, None
            self._stop.clear()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Turn an error of the block into a request to stop; `join` raises it."""
        try:
            yield
        except BaseException as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until threads should stop, and return whether they should.

        Args:
          timeout: Maximum seconds to wait; None waits forever.
        """
        return self._stop.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Add a thread for `join` to wait for."""
        with self._lock:
            self._threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until the threads are requested to stop or have ended, and then until all have ended.

        Args:
          threads: Threads to wait for, in addition to the registered ones.
          stop_grace_period_secs: Maximum seconds to wait after the request to stop.
          ignore_live_threads: Whether threads that are still running afterwards are no error.

        Raises:
          Exception: The error that was passed to `request_stop`.
          RuntimeError: Threads are still running; the message contains their names.
        """
        joined = sorted({*self._threads, *(threads or ())}, key=lambda thread: thread.name)
        while not self._stop.wait(_POLL_SECONDS) and any(thread.is_alive() for thread in joined):
            pass
        # The threads may have ended without a request to stop.
        self._stop.set()
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in joined:
            thread.join(max(0.0, deadline - time.monotonic()))
        running = [thread.name for thread in joined if thread.is_alive()]
        self._joined = True
        self._threads = set()
        self.raise_requested_exception()
        if running and not ignore_live_threads:
            raise RuntimeError(
                f"Coordinator stopped with threads still running: {' '.join(running)}"
            )

    def raise_requested_exception(self) -> None:
        """Raise the error that was passed to `request_stop`, if any."""
        with self._lock:
            if self._error is not None:
                raise self._error
