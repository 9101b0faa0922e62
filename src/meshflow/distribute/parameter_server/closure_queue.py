"""The closures that wait for workers: how many there may be, which is next, and what is over."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from meshflow.distribute.parameter_server.remote_values import RemoteValue

__all__ = ["Closure", "ClosureQueue", "Gate"]

_CANCELLED = "The closure was cancelled: another one has failed."
# A closure that takes so many times as long as others is run by an idle worker too, which looks so often.
_SLOW, _LOOK = 3.0, 0.05


class Closure:
    """A scheduled function.

    Args:
      number: its number.
      function: the function.
      args: its arguments.
      kwargs: its keyword arguments.
      after: the servers' clocks when it was scheduled.
    """

    def __init__(
        self, number: int, function: Any, args: Any, kwargs: Any, after: list[int]
    ) -> None:
        self.number, self.function, self.args, self.kwargs = number, function, args, kwargs
        self.after = after
        self.result = RemoteValue()
        # When it was first begun, on how many workers it runs now, and how often a worker died with it.
        self.begun = 0.0
        self.runs = self.deaths = 0
        # Numbers the attempts.
        self.attempts = itertools.count()

    def __lt__(self, other: Closure) -> bool:
        return self.number < other.number


class ClosureQueue:
    """Closures that wait, in the order of their numbers, and those that run.

    Args:
      size: how many may wait; who schedules more is kept waiting.
      backups: whether a closure that takes long is run by a second worker, when that has nothing else to do.
    """

    def __init__(self, size: int, backups: bool = False) -> None:
        self._size, self._backups = size, backups
        self._waiting: list[Closure] = []
        self._running: dict[int, Closure] = {}
        # Each is told of what it waits for: waking threads costs more than handing out closures. Workers wait for closures,
        # who schedules for room, and others for closures to end.
        lock = threading.RLock()
        self._more, self._room, self._over = (threading.Condition(lock) for _ in range(3))
        self._error: BaseException | None = None
        self._closed = False
        self._next = 0
        # What a closure has taken lately, in seconds.
        self._usual: float | None = None

    def put(self, make: Callable[[int], Closure]) -> Closure:
        """Adds a closure, when there is room; raises the error of an earlier one.

        Args:
          make: makes the closure of a number.
        """
        with self._room:
            self._room.wait_for(lambda: len(self._waiting) < self._size or self._error is not None)
            self._raise()
            closure = make(self._next)
            self._next += 1
            heapq.heappush(self._waiting, closure)
            self._more.notify()
            return closure

    def take(self, is_wanted: Callable[[], bool] = lambda: True) -> Closure | None:
        """The next closure, waiting for one; None at the end.

        Args:
          is_wanted: says, while nothing is there, whether the worker still wants one.
        """
        with self._more:
            while is_wanted() and not self._closed:
                closure = self._next_one()
                if closure is not None:
                    closure.runs += 1
                    self._running[closure.number] = closure
                    self._room.notify()
                    if self._backups:
                        # Who has nothing to do looks from now on whether this one takes long.
                        self._more.notify_all()
                    return closure
                self._more.wait(_LOOK if self._backups and self._running else None)
            # What this one was told is another's.
            self._more.notify()
            return None

    def _next_one(self) -> Closure | None:
        if self._waiting:
            closure = heapq.heappop(self._waiting)
            closure.begun = time.monotonic()
            return closure
        if self._backups and self._usual is not None and self._running:
            slowest = min(self._running.values(), key=lambda c: c.begun)
            if slowest.runs == 1 and time.monotonic() - slowest.begun > _SLOW * self._usual:
                return slowest
        return None

    def put_back(self, closure: Closure) -> None:
        """Has a closure that did not come to its end run again, before the others."""
        with self._more:
            closure.runs -= 1
            if closure.runs == 0 and self._running.pop(closure.number, None) is not None:
                if self._error is not None or self._closed:
                    closure.result._cancel(_CANCELLED)
                else:
                    heapq.heappush(self._waiting, closure)
                    self._more.notify()
            self._over.notify_all()

    def finish(
        self,
        closure: Closure,
        value: Any = None,
        error: BaseException | None = None,
        note: Callable[[], None] = lambda: None,
    ) -> None:
        """Notes what came of a closure; after an error all that wait are cancelled.

        Args:
          closure: the closure.
          value: its result.
          error: what it raised.
          note: called before anybody hears of the result, unless that was known from another worker.
        """
        with self._over:
            closure.runs -= 1
            first = self._running.pop(closure.number, None) is not None
            if first and error is not None:
                closure.result._fail(error)
                self._error = self._error or error
                self._cancel(_CANCELLED)
                self._room.notify_all()
            elif first:
                note()
                closure.result._set(value)
                taken = time.monotonic() - closure.begun
                self._usual = taken if self._usual is None else 0.9 * self._usual + 0.1 * taken
            if not self._running:
                self._over.notify_all()

    def floor(self) -> int:
        """The smallest number of a closure that is not over."""
        with self._more:
            waiting = [self._waiting[0].number] if self._waiting else []
            return min([*waiting, *self._running], default=self._next)

    def join(self) -> None:
        """Waits until nothing waits or runs; raises the first error."""
        with self._over:
            self._over.wait_for(lambda: not self._waiting and not self._running)
            self._raise()

    def is_done(self) -> bool:
        """Whether nothing waits or runs; raises the first error."""
        with self._over:
            self._raise()
            return not self._waiting and not self._running

    def look_again(self) -> None:
        """Has those who wait for closures ask whether they want them still."""
        with self._more:
            self._more.notify_all()

    def close(self) -> None:
        """Has those who wait for closures end."""
        with self._more:
            self._closed = True
            self._cancel("The coordinator has ended.")
            for condition in (self._more, self._room, self._over):
                condition.notify_all()

    def _cancel(self, why: str) -> None:
        cancelled, self._waiting = self._waiting, []
        for closure in cancelled:
            closure.result._cancel(why)

    def __len__(self) -> int:
        return len(self._waiting)

    def _raise(self) -> None:
        if self._error is not None:
            # Nothing may run any more when the program hears of it.
            self._over.wait_for(lambda: not self._running)
            error, self._error = self._error, None
            if error is not None:
                raise error


class Gate:
    """Lets workers begin closures so that none is more than a number of them ahead of another that works.

    Args:
      most: the number; None for any.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        # How many closures each worker that has one has finished; and those of the others.
        self._working: dict[int, int] = {}
        self._resting: dict[int, int] = {}
        self._changed = threading.Condition()

    def enter(self, worker: int) -> None:
        """Waits until a worker may begin its next closure."""
        if self._most is None:
            return
        with self._changed:
            others = min(self._working.values(), default=0)
            # Who had nothing to do has not fallen behind.
            own = self._working[worker] = max(self._resting.pop(worker, 0), others)
            most = self._most
            self._changed.wait_for(lambda: own - min(self._working.values()) <= most)

    def leave(self, worker: int, finished: bool) -> None:
        """Notes that a worker has finished a closure, or has lost it."""
        if self._most is None:
            return
        with self._changed:
            self._resting[worker] = self._working.pop(worker) + finished
            self._changed.notify_all()
