"""Clusters of parameter servers and workers: where hosted variables are read and written from outside closures."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.distribute.parameter_server.buffers import Buffers
from meshflow.distribute.parameter_server.hosting import RESOLVE, HostedVariable
from meshflow.distribute.parameter_server.messages import Change, Decision, Push, Rows, Wish
from meshflow.distribute.parameter_server.remote_values import ended
from meshflow.distribute.parameter_server.roles import is_crowded
from meshflow.distribute.parameter_server.server import LARGE, ParameterServer
from meshflow.distribute.parameter_server.worker import Call, Outcome, Worker

__all__ = ["Cluster", "InProcessCluster", "WorkerLostError"]


class WorkerLostError(Exception):
    """A worker ended before it said what came of a closure."""


class Cluster:
    """Servers and workers, as the coordinator sees them.

    Attributes:
      servers: what has the methods of `ParameterServer`, by number.
      workers: what has `run(call)`, by number.
      worker_count: how many workers there are, or are to be.
      clocks: each server's clock, as far as this process has heard.
    """

    _stays_with_coordinator = (
        "The cluster of parameter servers and workers stays with the coordinator."
    )

    servers: Sequence[Any]
    workers: Sequence[Any]
    worker_count: int
    # How many closures a worker has at a time: one may push what it wrote while the next computes.
    lanes = 1
    stopped = False

    def start(self, strategy: Any) -> None:
        """Starts the workers, when the first closure is scheduled.

        Args:
          strategy: the strategy that closures find.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Ends workers and servers."""
        self.stopped = True

    def alive(self) -> int:
        """How many workers there are now."""
        return self.worker_count

    def resize(self, workers: int) -> None:
        """Changes the number of workers; those that are too many are ended by `retire`.

        Args:
          workers: how many there are to be.
        """
        raise NotImplementedError

    def retire(self, number: int) -> None:
        """Ends a worker that gets no closures any more.

        Args:
          number: its number.
        """

    def adopt(self, key: int, optimizer: Any) -> None:
        """Gives all servers an optimizer's rule.

        Args:
          key: its key.
          optimizer: the optimizer, with hosted variables.
        """
        raise NotImplementedError

    # ---- hosted variables, for the coordinator ---------------------------------------------

    def __init__(self, servers: int) -> None:
        self.clocks = [0] * servers
        self.counters = {"preemptions": 0, "server_restarts": 0, "retries": 0}
        self._counting = threading.Lock()

    def count(self, what: str) -> None:
        """Counts something that happened."""
        with self._counting:
            self.counters[what] += 1

    def heard(self, clocks: Sequence[int]) -> None:
        """Notes the servers' clocks."""
        with self._counting:
            self.clocks = [max(own, new) for own, new in zip(self.clocks, clocks, strict=True)]

    def host(self, variable: HostedVariable, key: int, servers: Sequence[int]) -> None:
        """Puts a variable on servers.

        Args:
          variable: the variable.
          key: its key.
          servers: their numbers.
        """
        first = variable.settle(key, servers, self)
        for number in servers:
            self.servers[number].create(key, first, variable._name, variable.constraint)

    def spread(self, variable: HostedVariable) -> None:
        """Puts a variable that one server has on all of them.

        Args:
          variable: the variable.
        """
        value = self.read(variable)
        others = [n for n in range(len(self.servers)) if n not in variable.servers]
        for number in others:
            self.servers[number].create(variable.key, value, variable._name, variable.constraint)
        variable.servers = (*variable.servers, *others)

    def read(self, variable: HostedVariable) -> Any:
        """The present value, an array."""
        _, values = self.servers[variable.servers[0]].read((variable.key,))
        return values[variable.key]

    def write(self, variable: HostedVariable, value: Any, adds: bool = False) -> None:
        """Replaces the value on all servers that have it, or adds to it."""
        for number in variable.servers:
            clock = self.servers[number].write(variable.key, value, adds)
            with self._counting:
                self.clocks[number] = max(self.clocks[number], clock)

    def run(self, number: int, call: Call) -> Outcome:
        """Runs a closure on a worker.

        Args:
          number: the worker's number.
          call: the closure.

        Raises:
          WorkerLostError: when the worker has died; what became of the closure is not known.
        """
        raise NotImplementedError

    def add(self, variable: HostedVariable, delta: Any) -> None:
        """Adds to the value."""
        self.write(variable, delta, adds=True)


class _Beside(ParameterServer):
    """A server in one process with the workers. They get copies of large values, whose memory is used again.

    A value that somebody else has cannot be updated in place, and the pages of new memory cost more than the copy.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._copies = defaultdict[int, Buffers](Buffers)

    def _exchanged(
        self,
        push: Push | Decision | None,
        wish: Wish,
        floor: int,
        memory: Callable[..., np.ndarray],
    ) -> Change:
        change = super()._exchanged(push, wish, floor, memory)
        for key, value in change.values.items():
            if not isinstance(value, Rows) and value.nbytes >= LARGE:
                place = self._copies[key].get(value.nbytes)
                change.values[key] = copied = np.ndarray(value.shape, value.dtype, place)
                np.copyto(copied, np.asarray(value))
        return change


class InProcessCluster(Cluster):
    """Servers and workers in this process: workers run in the coordinator's threads. For tests and small models.

    Args:
      workers: how many workers.
      servers: how many servers.
    """

    def __init__(self, workers: int, servers: int) -> None:
        super().__init__(servers)
        self.servers = [_Beside(number) for number in range(servers)]
        self.worker_count = workers
        self.workers = []
        # How many of the iterators that have ended each worker has heard of.
        self._ended: dict[int, int] = {}

    def start(self, strategy: Any) -> None:
        """Makes the workers."""
        self._strategy = strategy
        self.workers = [self._worker(n) for n in range(self.worker_count)]

    def resize(self, workers: int) -> None:
        """Changes the number of workers."""
        more = range(len(self.workers), workers)
        self.worker_count = workers
        self.workers = [*self.workers, *(self._worker(n) for n in more)]

    def _worker(self, number: int) -> Worker:
        return Worker(number, self.servers, self._strategy, is_crowded(self.worker_count))

    def run(self, number: int, call: Call) -> Outcome:
        """Runs a closure on a worker, in the thread that calls."""
        known = self._ended.get(number, 0)
        call.ended = ended[known:]
        self._ended[number] = known + len(call.ended)
        outcome: Outcome = self.workers[number].run(call)
        return outcome

    def adopt(self, key: int, optimizer: Any) -> None:
        """Gives all servers a copy of the optimizer."""
        for server in self.servers:
            memo: dict[Any, Any] = {RESOLVE: server.resolve}
            server.adopt(key, copy.deepcopy(optimizer, memo))


class NoCluster(Cluster):
    """What a worker's own process knows of the cluster.

    Args:
      workers: how many workers there are.
      servers: how many servers.
    """

    def __init__(self, workers: int, servers: int) -> None:
        super().__init__(servers)
        self.worker_count = workers
        self.servers, self.workers = [None] * servers, []
