"""Queue of scheduled closures, with back-pressure, backup runs and cancellation after errors."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from meshflow.distribute.parameter_server.closures.remote_values import RemoteValue
from meshflow.distribute.parameter_server.worker.server_client import AttemptFailedError

_CANCELLED = "The closure was cancelled: another one has failed."
_ENDED = "The coordinator has ended."
# An idle worker also runs a closure that takes this many times the typical duration. It checks at
# this interval, in seconds.
_BACKUP_FACTOR, _POLL_SECONDS = 3.0, 0.05


class Closure:
    """A scheduled call of a function.

    Args:
      closure_id: Id of the closure. Ids are consecutive.
      function: The function.
      args: Its arguments.
      kwargs: Its keyword arguments.
      min_clocks: The clock of each server when the closure was scheduled. The closure sees at least
        the changes up to them.
    """

    def __init__(
        self,
        closure_id: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        min_clocks: list[int],
    ) -> None:
        self.closure_id, self.function, self.args, self.kwargs = closure_id, function, args, kwargs
        self.min_clocks = min_clocks
        self.result = RemoteValue()
        # The time of the first start, the number of workers that run the closure now, and the
        # number of workers that died during it.
        self.start_time = 0.0
        self.num_runs = self.num_deaths = 0
        # Source of the ids of attempts.
        self.attempt_ids = itertools.count()

    def __lt__(self, other: Closure) -> bool:
        return self.closure_id < other.closure_id


class ClosureQueue:
    """The closures that wait, in the order of their ids, and those that run.

    Args:
      size: Maximum number of waiting closures. `put` blocks when there are as many.
      backups: Whether an idle worker also runs a closure that takes long on another worker.
    """

    def __init__(self, size: int, backups: bool = False) -> None:
        self._size, self._backups = size, backups
        self._waiting: list[Closure] = []
        self._running: dict[int, Closure] = {}
        # The conditions share a lock. Workers wait for closures, callers of `put` for room, and
        # callers of `join` for the end of closures. Three conditions avoid waking up threads
        # without need, which costs more than the rest of the queue.
        lock = threading.RLock()
        self._closure_added, self._room_made, self._closure_finished = (
            threading.Condition(lock) for _ in range(3)
        )
        self._error: BaseException | None = None
        self._closed = False
        self._next = 0
        # Moving average of the duration of closures, in seconds.
        self._typical_duration: float | None = None

    def put(self, make: Callable[[int], Closure]) -> Closure:
        """Add a closure, after waiting for room. Raise the error of an earlier closure.

        Args:
          make: Creates the closure from its id.
        """
        with self._room_made:
            self._room_made.wait_for(
                lambda: len(self._waiting) < self._size or self._error is not None
            )
            self._raise_error()
            closure = make(self._next)
            self._next += 1
            heapq.heappush(self._waiting, closure)
            self._closure_added.notify()
            return closure

    def take(self, is_wanted: Callable[[], bool] = lambda: True) -> Closure | None:
        """Wait for the next closure, count it as running and return it.

        Args:
          is_wanted: Checked while no closure is available. The method returns None once it is
            false.

        Returns:
          The closure, or None if the queue is closed or the closure is not wanted any more.
        """
        with self._closure_added:
            while is_wanted() and not self._closed:
                closure = self._pop_closure()
                if closure is not None:
                    closure.num_runs += 1
                    self._running[closure.closure_id] = closure
                    self._room_made.notify()
                    if self._backups:
                        # Idle workers are woken up to check from now on whether this closure takes
                        # long.
                        self._closure_added.notify_all()
                    return closure
                self._closure_added.wait(_POLL_SECONDS if self._backups and self._running else None)
            # This thread may have consumed the notification of a closure that another worker waits
            # for.
            self._closure_added.notify()
            return None

    def _pop_closure(self) -> Closure | None:
        if self._waiting:
            closure = heapq.heappop(self._waiting)
            closure.start_time = time.monotonic()
            return closure
        if self._backups and self._typical_duration is not None and self._running:
            slowest = min(self._running.values(), key=lambda c: c.start_time)
            if (
                slowest.num_runs == 1
                and time.monotonic() - slowest.start_time > _BACKUP_FACTOR * self._typical_duration
            ):
                return slowest
        return None

    def put_back(self, closure: Closure) -> None:
        """Queue a closure again, before all others, because its worker was lost.

        It is not cancelled after an error of another closure, because some servers may have applied
        its writes, and then the others must apply them too.
        """
        with self._closure_added:
            closure.num_runs -= 1
            if closure.num_runs == 0 and self._running.pop(closure.closure_id, None) is not None:
                if self._closed:
                    closure.result._cancel(_ENDED)
                else:
                    heapq.heappush(self._waiting, closure)
                    self._closure_added.notify()
            self._closure_finished.notify_all()

    def finish(
        self,
        closure: Closure,
        value: Any = None,
        error: BaseException | None = None,
        on_first_result: Callable[[], None] = lambda: None,
    ) -> None:
        """Record the result of a closure. An error cancels all waiting closures.

        Args:
          closure: The closure.
          value: Its result.
          error: The exception that it raised, or None.
          on_first_result: Called before the result is published, unless another run of the closure
            has finished before.
        """
        with self._closure_finished:
            closure.num_runs -= 1
            if isinstance(error, AttemptFailedError) and closure.num_runs:
                return  # The attempt that has failed will report its error.
            is_first = self._running.pop(closure.closure_id, None) is not None
            if is_first and error is not None:
                closure.result._set_error(error)
                self._error = self._error or error
                self._cancel_waiting(_CANCELLED, [c for c in self._waiting if c.num_deaths])
                self._room_made.notify_all()
            elif is_first:
                on_first_result()
                closure.result._set_value(value)
                duration = time.monotonic() - closure.start_time
                self._typical_duration = (
                    duration
                    if self._typical_duration is None
                    else 0.9 * self._typical_duration + 0.1 * duration
                )
            if not self._running:
                self._closure_finished.notify_all()

    def get_floor(self) -> int:
        """Return the smallest id of a closure that is not finished."""
        with self._closure_added:
            waiting = [self._waiting[0].closure_id] if self._waiting else []
            return min([*waiting, *self._running], default=self._next)

    def join(self) -> None:
        """Wait until no closure waits or runs. Raise the first error."""
        with self._closure_finished:
            self._closure_finished.wait_for(lambda: not self._waiting and not self._running)
            self._raise_error()

    def is_done(self) -> bool:
        """Check whether no closure waits or runs. Raise the first error."""
        with self._closure_finished:
            self._raise_error()
            return not self._waiting and not self._running

    def wake_workers(self) -> None:
        """Wake up workers that wait for a closure, to check whether they still want one."""
        with self._closure_added:
            self._closure_added.notify_all()

    def close(self) -> None:
        """Cancel the waiting closures and end all waits."""
        with self._closure_added:
            self._closed = True
            self._cancel_waiting(_ENDED)
            for condition in (self._closure_added, self._room_made, self._closure_finished):
                condition.notify_all()

    def _cancel_waiting(self, why: str, kept: Sequence[Closure] = ()) -> None:
        cancelled, self._waiting = self._waiting, list(kept)
        heapq.heapify(self._waiting)
        for closure in cancelled:
            if closure not in kept:
                closure.result._cancel(why)

    def __len__(self) -> int:
        return len(self._waiting)

    def _raise_error(self) -> None:
        if self._error is not None:
            # No closure may still be running when the program sees the error.
            self._closure_finished.wait_for(lambda: not self._waiting and not self._running)
            error, self._error = self._error, None
            if error is not None:
                raise error


class StalenessGate:
    """Gate that keeps workers from starting closures too far ahead of other active workers.

    Args:
      max_lead: Maximum number of closures by which a worker may be ahead, or None for no limit.
    """

    def __init__(self, max_lead: int | None) -> None:
        self._max_lead = max_lead
        # The number of closures that each worker has finished: of workers that run one now, and of
        # the others.
        self._active: dict[int, int] = {}
        self._idle: dict[int, int] = {}
        self._changed = threading.Condition()

    def enter(self, worker: int) -> None:
        """Wait until a worker may start its next closure."""
        if self._max_lead is None:
            return
        with self._changed:
            slowest = min(self._active.values(), default=0)
            # A worker that was idle is not the slowest one, so its count is raised to that of the
            # slowest one.
            count = self._active[worker] = max(self._idle.pop(worker, 0), slowest)
            max_lead = self._max_lead
            self._changed.wait_for(lambda: count - min(self._active.values()) <= max_lead)

    def leave(self, worker: int, finished: bool) -> None:
        """Record that a worker has finished its closure, or has lost it."""
        if self._max_lead is None:
            return
        with self._changed:
            self._idle[worker] = self._active.pop(worker) + finished
            self._changed.notify_all()
