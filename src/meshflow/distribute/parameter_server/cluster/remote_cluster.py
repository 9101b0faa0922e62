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
from meshflow.distribute.cluster.addresses import format_address, open_listening_socket
from meshflow.distribute.cluster.channel import create_secret
from meshflow.distribute.parameter_server.closures.pickling import dumps
from meshflow.distribute.parameter_server.cluster.cluster import (
    Cluster,
    ClusterStrategy,
    WorkerLostError,
)
from meshflow.distribute.parameter_server.server.remote_server import RemoteServer
from meshflow.distribute.parameter_server.transport.connection import (
    Connection,
    ConnectionLostError,
    RemoteCaller,
    accept_connections,
    close_listener,
    connect,
    load_error,
)
from meshflow.distribute.parameter_server.transport.messages import PullRequest, VariableRows
from meshflow.distribute.parameter_server.variables.hosted_variable import HostedVariable, Optimizer
from meshflow.distribute.parameter_server.worker.remote_worker import (
    FunctionPickles,
    RemoteWorker,
    SentObjects,
)
from meshflow.distribute.parameter_server.worker.worker import Call, Outcome
from meshflow.environment.types import Array

__all__ = ["ProcessLauncher", "RemoteCluster"]

# The coordinator caches values of up to this many bytes.
_MAX_CACHED_BYTES = 1 << 26
# A process may die this often in a row before it registers.
_MAX_STARTS = 5

_log = logging.getLogger("meshflow")


class ProcessLauncher(Protocol):
    """Launcher of the processes of a cluster, which run `entry_point.serve`.

    Attributes:
      can_resize: Whether more processes can be started later.
    """

    can_resize: bool

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

    def describe_process(self, kind: str, index: int) -> str:
        """Return details on a process that has not registered, to append to its name, or ""."""

    def stop(self) -> None:
        """Stop all processes."""


class _RegisteredProcess:
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

    def __init__(self, control: RemoteCaller, address: str, num_starts: int, pid: int) -> None:
        self.control, self.address, self.num_starts = control, address, num_starts
        self.sent_objects: SentObjects | None = None
        self.is_lost = False
        self.pid = pid
        self.connections: list[Connection] = []
        self.idle_connections: list[Connection] = []

    def close(self) -> None:
        """Close all connections."""
        for connection in (self.control.connection, *self.connections):
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

    closures_per_worker = 2

    servers: Sequence[RemoteServer]

    def __init__(
        self,
        launcher: ProcessLauncher,
        workers: int,
        servers: int,
        host: str = "127.0.0.1",
        patience: float = 120.0,
        silence: float = 30.0,
        secret: str | None = None,
    ) -> None:
        super().__init__(servers)
        self._launcher, self._patience, self._max_silence = launcher, patience, silence
        self.worker_count = workers
        self._secret = secret or create_secret()
        self._processes: dict[tuple[str, int], _RegisteredProcess] = {}
        self._state_changed = threading.Condition()
        self._retired: set[int] = set()
        # The clock and the value of each variable when it was last read by this process.
        self._read_cache: dict[int, tuple[int, Any]] = {}
        self._read_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._strategy: ClusterStrategy | None = None
        self._functions: FunctionPickles | None = None
        self._expected = [("ps", n) for n in range(servers)] + [
            ("worker", n) for n in range(workers)
        ]
        self._listener = open_listening_socket(host, 0, "the coordinator of parameter servers")
        self.address = format_address(host, self._listener.getsockname()[1])
        self._start_thread(
            accept_connections, self._listener, self._secret, self._handle_connection
        )
        self.servers = [RemoteServer(n, self._locate_server, self._secret) for n in range(servers)]
        atexit.register(_stop_at_exit, weakref.ref(self))
        try:
            for kind, index in self._expected:
                self._launch(kind, index)
            self._wait_until_ready([w for w in self._expected if w[0] == "ps"])
        except BaseException:
            self.stop()
            raise

    def _start_thread(self, target: Callable[..., Any], *args: Any) -> None:
        threading.Thread(target=target, args=args, daemon=True, name="meshflow-cluster").start()

    def _launch(self, kind: str, index: int) -> None:
        self._launcher.launch(kind, index, self.address, self._secret, len(self.clocks))
        self._start_thread(
            self._restart_until_registered, kind, index, self._get_num_starts(kind, index)
        )

    def _get_num_starts(self, kind: str, index: int) -> int:
        with self._state_changed:
            process = self._processes.get((kind, index))
            return 0 if process is None else process.num_starts

    def _restart_until_registered(self, kind: str, index: int, num_starts: int) -> None:
        """Restart a process that dies before it has registered."""
        for _ in range(_MAX_STARTS):
            while not self._launcher.is_dead(kind, index):
                with self._state_changed:
                    is_over = self._state_changed.wait_for(
                        lambda: self.is_stopped or self._get_num_starts(kind, index) > num_starts,
                        0.5,
                    )
                if is_over or (kind == "worker" and index in self._retired):
                    return
            if self.is_stopped:
                return
            self._launcher.launch(kind, index, self.address, self._secret, len(self.clocks))
        with self._state_changed:
            self._failure = UnavailableError(
                f"{kind} {index} has died {_MAX_STARTS} times before it reported to the coordinator."
            )
            self._state_changed.notify_all()

    def _check_running(self) -> None:
        if self.is_stopped:
            raise UnavailableError("The cluster of parameter servers has been stopped.")
        if self._failure:
            raise self._failure

    # ---- registration and monitoring -------------------------------------------------------

    def _handle_connection(self, connection: Connection) -> None:
        """Handle a connection, from a process that registers or from one that looks up a server."""
        message = connection.receive()
        if message[0] == "where":
            with contextlib.suppress(UnavailableError):
                connection.send(self._locate_server(*message[1:]))
            connection.close()
            return
        if message[0] == "failed":
            with self._state_changed:
                self._failure = load_error(message[3])
                self._state_changed.notify_all()
            connection.close()
            return
        _, kind, index, address, pid = message
        control = RemoteCaller(connection)
        with self._state_changed:
            replaced = self._processes.get((kind, index))
            num_starts = 1 if replaced is None else replaced.num_starts + 1
            process = self._processes[kind, index] = _RegisteredProcess(
                control, address, num_starts, pid
            )
            is_started = self._strategy is not None
            self._state_changed.notify_all()
        with contextlib.suppress(ConnectionLostError):
            if is_started:
                self._configure_process(kind, process)
        self._monitor_process(kind, index, process)

    def _configure_process(self, kind: str, process: _RegisteredProcess) -> None:
        """Configure a worker before its first closure."""
        if kind == "worker":
            assert self._strategy is not None
            process.control.call(
                "configure", list(sys.path), self.worker_count, tuple(self._strategy.options)
            )
            with self._state_changed:
                assert self._functions is not None
                process.sent_objects = SentObjects(self._functions)
                self._state_changed.notify_all()

    def _monitor_process(self, kind: str, index: int, process: _RegisteredProcess) -> None:
        """Send heartbeats until a process does not respond any more, and then launch it again."""
        process.control.connection.socket.settimeout(self._max_silence)
        with contextlib.suppress(ConnectionLostError):
            while not self.is_stopped:
                process.control.call("ping")
                time.sleep(min(1.0, self._max_silence / 4))
        with self._state_changed:
            process.is_lost = True
            self._state_changed.notify_all()
            if self.is_stopped or (kind == "worker" and index in self._retired):
                return
        process.close()
        description = "worker" if kind == "worker" else "parameter server"
        _log.warning("%s %d is lost; starting another one.", description.capitalize(), index)
        self.increment("preemptions" if kind == "worker" else "server_restarts")
        self._launcher.kill(kind, index)
        with contextlib.suppress(Exception):
            self._launch(kind, index)

    def _wait_until_ready(self, expected: Sequence[tuple[str, int]]) -> None:
        def missing() -> list[tuple[str, int]]:
            return [w for w in expected if not self._is_ready(w)]

        with self._state_changed:
            if self._state_changed.wait_for(lambda: self._failure or not missing(), self._patience):
                self._check_running()
                return
            names = ", ".join(
                f"{k} {n}{self._launcher.describe_process(k, n)}" for k, n in missing()
            )
        raise DeadlineExceededError(
            f"ParameterServerStrategy: after {self._patience:g} s these have not reported to the coordinator at "
            f"{self.address}: {names}."
        )

    def _is_ready(self, key: tuple[str, int]) -> bool:
        process = self._processes.get(key)
        if process is None or process.is_lost:
            return False
        return key[0] == "ps" or self._strategy is None or process.sent_objects is not None

    def _locate_server(self, index: int, num_starts: int) -> tuple[str, int]:
        """Return the address of a server and its number of starts.

        Wait until this exceeds `num_starts`, or until the known process responds again.
        """

        def has_result() -> bool:
            process = self._processes.get(("ps", index))
            is_newer = (
                process is not None and not process.is_lost and process.num_starts > num_starts
            )
            return self.is_stopped or self._failure is not None or is_newer

        with self._state_changed:
            while not self._state_changed.wait_for(has_result, 2.0):
                process = self._processes.get(("ps", index))
                if process is not None and not process.is_lost:
                    break
            self._check_running()
            process = self._processes["ps", index]
            return process.address, process.num_starts

    # ---- closures --------------------------------------------------------------------------

    def start(self, strategy: ClusterStrategy) -> None:
        """Wait until the workers are ready."""
        self._functions = FunctionPickles(strategy)
        with self._state_changed:
            self._strategy = strategy
            processes = [(key[0], process) for key, process in self._processes.items()]
        for kind, process in processes:
            with contextlib.suppress(ConnectionLostError):
                self._configure_process(kind, process)
        self._wait_until_ready(self._expected)

    def run(self, worker_index: int, call: Call) -> Outcome:
        """Run a closure on a worker.

        Raises:
          WorkerLostError: If the worker was lost. Its writes may or may not have been applied.
        """
        process = self._wait_for_worker(worker_index)
        try:
            assert process.sent_objects is not None and self._strategy is not None
            connection = self._take_connection(process)
            outcome = RemoteWorker(
                RemoteCaller(connection), self._strategy, process.sent_objects
            ).run(call)
        except ConnectionLostError as error:
            # The monitoring thread replaces the process, even if only this connection was lost. Until
            # then, no closure is sent to the process.
            process.is_lost = True
            process.close()
            raise WorkerLostError(str(error)) from error
        except BaseException:
            process.idle_connections.append(connection)
            raise
        process.idle_connections.append(connection)
        return outcome

    def count_workers(self) -> int:
        """Return the current number of workers."""
        with self._state_changed:
            return sum(self._is_ready(("worker", n)) for n in range(self.worker_count))

    def resize(self, workers: int) -> None:
        """Change the number of workers."""
        if not self._launcher.can_resize:
            raise NotImplementedError(
                "The workers of a cluster that a resolver describes are separate programs: start or stop these instead."
            )
        with self._state_changed:
            old_count, self.worker_count = self.worker_count, workers
            self._retired -= set(range(workers))
        for index in range(old_count, workers):
            self._launch("worker", index)

    def retire(self, worker_index: int) -> None:
        """Stop a worker."""
        with self._state_changed:
            self._retired.add(worker_index)
            process = self._processes.pop(("worker", worker_index), None)
        if process is not None:
            process.close()
        self._launcher.kill("worker", worker_index)

    def _wait_for_worker(self, index: int) -> _RegisteredProcess:
        with self._state_changed:
            self._state_changed.wait_for(
                lambda: self.is_stopped or self._failure or self._is_ready(("worker", index))
            )
            self._check_running()
            return self._processes["worker", index]

    def _take_connection(self, process: _RegisteredProcess) -> Connection:
        """Return a connection that no thread uses."""
        try:
            return process.idle_connections.pop()
        except IndexError:
            connection = connect(process.address, self._secret)
            process.connections.append(connection)
            return connection

    def read(self, variable: HostedVariable) -> Array:
        """Return the current value, which is sent only if it has changed since the last read."""
        with self._read_lock:
            clock, value = self._read_cache.get(variable.key, (-1, None))
            keys = (variable.key,)
            wish = PullRequest(unknown=keys) if value is None else PullRequest(clock, keys)
            reply = self.servers[variable.servers[0]].exchange(None, wish)
            new = reply.values.get(variable.key, value)
            if isinstance(new, VariableRows):
                value = np.array(value)
                value[new.indices] = new.values
                new = value
            assert new is not None
            if new.nbytes <= _MAX_CACHED_BYTES:
                self._read_cache[variable.key] = reply.clock, new
            return new

    def add_optimizer(self, key: int, optimizer: Optimizer) -> None:
        """Add the optimizer to all servers."""
        data = dumps(optimizer, self._strategy, "the optimizer")
        for server in self.servers:
            server.add_optimizer(key, data)

    def get_pid(self, kind: str, index: int) -> int:
        """Return the process id of a worker or server, on its machine.

        Args:
          kind: "worker" or "ps".
          index: Index among the processes of this kind.
        """
        with self._state_changed:
            self._state_changed.wait_for(lambda: self._is_ready((kind, index)), self._patience)
            return self._processes[kind, index].pid

    # ---- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop workers and servers."""
        with self._state_changed:
            if self.is_stopped:
                return
            self.is_stopped = True
            self._state_changed.notify_all()
            processes = list(self._processes.values())
        close_listener(self._listener)
        # The launcher stops first, because Ray reports actors that exit by themselves.
        self._launcher.stop()
        for process in processes:
            process.close()
        for server in self.servers:
            server.close()


def _stop_at_exit(cluster: weakref.ref[RemoteCluster]) -> None:
    """Stop the processes of a cluster, and delete its journals, when the program ends."""
    running = cluster()
    if running is not None:
        running.stop()
