"""Cluster of servers and workers in other processes.

The processes register with the coordinator, are monitored by heartbeats, and are restarted when
they die.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime.errors import DeadlineExceededError, UnavailableError
from meshflow.distribute.cluster.addresses import listening, with_port
from meshflow.distribute.cluster.channel import new_secret
from meshflow.distribute.parameter_server.closures import dumps
from meshflow.distribute.parameter_server.cluster import (
    Cluster,
    ClusterStrategy,
    WorkerLostError,
)
from meshflow.distribute.parameter_server.hosting import HostedVariable, Optimizer
from meshflow.distribute.parameter_server.messages import Rows, Wish
from meshflow.distribute.parameter_server.remote_server import RemoteServer
from meshflow.distribute.parameter_server.remote_worker import Book, Functions, RemoteWorker
from meshflow.distribute.parameter_server.wire import Caller, Lost, Wire, accepting, connect, end
from meshflow.distribute.parameter_server.worker import Call, Outcome
from meshflow.environment.types import Array

__all__ = ["Launcher", "RemoteCluster"]

# The coordinator caches values of up to this many bytes.
_KEPT = 1 << 26
# A process may die this often in a row before it registers.
_TRIES = 5

_log = logging.getLogger("meshflow")


class Launcher(Protocol):
    """Launcher of the processes of a cluster, which run `entry_point.serve`.

    Attributes:
      can_resize: Whether more processes can be started later.
    """

    resizes: bool

    def launch(self, kind: str, index: int, coordinator: str, secret: str, servers: int) -> None:
        """Start a process, which may replace an earlier one.

        Args:
          kind: "worker" or "ps".
          index: Index among the processes of this kind.
          coordinator: Address of the coordinator.
          secret: Secret of the job.
          servers: Number of parameter servers.
        """

    def is_dead(self, kind: str, index: int) -> bool:
        """Check whether a process has ended. False if this is unknown."""

    def kill(self, kind: str, index: int) -> None:
        """Kill a process that does not respond."""

    def about(self, kind: str, index: int) -> str:
        """Return details on a process that has not registered, to append to its name, or ""."""

    def stop(self) -> None:
        """Stop all processes."""


class _Life:
    """A process that has registered.

    Args:
      control: The connection by which it has registered.
      address: Address at which it accepts connections.
      num_starts: Number of registrations of this kind and index so far.
      pid: Process id.

    Attributes:
      sent_objects: Record of the objects that were sent to a worker, once it is configured.
      is_lost: Whether the process is lost.
      connections: Connections for closures.
      idle_connections: The connections that no thread uses now.
    """

    def __init__(self, control: Caller, address: str, num_starts: int, pid: int) -> None:
        self.control, self.address, self.begun = control, address, num_starts
        self.book: Book | None = None
        self.gone = False
        self.pid = pid
        self.wires: list[Wire] = []
        self.idle: list[Wire] = []

    def close(self) -> None:
        """Close all connections."""
        for connection in (self.control.wire, *self.wires):
            connection.close()


class RemoteCluster(Cluster):
    """Servers and workers in processes that a launcher starts.

    Args:
      launcher: The launcher.
      workers: Number of workers.
      servers: Number of parameter servers.
      host: Address of this process for the others.
      patience: Seconds that the processes may take to register.
      silence: Seconds without a response after which a process is lost.
      secret: Secret of the job. By default a new one, which the launcher passes to the processes.
    """

    lanes = 2

    servers: Sequence[RemoteServer]

    def __init__(
        self,
        launcher: Launcher,
        workers: int,
        servers: int,
        host: str = "127.0.0.1",
        patience: float = 120.0,
        silence: float = 30.0,
        secret: str | None = None,
    ) -> None:
        super().__init__(servers)
        self._launcher, self._patience, self._silence = launcher, patience, silence
        self.worker_count = workers
        self._secret = secret or new_secret()
        self._lives: dict[tuple[str, int], _Life] = {}
        self._changed = threading.Condition()
        self._retired: set[int] = set()
        # The clock and the value of each variable when it was last read by this process.
        self._read: dict[int, tuple[int, Any]] = {}
        self._reading = threading.Lock()
        self._failed = ""
        self._strategy: ClusterStrategy | None = None
        self._functions: Functions | None = None
        self._wanted = [("ps", n) for n in range(servers)] + [("worker", n) for n in range(workers)]
        self._listener = listening(host, 0, "the coordinator of parameter servers")
        self.address = with_port(host, self._listener.getsockname()[1])
        self._in_thread(accepting, self._listener, self._secret, self._called)
        self.servers = [RemoteServer(n, self._where, self._secret) for n in range(servers)]
        atexit.register(_stop, weakref.ref(self))
        try:
            for kind, index in self._wanted:
                self._launch(kind, index)
            self._await([w for w in self._wanted if w[0] == "ps"])
        except BaseException:
            self.stop()
            raise

    def _in_thread(self, target: Callable[..., Any], *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True, name="meshflow-cluster").start()

    def _launch(self, kind: str, index: int) -> None:
        self._launcher.launch(kind, index, self.address, self._secret, len(self.clocks))
        self._in_thread(self._until_reported, kind, index, self._begun(kind, index))

    def _begun(self, kind: str, index: int) -> int:
        with self._changed:
            process = self._lives.get((kind, index))
            return 0 if process is None else process.begun

    def _until_reported(self, kind: str, index: int, num_starts: int) -> None:
        """Restart a process that dies before it has registered."""
        for _ in range(_TRIES):
            while not self._launcher.is_dead(kind, index):
                with self._changed:
                    is_over = self._changed.wait_for(
                        lambda: self.stopped or self._begun(kind, index) > num_starts, 0.5
                    )
                if is_over or (kind == "worker" and index in self._retired):
                    return
            if self.stopped:
                return
            self._launcher.launch(kind, index, self.address, self._secret, len(self.clocks))
        with self._changed:
            self._failed = (
                f"{kind} {index} has died {_TRIES} times before it reported to the coordinator."
            )
            self._changed.notify_all()

    def _check(self) -> None:
        if self.stopped:
            raise UnavailableError("The cluster of parameter servers has been stopped.")
        if self._failed:
            raise UnavailableError(self._failed)

    # ---- registration and monitoring -------------------------------------------------------

    def _called(self, connection: Wire) -> None:
        """Handle a connection, from a process that registers or from one that looks up a server."""
        message = connection.receive()
        if message[0] == "where":
            with contextlib.suppress(UnavailableError):
                connection.send(self._where(*message[1:]))
            connection.close()
            return
        _, kind, index, address, pid = message
        control = Caller(connection)
        with self._changed:
            replaced = self._lives.get((kind, index))
            num_starts = 1 if replaced is None else replaced.begun + 1
            process = self._lives[kind, index] = _Life(control, address, num_starts, pid)
            is_started = self._strategy is not None
            self._changed.notify_all()
        with contextlib.suppress(Lost):
            if is_started:
                self._prepare(kind, process)
        self._watch(kind, index, process)

    def _prepare(self, kind: str, process: _Life) -> None:
        """Configure a worker before its first closure."""
        if kind == "worker":
            assert self._strategy is not None
            process.control.call(
                "configure", list(sys.path), self.worker_count, tuple(self._strategy.options)
            )
            with self._changed:
                assert self._functions is not None
                process.book = Book(self._functions)
                self._changed.notify_all()

    def _watch(self, kind: str, index: int, process: _Life) -> None:
        """Send heartbeats until a process does not respond any more, and then launch it again."""
        process.control.wire.socket.settimeout(self._silence)
        with contextlib.suppress(Lost):
            while not self.stopped:
                process.control.call("ping")
                time.sleep(min(1.0, self._silence / 4))
        with self._changed:
            process.gone = True
            self._changed.notify_all()
            if self.stopped or (kind == "worker" and index in self._retired):
                return
        process.close()
        description = "worker" if kind == "worker" else "parameter server"
        _log.warning("%s %d is lost; starting another one.", description.capitalize(), index)
        self.count("preemptions" if kind == "worker" else "server_restarts")
        self._launcher.kill(kind, index)
        with contextlib.suppress(Exception):
            self._launch(kind, index)

    def _await(self, expected: Sequence[tuple[str, int]]) -> None:
        def missing() -> list[tuple[str, int]]:
            return [w for w in expected if not self._ready(w)]

        with self._changed:
            if self._changed.wait_for(lambda: self._failed or not missing(), self._patience):
                self._check()
                return
            names = ", ".join(f"{k} {n}{self._launcher.about(k, n)}" for k, n in missing())
        raise DeadlineExceededError(
            f"ParameterServerStrategy: after {self._patience:g} s these have not reported to the coordinator at "
            f"{self.address}: {names}."
        )

    def _ready(self, key: tuple[str, int]) -> bool:
        process = self._lives.get(key)
        if process is None or process.gone:
            return False
        return key[0] == "ps" or self._strategy is None or process.book is not None

    def _where(self, index: int, num_starts: int) -> tuple[str, int]:
        """Return the address of a server and its number of starts.

        Wait until this exceeds `num_starts`, or until the known process responds again.
        """

        def has_result() -> bool:
            process = self._lives.get(("ps", index))
            is_newer = process is not None and not process.gone and process.begun > num_starts
            return self.stopped or bool(self._failed) or is_newer

        with self._changed:
            while not self._changed.wait_for(has_result, 2.0):
                process = self._lives.get(("ps", index))
                if process is not None and not process.gone:
                    break
            self._check()
            process = self._lives["ps", index]
            return process.address, process.begun

    # ---- closures --------------------------------------------------------------------------

    def start(self, strategy: ClusterStrategy) -> None:
        """Wait until the workers are ready."""
        self._functions = Functions(strategy)
        with self._changed:
            self._strategy = strategy
            processes = [(key[0], process) for key, process in self._lives.items()]
        for kind, process in processes:
            with contextlib.suppress(Lost):
                self._prepare(kind, process)
        self._await(self._wanted)

    def run(self, worker_index: int, call: Call) -> Outcome:
        """Run a closure on a worker.

        Raises:
          WorkerLostError: If the worker was lost. Its writes may or may not have been applied.
        """
        process = self._living(worker_index)
        try:
            assert process.book is not None and self._strategy is not None
            connection = self._idle(process)
            outcome = RemoteWorker(Caller(connection), self._strategy, process.book).run(call)
        except Lost as error:
            # The monitoring thread will notice the loss too. Until then, no closure is sent to the
            # process.
            process.gone = True
            raise WorkerLostError(str(error)) from error
        except BaseException:
            process.idle.append(connection)
            raise
        process.idle.append(connection)
        return outcome

    def alive(self) -> int:
        """Return the current number of workers."""
        with self._changed:
            return sum(self._ready(("worker", n)) for n in range(self.worker_count))

    def resize(self, workers: int) -> None:
        """Change the number of workers."""
        if not self._launcher.resizes:
            raise NotImplementedError(
                "The workers of a cluster that a resolver describes are separate programs: start or stop these instead."
            )
        with self._changed:
            old_count, self.worker_count = self.worker_count, workers
            self._retired -= set(range(workers))
        for index in range(old_count, workers):
            self._launch("worker", index)

    def retire(self, worker_index: int) -> None:
        """Stop a worker."""
        with self._changed:
            self._retired.add(worker_index)
            process = self._lives.pop(("worker", worker_index), None)
        if process is not None:
            process.close()
        self._launcher.kill("worker", worker_index)

    def _living(self, index: int) -> _Life:
        with self._changed:
            self._changed.wait_for(
                lambda: self.stopped or self._failed or self._ready(("worker", index))
            )
            self._check()
            return self._lives["worker", index]

    def _idle(self, process: _Life) -> Wire:
        """Return a connection that no thread uses."""
        try:
            return process.idle.pop()
        except IndexError:
            connection = connect(process.address, self._secret)
            process.wires.append(connection)
            return connection

    def read(self, variable: HostedVariable) -> Array:
        """Return the current value, which is sent only if it has changed since the last read."""
        with self._reading:
            clock, value = self._read.get(variable.key, (-1, None))
            keys = (variable.key,)
            wish = Wish(unknown=keys) if value is None else Wish(clock, keys)
            reply = self.servers[variable.servers[0]].exchange(None, wish)
            new = reply.values.get(variable.key, value)
            if isinstance(new, Rows):
                value = np.array(value)
                value[new.indices] = new.values
                new = value
            assert new is not None
            if new.nbytes <= _KEPT:
                self._read[variable.key] = reply.clock, new
            return new

    def adopt(self, key: int, optimizer: Optimizer) -> None:
        """Add the optimizer to all servers."""
        data = dumps(optimizer, self._strategy, "the optimizer")
        for server in self.servers:
            server.adopt(key, data)

    def pid(self, kind: str, index: int) -> int:
        """Return the process id of a worker or server, on its machine.

        Args:
          kind: "worker" or "ps".
          index: Index among the processes of this kind.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready((kind, index)), self._patience)
            return self._lives[kind, index].pid

    # ---- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop workers and servers."""
        with self._changed:
            if self.stopped:
                return
            self.stopped = True
            self._changed.notify_all()
            processes = list(self._lives.values())
        end(self._listener)
        # The launcher stops first, because Ray reports actors that exit by themselves.
        self._launcher.stop()
        for process in processes:
            process.close()
        for server in self.servers:
            server.close()


def _stop(cluster: weakref.ref[RemoteCluster]) -> None:
    """Stop the processes of a cluster, and delete its journals, when the program ends."""
    running = cluster()
    if running is not None:
        running.stop()
