"""`ClusterCoordinator`: closures for workers, each done exactly once."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.distribute.parameter_server.cluster import Cluster, WorkerLostError
from meshflow.distribute.parameter_server.remote_values import PerWorkerDataset, RemoteValue
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.distribute.parameter_server.worker import Call, Outcome, StateNeededError

__all__ = ["ClusterCoordinator", "current_worker_index"]

# As in TensorFlow: so many closures may wait.
QUEUE_SIZE = 256 * 1024


class _Closure:
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


class _Queue:
    """Closures that wait, and how many run.

    Args:
      size: how many may wait; who schedules more is kept waiting.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[_Closure] = deque()
        self._running: dict[int, _Closure] = {}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._next = 0

    def put(self, make: Callable[[int], _Closure]) -> _Closure:
        """Adds a closure, when there is room; raises the error of an earlier one."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._waiting) < self._size or self._error is not None
            )
            self._raise()
            closure = make(self._next)
            self._next += 1
            self._waiting.append(closure)
            self._changed.notify_all()
            return closure

    def take(self) -> _Closure | None:
        """The next closure, waiting for one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            closure = self._waiting.popleft()
            self._running[closure.number] = closure
            self._changed.notify_all()
            return closure

    def put_back(self, closure: _Closure) -> None:
        """Has a closure that did not come to its end run again, before the others."""
        with self._changed:
            self._running.pop(closure.number, None)
            if self._error is not None or self._closed:
                closure.result._cancel(_CANCELLED)
            else:
                self._waiting.appendleft(closure)
            self._changed.notify_all()

    def finish(self, closure: _Closure, error: BaseException | None = None) -> None:
        """Notes that a closure has come to its end; after an error all that wait are cancelled."""
        with self._changed:
            self._running.pop(closure.number, None)
            if error is not None:
                self._error = self._error or error
                while self._waiting:
                    self._waiting.popleft().result._cancel(_CANCELLED)
            self._changed.notify_all()

    def floor(self) -> int:
        """The smallest number of a closure that is not over."""
        with self._changed:
            open_ = [*self._running, *(c.number for c in self._waiting)]
            return min(open_, default=self._next)

    def join(self) -> None:
        """Waits until nothing waits or runs; raises the first error."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running)
            self._raise()

    def is_done(self) -> bool:
        """Whether nothing waits or runs; raises the first error."""
        with self._changed:
            self._raise()
            return not self._waiting and not self._running

    def close(self) -> None:
        """Has those who wait for closures end."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().result._cancel("the coordinator has ended")
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._waiting)

    def _raise(self) -> None:
        if self._error is not None:
            # Nothing may run any more when the program hears of it.
            self._changed.wait_for(lambda: not self._running)
            error, self._error = self._error, None
            raise error


_CANCELLED = "The closure was cancelled: another one has failed."


class ClusterCoordinator:
    """Sends closures to the workers of a `ParameterServerStrategy`.

    Args:
      strategy: the strategy. There is one coordinator for each: constructed again, it is the same.

    Raises:
      ValueError: for another strategy.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.ParameterServerStrategy(engine="threads")
      >>> coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
      >>> result = coordinator.schedule(tf.function(lambda x: x * 2), args=(tf.constant(21),))
      >>> int(coordinator.fetch(result))
      42
    """

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidValueError(
                "Only `tf.distribute.ParameterServerStrategy` is supported to work with `ClusterCoordinator`, got "
                f"{strategy!r}."
            )
        if strategy._coordinator is None:
            made = super().__new__(cls)
            made._begin(strategy)
            strategy._coordinator = made
        return strategy._coordinator

    def _begin(self, strategy: Any) -> None:
        self._strategy = strategy
        self._queue = _Queue(QUEUE_SIZE)
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        weakref.finalize(self, self._queue.close)

    @property
    def strategy(self) -> Any:
        """The strategy."""
        return self._strategy

    # ---- closures --------------------------------------------------------------------------

    def schedule(self, fn: Callable[..., Any], args: Any = None, kwargs: Any = None) -> RemoteValue:
        """Has some worker call a function, and returns at once.

        Args:
          fn: a `tf.function`, or any function.
          args: its arguments; of `PerWorkerValues` and iterators of `create_per_worker_dataset` it gets the
            worker's own.
          kwargs: its keyword arguments.

        Returns:
          A `RemoteValue`.

        Raises:
          TypeError: when `fn` cannot be called.
          ValueError: when an argument is a `RemoteValue`.
          Exception: what an earlier closure raised; all that waited were cancelled.
        """
        if not callable(fn):
            raise TypeError(
                "`tf.distribute.coordinator.ClusterCoordinator.schedule` only accepts a `tf.function` or another "
                f"function, got {fn!r}."
            )
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        if any(isinstance(leaf, RemoteValue) for leaf in nest.flatten((args, kwargs))):
            raise InvalidValueError(
                "ClusterCoordinator.schedule: an argument is a RemoteValue; fetch() it, or have one function do both."
            )
        self._start()
        after = list(self._strategy.cluster.clocks)
        return self._queue.put(lambda number: _Closure(number, fn, args, kwargs, after)).result

    def join(self) -> None:
        """Waits until all closures have come to their end.

        Raises:
          Exception: what the first one raised that failed. Those that waited are cancelled, and nothing runs any
            more.
        """
        self._queue.join()

    def done(self) -> bool:
        """Whether all closures have come to their end; raises what `join` raises."""
        return self._queue.is_done()

    def fetch(self, val: Any) -> Any:
        """The results in the place of `RemoteValue`s; waits for them.

        Args:
          val: a structure of `RemoteValue`s.

        Raises:
          CancelledError: when a closure was cancelled.
          Exception: a closure's own.
        """
        return nest.map_structure(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val
        )

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """A dataset that every worker makes for itself.

        Args:
          dataset_fn: a function without arguments that returns a dataset, or a dataset.

        Returns:
          Whose `iter()` is an argument for closures. A worker that replaces a dead one begins a new iterator.
        """
        return PerWorkerDataset(dataset_fn)

    # ---- workers ---------------------------------------------------------------------------

    def _start(self) -> None:
        with self._starting:
            if self._threads:
                return
            cluster = self._strategy.cluster
            cluster.start(self._strategy)
            for number in range(cluster.worker_count):
                serve = _Serving(self._strategy, self._queue, number).run
                thread = threading.Thread(
                    target=serve, name=f"meshflow-worker-{number}", daemon=True
                )
                self._threads.append(thread)
                thread.start()


class _Serving:
    """What the coordinator does for one worker: gives it closures, and hears what came of them.

    Args:
      strategy: the strategy.
      queue: the closures.
      number: the worker's number.
    """

    def __init__(self, strategy: Any, queue: _Queue, number: int) -> None:
        self._strategy, self._queue, self._number = strategy, queue, number
        self._cluster: Cluster = strategy.cluster

    def run(self) -> None:
        """Until the end."""
        while (closure := self._queue.take()) is not None:
            try:
                outcome = self._outcome(closure)
            except WorkerLostError:
                self._queue.put_back(closure)
            except BaseException as error:
                closure.result._fail(error)
                self._queue.finish(closure, error)
            else:
                self._cluster.heard(outcome.clocks)
                closure.result._set(outcome.value)
                self._queue.finish(closure)

    def _outcome(self, closure: _Closure) -> Outcome:
        while True:
            call = Call(
                closure.number, closure.function, closure.args, closure.kwargs, closure.after,
                self._queue.floor(), self._strategy.states,
            )  # fmt: skip
            try:
                return self._cluster.run(self._number, call)
            except StateNeededError as need:
                self._strategy.make_state(need.optimizer, need.variables)


def current_worker_index() -> int:
    """The number of the worker that runs this closure.

    Raises:
      RuntimeError: outside of closures.
    """
    if context.closure is None:
        raise RuntimeError(
            "Cannot retrieve the worker index: this is no function run by ClusterCoordinator."
        )
    number: int = context.closure.worker
    return number
