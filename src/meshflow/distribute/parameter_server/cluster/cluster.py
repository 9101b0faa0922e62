"""Clusters of parameter servers and workers, as the coordinator accesses them."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.variables.variable import get_full_name
from meshflow.distribute.parameter_server.closures.remote_values import deleted_iterators
from meshflow.distribute.parameter_server.closures.stubs import CoordinatorOnly
from meshflow.distribute.parameter_server.cluster.roles import is_crowded
from meshflow.distribute.parameter_server.server.parameter_server import (
    MIN_LARGE_BYTES,
    ParameterServer,
)
from meshflow.distribute.parameter_server.transport.memory_pools import BufferPool
from meshflow.distribute.parameter_server.transport.messages import (
    Decision,
    ExchangeReply,
    PullRequest,
    Push,
    ServerInterface,
    VariableRows,
)
from meshflow.distribute.parameter_server.variables.hosted_variable import (
    RESOLVE_KEY,
    HostedVariable,
    Optimizer,
)
from meshflow.distribute.parameter_server.worker.calls import ClosureCall, Outcome
from meshflow.distribute.parameter_server.worker.remote_worker import SchedulingStrategy
from meshflow.distribute.parameter_server.worker.worker import ClosureStrategy, Worker
from meshflow.environment.types import Array, ArrayLike


class ClusterStrategy(ClosureStrategy, SchedulingStrategy, Protocol):
    """Strategy as clusters see it; see `ParameterServerStrategy`."""


class WorkerLostError(Exception):
    """A worker was lost before it returned the outcome of a closure."""


class WorkerNotReadyError(WorkerLostError):
    """A worker was lost before it received a closure."""


class Cluster(CoordinatorOnly):
    """The servers and workers of a job, as the coordinator sees them. Base class of clusters.

    Attributes:
      servers: The servers, by index.
      workers: The workers, by index.
      worker_count: The requested number of workers.
      clocks: The clock of each server, as far as this process knows.
      counters: The numbers of lost workers ("preemptions"), server restarts and retries of
        closures.
      closures_per_worker: Number of concurrent closures of a worker: one may push its writes while
        the next one computes.
      is_stopped: Whether the cluster was stopped.
    """

    not_sendable_reason = (
        "The cluster of parameter servers and workers can only be used by the coordinator."
    )

    servers: Sequence[ServerInterface]
    workers: Sequence[Worker]
    worker_count: int
    closures_per_worker = 1
    is_stopped = False

    def start(self, strategy: ClusterStrategy) -> None:
        """Start the workers. The coordinator calls this method when the first closure is scheduled.

        Args:
          strategy: The strategy.
        """
        raise NotImplementedError

    def wait_for_worker(self, worker_index: int) -> None:
        """Wait until a worker is ready, or is not needed any more, or the job has failed.

        Args:
          worker_index: Index of the worker.
        """

    def stop(self) -> None:
        """Stop workers and servers."""
        self.is_stopped = True

    def count_workers(self) -> int:
        """Return the current number of workers."""
        return self.worker_count

    def resize(self, workers: int) -> None:
        """Change the number of workers. `retire` stops superfluous workers.

        Args:
          workers: The new number.
        """
        raise NotImplementedError

    def retire(self, worker_index: int) -> None:
        """Stop a worker that gets no more closures.

        Args:
          worker_index: Index of the worker.
        """

    def add_optimizer(self, key: int, optimizer: Optimizer) -> None:
        """Add an optimizer to all servers.

        Args:
          key: Key of the optimizer.
          optimizer: The optimizer, with hosted variables.
        """
        raise NotImplementedError

    # ---- hosted variables, for the coordinator ---------------------------------------------

    def __init__(self, servers: int) -> None:
        self.clocks = [0] * servers
        self.counters = {"preemptions": 0, "server_restarts": 0, "retries": 0}
        self._count_lock = threading.Lock()

    def increment(self, counter: str) -> None:
        """Increment one of `counters`."""
        with self._count_lock:
            self.counters[counter] += 1

    def update_clocks(self, clocks: Sequence[int]) -> None:
        """Update the clocks of the servers."""
        with self._count_lock:
            self.clocks = [max(own, new) for own, new in zip(self.clocks, clocks, strict=True)]

    def host_variable(self, variable: HostedVariable, key: int, servers: Sequence[int]) -> None:
        """Create a variable on servers.

        Args:
          variable: The variable.
          key: Its key.
          servers: Indices of the servers.
        """
        initial_value = variable.attach(key, servers, self)
        for index in servers:
            self.servers[index].create(
                key, initial_value, get_full_name(variable), variable.constraint
            )

    def host_on_all_servers(self, variable: HostedVariable) -> None:
        """Copy a variable to the servers that do not host it yet.

        Args:
          variable: The variable.
        """
        value = self.read(variable)
        others = [n for n in range(len(self.servers)) if n not in variable.servers]
        for index in others:
            self.servers[index].create(
                variable.key, value, get_full_name(variable), variable.constraint
            )
        variable.servers = (*variable.servers, *others)

    def read(self, variable: HostedVariable) -> Array:
        """Return the current value of a variable."""
        _, values = self.servers[variable.servers[0]].read((variable.key,))
        return values[variable.key]

    def write(self, variable: HostedVariable, value: ArrayLike, adds: bool = False) -> None:
        """Assign a value on all servers that host the variable, or add it."""
        for index in variable.servers:
            clock = self.servers[index].write(variable.key, value, adds)
            with self._count_lock:
                self.clocks[index] = max(self.clocks[index], clock)

    def run(self, worker_index: int, call: ClosureCall) -> Outcome:
        """Run a closure on a worker.

        Args:
          worker_index: Index of the worker.
          call: The closure.

        Raises:
          WorkerLostError: If the worker was lost. Its writes may or may not have been applied.
        """
        raise NotImplementedError

    def add(self, variable: HostedVariable, delta: ArrayLike) -> None:
        """Add to the value of a variable."""
        self.write(variable, delta, adds=True)


class _CopyingServer(ParameterServer):
    """Server in the process of the workers, which get copies of large values.

    A value with other references could not be updated in place, and fresh pages for a new value
    cost more than a copy to reused memory.
    """

    def __init__(self, server_id: int) -> None:
        super().__init__(server_id)
        self._copies = defaultdict[int, BufferPool](BufferPool)

    def _exchange_locked(
        self,
        push: Push | Decision | None,
        wish: PullRequest,
        floor: int,
        allocate: Callable[..., np.ndarray],
    ) -> ExchangeReply:
        reply = super()._exchange_locked(push, wish, floor, allocate)
        for key, value in reply.values.items():
            if not isinstance(value, VariableRows) and value.nbytes >= MIN_LARGE_BYTES:
                buffer = self._copies[key].get(value.nbytes)
                reply.values[key] = copied = np.ndarray(value.shape, value.dtype, buffer)
                np.copyto(copied, np.asarray(value))
        return reply


class InProcessCluster(Cluster):
    """Servers and workers in this process, for tests and small models.

    Workers run in threads of the coordinator.

    Args:
      workers: Number of workers.
      servers: Number of servers.
    """

    servers: Sequence[ParameterServer]

    def __init__(self, workers: int, servers: int) -> None:
        super().__init__(servers)
        self.servers = [_CopyingServer(index) for index in range(servers)]
        self.worker_count = workers
        self.workers = []
        # The number of deleted iterators that each worker was notified of.
        self._num_deleted: dict[int, int] = {}

    def start(self, strategy: ClusterStrategy) -> None:
        """Create the workers."""
        self._strategy = strategy
        self.workers = [self._create_worker(n) for n in range(self.worker_count)]

    def resize(self, workers: int) -> None:
        """Change the number of workers."""
        new_indices = range(len(self.workers), workers)
        self.worker_count = workers
        self.workers = [*self.workers, *(self._create_worker(n) for n in new_indices)]

    def _create_worker(self, index: int) -> Worker:
        return Worker(index, self.servers, self._strategy, is_crowded(self.worker_count))

    def run(self, worker_index: int, call: ClosureCall) -> Outcome:
        """Run a closure on a worker, in the calling thread."""
        num_known = self._num_deleted.get(worker_index, 0)
        call.deleted_iterators = deleted_iterators[num_known:]
        self._num_deleted[worker_index] = num_known + len(call.deleted_iterators)
        return self.workers[worker_index].run(call)

    def add_optimizer(self, key: int, optimizer: Optimizer) -> None:
        """Add a copy of the optimizer to all servers."""
        for server in self.servers:
            memo: dict[Any, Any] = {RESOLVE_KEY: server.resolve}
            server.add_optimizer(key, copy.deepcopy(optimizer, memo))


class WorkerSideCluster(Cluster):
    """The cluster as the strategy in a worker's process knows it: only its size.

    Args:
      workers: Number of workers.
      servers: Number of servers.
    """

    def __init__(self, workers: int, servers: int) -> None:
        super().__init__(servers)
        self.worker_count = workers
        # Only the number of servers is used.
        self.servers, self.workers = [None] * servers, []  # type: ignore[list-item]
