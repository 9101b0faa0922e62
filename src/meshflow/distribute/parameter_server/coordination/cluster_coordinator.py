"""`ClusterCoordinator`, which schedules closures on workers.

The writes of each closure are applied exactly once.
"""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    InvalidArgumentError,
    InvalidValueError,
    UnavailableError,
)
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.values import nest
from meshflow.distribute.parameter_server.closures.remote_values import (
    PerWorkerDataset,
    RemoteValue,
)
from meshflow.distribute.parameter_server.closures.stubs import CoordinatorOnly
from meshflow.distribute.parameter_server.cluster.cluster import (
    Cluster,
    WorkerLostError,
    WorkerNotReadyError,
    WorkerSideCluster,
)
from meshflow.distribute.parameter_server.coordination.closure_queue import (
    Closure,
    ClosureQueue,
    StalenessGate,
)
from meshflow.distribute.parameter_server.coordination.progress_report import (
    ClosureStatistics,
    ProgressReport,
)
from meshflow.distribute.parameter_server.strategy import ParameterServerStrategy
from meshflow.distribute.parameter_server.worker.calls import (
    ClosureCall,
    Outcome,
    StateNeededError,
    VariablesNeededError,
)
from meshflow.environment.types import PyTree

# A closure fails if this many workers have died while they ran it.
_MAX_DEATHS = 20
# Seconds to wait for a running closure at the end of the program.
_SHUTDOWN_SECONDS = 5.0


class ClusterCoordinator(CoordinatorOnly):
    """Coordinator that runs closures on the workers of a `ParameterServerStrategy`.

    Args:
      strategy: The strategy. Each strategy has one coordinator, which repeated constructor calls
        return.

    Raises:
      ValueError: For another strategy.

    Example:
      >>> strategy = tf.distribute.ParameterServerStrategy(engine="threads")
      >>> coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
      >>> result = coordinator.schedule(tf.function(lambda x: x * 2), args=(tf.constant(21),))
      >>> int(coordinator.fetch(result))
      42
    """

    not_sendable_reason = (
        "The ClusterCoordinator cannot be used in a closure: workers cannot schedule closures."
    )

    def __new__(cls, strategy: ParameterServerStrategy) -> ClusterCoordinator:
        """Return the coordinator of a strategy, creating it on first use."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidValueError(
                "Only `tf.distribute.ParameterServerStrategy` is supported to work with `ClusterCoordinator`, got "
                f"{strategy!r}."
            )
        if isinstance(strategy.cluster, WorkerSideCluster):
            raise InvalidArgumentError(cls.not_sendable_reason)
        coordinator: ClusterCoordinator | None = strategy._cluster_coordinator
        if coordinator is None:
            coordinator = strategy._cluster_coordinator = super().__new__(cls)
            coordinator._initialize(strategy)
        return coordinator

    def _initialize(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy
        options = strategy.options
        self._queue = ClosureQueue(options.queue_size, options.backup_closures)
        self._gate = StalenessGate(options.max_staleness)
        self._statistics = ClosureStatistics()
        cluster = strategy.cluster
        self._report = ProgressReport(
            self.statistics, lambda: cluster.is_stopped, options.report_every, options.log_dir
        )
        # Functions that replace concrete functions. They are traced again, because a closure sees
        # other variables.
        self._retraced = IdentityWeakDict()
        self._dispatchers: list[_WorkerDispatcher] = []
        self._start_lock = threading.Lock()
        atexit.register(_stop_at_exit, weakref.ref(self))

    @property
    def strategy(self) -> ParameterServerStrategy:
        """Return the strategy."""
        return self._strategy

    # ---- closures --------------------------------------------------------------------------

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Schedule a call of a function on some worker, and return at once.

        Args:
          fn: A `tf.function`, or any function.
          args: Its arguments. `PerWorkerValues` and iterators of `create_per_worker_dataset` are
            replaced by the worker's own.
          kwargs: Its keyword arguments.

        Returns:
          A `RemoteValue`.

        Raises:
          TypeError: If `fn` is not callable, or `args` is no tuple or list.
          ValueError: If an argument is a `RemoteValue`.
          Exception: The exception of an earlier closure. All waiting closures were cancelled.
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
        if isinstance(fn, ConcreteFunction) and fn.retrace is not None:
            retraced = self._retraced.get(fn)
            if retraced is None:
                retraced = self._retraced[fn] = fn.retrace()
            fn = retraced
        self._start()
        clocks = list(self._strategy.cluster.clocks)
        return self._queue.put(lambda id_: Closure(id_, fn, args, kwargs, clocks)).result

    def join(self) -> None:
        """Wait until all closures have finished.

        Raises:
          Exception: The exception of the first closure that failed. Waiting closures were
            cancelled, and none runs any more.
        """
        self._queue.join()
        self._report.write()

    def done(self) -> bool:
        """Check whether all closures have finished. Raise the same exceptions as `join`."""
        return self._queue.is_done()

    def fetch(self, val: PyTree) -> PyTree:
        """Wait for results, and return them in place of `RemoteValue`s.

        Args:
          val: A structure of `RemoteValue`s.

        Raises:
          CancelledError: If a closure was cancelled.
          Exception: The exception that a closure has raised.
        """
        return nest.map_structure(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val
        )

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Return a dataset that every worker creates for itself.

        Args:
          dataset_fn: A function without arguments that returns a dataset, or a dataset.

        Returns:
          A dataset. Its iterator can be passed to `schedule`. A worker that replaces a lost one
          creates a new iterator.

        Raises:
          ValueError: If the argument is neither.
        """
        if not callable(dataset_fn) and not hasattr(dataset_fn, "__iter__"):
            raise InvalidValueError(
                "Unexpected dataset type! ClusterCoordinator.create_per_worker_dataset takes a function that returns a "
                f"dataset, or a dataset, got {dataset_fn!r}."
            )
        return PerWorkerDataset(dataset_fn)

    # ---- workers ---------------------------------------------------------------------------

    def resize(self, workers: int) -> None:
        """Change the number of workers while closures run.

        New workers join; superfluous workers, the last ones, leave when their closures have
        finished.

        Args:
          workers: The new number.

        Raises:
          ValueError: If the number is less than one.
          NotImplementedError: If the processes of the cluster are started externally.
        """
        if workers < 1:
            raise InvalidValueError(
                f"ClusterCoordinator.resize: workers must be at least 1, got {workers}."
            )
        self._start()
        with self._start_lock:
            self._strategy.cluster.resize(workers)
            leaving = [s for s in self._dispatchers if s.worker_id >= workers]
            self._queue.wake_workers()
            for dispatcher in leaving:
                dispatcher.thread.join()
            for worker_id in {s.worker_id for s in leaving}:
                self._strategy.cluster.retire(worker_id)
            self._dispatchers = [s for s in self._dispatchers if s.worker_id < workers]
            self._start_dispatchers()

    def statistics(self) -> dict[str, float]:
        """Return statistics of the job.

        Returns:
          A dictionary with the numbers of "closures" that have finished and that are "queued", of
          "workers", of "retries" of closures after the loss of a worker, of "preemptions" (lost
          workers), of "server_restarts", and of "repeated" closures, of which servers had applied
          writes before; the mean "staleness" and the "max_staleness" of pushes, as the number of
          changes by others between pull and push; "bytes_sent" and "bytes_received" by workers; and
          "steps_per_second" since the first closure.
        """
        cluster = self._strategy.cluster
        return {
            **self._statistics.get_statistics(),
            **cluster.counters,
            "queued": len(self._queue),
            "workers": cluster.count_workers(),
        }

    def _start(self) -> None:
        with self._start_lock:
            if self._dispatchers:
                return
            self._strategy.cluster.start(self._strategy)
            self._start_dispatchers()
            self._report.start()

    def _shut_down(self) -> None:
        self._queue.close()
        self._report.finish()
        self._strategy.cluster.stop()
        for dispatcher in self._dispatchers:
            dispatcher.thread.join(_SHUTDOWN_SECONDS)

    def _start_dispatchers(self) -> None:
        cluster = self._strategy.cluster
        lanes = (
            1 if self._strategy.options.max_staleness is not None else cluster.closures_per_worker
        )
        served_ids = {s.worker_id for s in self._dispatchers}
        for worker_id in range(cluster.worker_count):
            for _ in range(0 if worker_id in served_ids else lanes):
                dispatcher = _WorkerDispatcher(
                    self._strategy, self._queue, self._gate, self._statistics, worker_id
                )
                self._dispatchers.append(dispatcher)
                dispatcher.thread.start()


class _WorkerDispatcher:
    """Thread that dispatches closures to one worker and records their outcomes.

    Args:
      strategy: The strategy.
      queue: The closures.
      gate: Gate that limits the lead over other workers.
      statistics: Statistics of finished closures.
      worker_id: Index of the worker.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        queue: ClosureQueue,
        gate: StalenessGate,
        statistics: ClosureStatistics,
        worker_id: int,
    ) -> None:
        self._strategy, self._queue, self._gate = strategy, queue, gate
        self._statistics, self.worker_id = statistics, worker_id
        self._cluster: Cluster = strategy.cluster
        self.thread = threading.Thread(
            target=self._run, name=f"meshflow-worker-{worker_id}", daemon=True
        )

    def _run(self) -> None:
        """Dispatch closures until the queue is closed, or until there are fewer workers."""
        while (closure := self._take_closure()) is not None:
            self._gate.enter(self.worker_id)
            finished = False
            try:
                outcome = self._run_closure(closure)
            except WorkerNotReadyError:
                self._queue.put_back(closure)
            except WorkerLostError as error:
                self._handle_loss(closure, error)
            except BaseException as error:
                self._queue.finish(closure, error=error)
            else:
                finished = True
                self._cluster.update_clocks(outcome.clocks)
                note = functools.partial(self._statistics.add, outcome)
                self._queue.finish(closure, outcome.value, on_first_result=note)
            finally:
                self._gate.leave(self.worker_id, finished)
            # These references would keep the results until the next closure arrives.
            closure = outcome = note = None  # type: ignore[assignment]

    def _take_closure(self) -> Closure | None:
        # While the worker restarts, other workers run the closures.
        self._cluster.wait_for_worker(self.worker_id)
        return self._queue.take(lambda: self.worker_id < self._cluster.worker_count)

    def _handle_loss(self, closure: Closure, error: Exception) -> None:
        closure.num_deaths += 1
        if closure.num_deaths < _MAX_DEATHS:
            self._cluster.increment("retries")
            self._queue.put_back(closure)
            return
        failure = UnavailableError(
            f"{_MAX_DEATHS} workers have died while they ran the same closure, {closure.function!r}."
        )
        failure.__cause__ = error
        self._queue.finish(closure, error=failure)

    def _run_closure(self, closure: Closure) -> Outcome:
        min_clocks = closure.min_clocks
        if self._strategy.options.max_staleness is not None:
            # With a limit on staleness, the values of the pull after the worker's last closure are
            # too old.
            min_clocks = list(self._cluster.clocks)
        attempt, has_private_variables = (
            next(closure.attempt_ids),
            self._strategy.creates_private_variables(closure.function),
        )
        while True:
            call = ClosureCall(
                closure.closure_id, closure.function, closure.args, closure.kwargs, min_clocks,
                self._queue.get_floor(), self._strategy.slot_keys, attempt=attempt,
                has_private_variables=has_private_variables,
            )  # fmt: skip
            try:
                return self._cluster.run(self.worker_id, call)
            except StateNeededError as error:
                self._strategy.create_slots(error.optimizer, error.variables)
            except VariablesNeededError as error:
                has_private_variables = not self._strategy.create_variables(
                    call, error.num_variables
                )


def _stop_at_exit(coordinator: weakref.ref[ClusterCoordinator]) -> None:
    """Stop the threads of a coordinator before the interpreter deletes the modules that they use."""
    running = coordinator()
    if running is not None:
        running._shut_down()


def current_worker_index() -> int:
    """Return the index of the worker that runs this closure.

    Raises:
      RuntimeError: If it is called outside closures.
    """
    if context.worker_closure is None:
        raise RuntimeError(
            "Cannot retrieve the worker index: this is no function run by ClusterCoordinator."
        )
    worker_id: int = context.worker_closure.worker_id
    return worker_id
