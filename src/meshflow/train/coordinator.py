"""`tf.train.Coordinator`: threads that end together."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from meshflow.core.runtime.errors import OutOfRangeError

__all__ = ["Coordinator"]

_PAUSE = 0.05


class Coordinator:
    """Tells threads to end, waits for them, and raises what one of them raised.

    Args:
      clean_stop_exception_types: errors that end all threads but are not raised by `join`; default the end of a
        dataset, `tf.errors.OutOfRangeError`.

    Example:
      >>> import meshflow as tf
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
        self._clean = (
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
        """Whether `join` has ended without threads that go on."""
        return self._joined

    def should_stop(self) -> bool:
        """Whether threads are to end."""
        return self._stop.is_set()

    def request_stop(self, ex: Any = None) -> None:
        """Asks all threads to end.

        Args:
          ex: an error for `join` to raise, or a triple as `sys.exc_info()` gives; of several the first one counts.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if self._joined:
                if error is not None:
                    raise error
                return
            if not self._stop.is_set():
                self._error = None if isinstance(error, self._clean) else error
                self._stop.set()

    def clear_stop(self) -> None:
        """Begins anew: threads may go on, and an error is forgotten."""
        with self._lock:
            self._joined, self._error = False, None
            self._stop.clear()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """A context in which an error is not raised, but asks all threads to end and is raised by `join`."""
        try:
            yield
        except BaseException as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Waits until threads are to end.

        Args:
          timeout: for how many seconds at most; None for ever.

        Returns:
          Whether they are.
        """
        return self._stop.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Adds a thread that `join` waits for.

        Args:
          thread: the thread.
        """
        with self._lock:
            self._threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Waits until threads are asked to end or have ended, and then until they have.

        Args:
          threads: threads to wait for, besides those that were registered.
          stop_grace_period_secs: for how long, after they were asked.
          ignore_live_threads: whether threads that go on then are no error.

        Raises:
          Exception: what `request_stop` was given.
          RuntimeError: naming the threads that go on.
        """
        waited = sorted({*self._threads, *(threads or ())}, key=lambda thread: thread.name)
        while not self._stop.wait(_PAUSE) and any(thread.is_alive() for thread in waited):
            pass
        # A thread may have asked, and ended, in between.
        self._stop.set()
        until = time.monotonic() + stop_grace_period_secs
        for thread in waited:
            thread.join(max(0.0, until - time.monotonic()))
        left = [thread.name for thread in waited if thread.is_alive()]
        self._joined = True
        self._threads = set()
        self.raise_requested_exception()
        if left and not ignore_live_threads:
            raise RuntimeError(f"Coordinator stopped with threads still running: {' '.join(left)}")

    def raise_requested_exception(self) -> None:
        """Raises what `request_stop` was given; nothing happens without it."""
        with self._lock:
            if self._error is not None:
                raise self._error
