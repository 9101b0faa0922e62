"""`ClusterCoordinator`: closures for workers, each done exactly once."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    InvalidArgumentError,
    InvalidValueError,
    UnavailableError,
)
from meshflow.core.runtime.identity import IdentityWeakDict
from meshflow.core.values import nest
from meshflow.distribute.parameter_server.absent import CoordinatorOnly
from meshflow.distribute.parameter_server.closure_queue import Closure, ClosureQueue, Gate
from meshflow.distribute.parameter_server.cluster import Cluster, NoCluster, WorkerLostError
from meshflow.distribute.parameter_server.remote_values import PerWorkerDataset, RemoteValue
from meshflow.distribute.parameter_server.reports import Figures, Report
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.distribute.parameter_server.worker import (
    Call,
    Outcome,
    StateNeededError,
    VariablesNeededError,
)

__all__ = ["ClusterCoordinator", "current_worker_index"]

# A closure with which so many workers have died has killed them.
_DEATHS = 20
# For how many seconds a closure that runs at the end of the program is waited for.
_AT_THE_END = 5.0


class ClusterCoordinator(CoordinatorOnly):
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

    not_sendable_reason = (
        "The ClusterCoordinator stays in its own process: workers cannot schedule closures."
    )

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidValueError(
                "Only `tf.distribute.ParameterServerStrategy` is supported to work with `ClusterCoordinator`, got "
                f"{strategy!r}."
            )
        if isinstance(strategy.cluster, NoCluster):
            raise InvalidArgumentError(cls.not_sendable_reason)
        if strategy._cluster_coordinator is None:
            made = super().__new__(cls)
            made._begin(strategy)
            strategy._cluster_coordinator = made
        return strategy._cluster_coordinator

    def _begin(self, strategy: Any) -> None:
        self._strategy = strategy
        options = strategy.options
        self._queue = ClosureQueue(options.queue_size, options.backup_closures)
        self._gate = Gate(options.max_staleness)
        self._figures = Figures()
        cluster = strategy.cluster
        self._report = Report(
            self.statistics, lambda: cluster.stopped, options.report_every, options.log_dir
        )
        # What stands for concrete functions: in closures variables are others.
        self._retraced = IdentityWeakDict()
        self._serving: list[_Serving] = []
        self._starting = threading.Lock()
        atexit.register(_end, weakref.ref(self))

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
          TypeError: when `fn` cannot be called, or `args` are no tuple.
          ValueError: when an argument is a `RemoteValue`.
          Exception: what an earlier closure raised; all that waited were cancelled.
        """
        if not callable(fn):
            raise TypeError(
                "`tf.distribute.experimental.coordinator.ClusterCoordinator.schedule` only accepts a `tf.function` or a "
                f"concrete function. A plain function will do, too; got {fn!r}."
            )
        if not isinstance(args, (list, tuple, type(None))) or not isinstance(
            kwargs, (dict, type(None))
        ):
            raise TypeError(
                "ClusterCoordinator.schedule: `args` must be a tuple or list and `kwargs` a dictionary, got "
                f"{type(args).__name__} and {type(kwargs).__name__}."
            )
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        if any(isinstance(leaf, RemoteValue) for leaf in nest.flatten((args, kwargs))):
            raise InvalidValueError(
                "`tf.distribute.experimental.coordinator.RemoteValue` used as an input to scheduled function is not yet "
                "supported: fetch() it, or have one function do both."
            )
        if isinstance(fn, ConcreteFunction) and fn.retraced is not None:
            again = self._retraced.get(fn)
            if again is None:
                again = self._retraced[fn] = fn.retraced()
            fn = again
        self._start()
        after = list(self._strategy.cluster.clocks)
        return self._queue.put(lambda number: Closure(number, fn, args, kwargs, after)).result

    def join(self) -> None:
        """Waits until all closures have come to their end.

        Raises:
          Exception: what the first one raised that failed. Those that waited are cancelled, and nothing runs any
            more.
        """
        self._queue.join()
        self._report.write()

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

        Raises:
          ValueError: for what is neither.
        """
        if not callable(dataset_fn) and not hasattr(dataset_fn, "__iter__"):
            raise InvalidValueError(
                "Unexpected dataset type! ClusterCoordinator.create_per_worker_dataset takes a function that returns a "
                f"dataset, or a dataset, got {dataset_fn!r}."
            )
        return PerWorkerDataset(dataset_fn)

    # ---- workers ---------------------------------------------------------------------------

    def resize(self, workers: int) -> None:
        """Changes the number of workers while closures run: new ones join, the last ones leave when they are done.

        Args:
          workers: how many there are to be.

        Raises:
          ValueError: for less than one.
          NotImplementedError: for a cluster whose processes others begin.
        """
        if workers < 1:
            raise InvalidValueError(
                f"ClusterCoordinator.resize: workers must be at least 1, got {workers}."
            )
        self._start()
        with self._starting:
            self._strategy.cluster.resize(workers)
            leaving = [s for s in self._serving if s.number >= workers]
            self._queue.look_again()
            for serving in leaving:
                serving.thread.join()
            for number in {s.number for s in leaving}:
                self._strategy.cluster.retire(number)
            self._serving = [s for s in self._serving if s.number < workers]
            self._serve_new()

    def statistics(self) -> dict[str, Any]:
        """What has happened so far.

        Returns:
          A dictionary: "closures" done; "queued" now; "workers" alive now; "retries" of closures whose worker died;
          "preemptions" of workers; "server_restarts"; "repeated" pushes that servers knew already; "staleness", mean and
          "max_staleness" of pushes, in changes that others made between the pull and the push; "bytes_sent" and
          "bytes_received" by workers; "steps_per_second" since the first closure.
        """
        cluster = self._strategy.cluster
        return {
            **self._figures.so_far(),
            **cluster.counters,
            "queued": len(self._queue),
            "workers": cluster.alive(),
        }

    def _start(self) -> None:
        with self._starting:
            if self._serving:
                return
            self._strategy.cluster.start(self._strategy)
            self._serve_new()
            self._report.start()

    def _serve_new(self) -> None:
        cluster = self._strategy.cluster
        lanes = 1 if self._strategy.options.max_staleness is not None else cluster.lanes
        known = {s.number for s in self._serving}
        for number in range(cluster.worker_count):
            for _ in range(0 if number in known else lanes):
                made = _Serving(self._strategy, self._queue, self._gate, self._figures, number)
                self._serving.append(made)
                made.thread.start()


class _Serving:
    """What the coordinator does for one worker: gives it closures, and hears what came of them.

    Args:
      strategy: the strategy.
      queue: the closures.
      gate: lets it begin them.
      figures: counts them.
      number: the worker's number.
    """

    def __init__(
        self, strategy: Any, queue: ClosureQueue, gate: Gate, figures: Figures, number: int
    ) -> None:
        self._strategy, self._queue, self._gate, self._figures = strategy, queue, gate, figures
        self.number = number
        self._cluster: Cluster = strategy.cluster
        self.thread = threading.Thread(
            target=self._run, name=f"meshflow-worker-{number}", daemon=True
        )

    def _run(self) -> None:
        """Until the end, or until there are fewer workers."""
        while (
            closure := self._queue.take(lambda: self.number < self._cluster.worker_count)
        ) is not None:
            self._gate.enter(self.number)
            finished = False
            try:
                outcome = self._outcome(closure)
            except WorkerLostError as error:
                self._lost(closure, error)
            except BaseException as error:
                self._queue.finish(closure, error=error)
            else:
                finished = True
                self._cluster.heard(outcome.clocks)
                note = functools.partial(self._figures.add, outcome)
                self._queue.finish(closure, outcome.value, on_first_result=note)
            finally:
                self._gate.leave(self.number, finished)
            # Results are not held until the next closure comes.
            closure = outcome = note = None  # type: ignore[assignment]

    def _lost(self, closure: Closure, error: Exception) -> None:
        closure.deaths += 1
        if closure.deaths < _DEATHS:
            self._cluster.count("retries")
            self._queue.put_back(closure)
            return
        failure = UnavailableError(
            f"{_DEATHS} workers have died while they ran the same closure, {closure.function!r}."
        )
        failure.__cause__ = error
        self._queue.finish(closure, error=failure)

    def _outcome(self, closure: Closure) -> Outcome:
        after = closure.after
        if self._strategy.options.max_staleness is not None:
            # Not what was pulled for this worker when it finished its last one.
            after = list(self._cluster.clocks)
        attempt, own = next(closure.attempts), self._strategy.makes_own(closure.function)
        while True:
            call = Call(
                closure.number, closure.function, closure.args, closure.kwargs, after,
                self._queue.floor(), self._strategy.states, attempt=attempt,
                makes_own=own,
            )  # fmt: skip
            try:
                return self._cluster.run(self.number, call)
            except StateNeededError as need:
                self._strategy.make_state(need.optimizer, need.variables)
            except VariablesNeededError as need:
                own = not self._strategy.make_variables(call, need.known)


def _end(coordinator: weakref.ref[ClusterCoordinator]) -> None:
    """Ends the threads of a coordinator before the interpreter takes away what they use."""
    found = coordinator()
    if found is None:
        return
    found._queue.close()
    found._report.end()
    found.strategy.cluster.stop()
    for serving in found._serving:
        serving.thread.join(_AT_THE_END)


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
