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

from meshflow.core.runtime.errors import (
    DataLossError,
    DeadlineExceededError,
    OpError,
    UnavailableError,
)
from meshflow.distribute.cluster.addresses import format_address, open_listening_socket
from meshflow.distribute.cluster.channel import create_secret
from meshflow.distribute.parameter_server.closures.pickling import dumps
from meshflow.distribute.parameter_server.cluster.cluster import (
    Cluster,
    ClusterStrategy,
    WorkerLostError,
    WorkerNotReadyError,
)
from meshflow.distribute.parameter_server.server.remote_server import RemoteServer
from meshflow.distribute.parameter_server.transport.connection import (
    Connection,
    ConnectionLostError,
    RemoteCaller,
    accept_connections,
    close_listener,
    connect,
    execute_call,
)
from meshflow.distribute.parameter_server.transport.messages import PullRequest, VariableRows
from meshflow.distribute.parameter_server.variables.hosted_variable import HostedVariable, Optimizer
from meshflow.distribute.parameter_server.worker.calls import ClosureCall, Outcome
from meshflow.distribute.parameter_server.worker.remote_worker import (
    FunctionPickles,
    RemoteWorker,
    SentObjects,
)
from meshflow.distribute.parameter_server.worker.server_client import PartialClosureError
from meshflow.environment.types import Array

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

    def launch(
        self, kind: str, index: int, coordinator: str, secret: str, servers: int, num_starts: int
    ) -> None:
        """Start a process, which may replace an earlier one.

        Args:
          kind: "worker" or "ps".
          index: Index among the processes of this kind.
          coordinator: Address of the coordinator.
          secret: Secret of the job.
          servers: Number of parameter servers.
          num_starts: Number of starts of this kind and index so far, including this one.
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
      num_starts: Number of starts of this kind and index until this one.
      pid: Process id.

    Attributes:
      address: Address at which it accepts connections, or None until it does.
      sent_objects: Record of the objects that were sent to a worker, once it is configured.
      is_lost: Whether the process is lost.
      connections: Connections for closures.
      idle_connections: The connections that no thread uses now.
    """

    def __init__(self, control: RemoteCaller, num_starts: int, pid: int) -> None:
        self.control, self.num_starts = control, num_starts
        self.address: str | None = None
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
      patience: Seconds that the processes may take until they are ready.
      silence: Seconds without an answer to a heartbeat after which a process is lost.
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
        # The last process of each kind and index that has registered, and how many were started.
        self._processes: dict[tuple[str, int], _RegisteredProcess] = {}
        self._num_starts: dict[tuple[str, int], int] = {}
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
        """Start a process, and another one whenever it is lost."""
        num_starts = self._start_process(kind, index)
        self._start_thread(self._supervise, kind, index, num_starts)

    def _start_process(self, kind: str, index: int) -> int:
        with self._state_changed:
            num_starts = self._num_starts[kind, index] = self._num_starts.get((kind, index), 0) + 1
        self._launcher.launch(kind, index, self.address, self._secret, len(self.clocks), num_starts)
        return num_starts

    def _supervise(self, kind: str, index: int, num_starts: int) -> None:
        """Monitor a process until it is not needed any more, and replace it whenever it is lost."""
        num_failures = 0
        try:
            while self._is_needed(kind, index, num_starts):
                # Machines may need more time to start a process than the first attempt has.
                patience = self._patience * (1.0 if num_failures else 0.5)
                process = self._prepare_process(kind, index, num_starts, patience)
                if process is not None:
                    num_failures = 0
                    self._monitor_process(kind, index, process)
                if not self._is_needed(kind, index, num_starts):
                    return
                num_failures += process is None
                if num_failures >= _MAX_STARTS and self._is_required(kind):
                    raise UnavailableError(
                        f"{kind} {index}{self._launcher.describe_process(kind, index)} was started {_MAX_STARTS} "
                        "times, and has died or was silent before it was ready."
                    )
                self._replace_process(kind, index, process)
                self._launcher.kill(kind, index)
                num_starts = self._start_process(kind, index)
        except Exception as error:
            self._fail(kind, index, error)

    def _is_needed(self, kind: str, index: int, num_starts: int) -> bool:
        """Check whether a process was neither stopped nor started again by another thread."""
        is_retired = kind == "worker" and index in self._retired
        return not (self.is_stopped or is_retired or self._num_starts[kind, index] != num_starts)

    def _is_required(self, kind: str) -> bool:
        """Check whether the job cannot go on without a process that does not start.

        Workers that are started externally may be missing for any time while there are others.
        """
        return kind == "ps" or self._launcher.can_resize or not self.count_workers()

    def _fail(self, kind: str, index: int, error: Exception) -> None:
        """End the job with an error."""
        if not isinstance(error, OpError):
            cause, error = error, UnavailableError(f"{kind} {index} could not be started: {error}")
            error.__cause__ = cause
        self._end_job(error)

    def _end_job(self, error: OpError) -> None:
        """Let all closures, reads and writes fail with an error."""
        with self._state_changed:
            self._failure = self._failure or error
            self._state_changed.notify_all()

    def _has_ended(self) -> bool:
        return self.is_stopped or self._failure is not None

    def _check_running(self) -> None:
        if self.is_stopped:
            raise UnavailableError("The cluster of parameter servers has been stopped.")
        if self._failure is not None:
            raise self._failure

    # ---- registration and monitoring -------------------------------------------------------

    def _handle_connection(self, connection: Connection) -> None:
        """Handle a connection, from a process that registers or from one that looks up a server."""
        method, args = connection.receive()
        if method == "where":
            connection.send(execute_call({"where": self._locate_server}, method, args))
            connection.close()
            return
        kind, index, num_starts, pid = args
        connection.socket.settimeout(self._max_silence)
        process = _RegisteredProcess(RemoteCaller(connection), num_starts, pid)
        with self._state_changed:
            known = self._processes.get((kind, index))
            is_new = known is None or known.num_starts < num_starts
            if is_new and self._is_needed(kind, index, num_starts):
                self._processes[kind, index] = process
                self._state_changed.notify_all()
                return
        # The process was replaced while it was suspended, or was requested twice.
        connection.close()

    def _wait_for_registration(
        self, kind: str, index: int, num_starts: int, patience: float
    ) -> _RegisteredProcess | None:
        """Return a process once it has registered, or None if it is dead, late or not needed."""

        def get_process() -> _RegisteredProcess | None:
            process = self._processes.get((kind, index))
            return process if process is not None and process.num_starts == num_starts else None

        def is_needed() -> bool:
            return self._is_needed(kind, index, num_starts)

        deadline = time.monotonic() + patience
        while time.monotonic() <= deadline and not self._launcher.is_dead(kind, index):
            with self._state_changed:
                self._state_changed.wait_for(lambda: get_process() or not is_needed(), 0.5)
                if not is_needed():
                    return None
                if (process := get_process()) is not None:
                    return process
        return None

    def _prepare_process(
        self, kind: str, index: int, num_starts: int, patience: float
    ) -> _RegisteredProcess | None:
        """Return a process once it accepts connections, or None if it is lost before."""
        process = self._wait_for_registration(kind, index, num_starts, patience)
        if process is None:
            return None
        try:
            while process.address is None:
                address = process.control.call("prepare", min(1.0, self._max_silence / 4))
                with self._state_changed:
                    process.address = address
                    self._state_changed.notify_all()
        except DataLossError:
            # Another process would find the same damage in the journal.
            raise
        except Exception as error:
            _log.warning("%s %d could not start: %s", kind, index, error)
            return None
        return process

    def _monitor_process(self, kind: str, index: int, process: _RegisteredProcess) -> None:
        """Configure a worker, and send heartbeats until the process does not answer any more."""

        def should_configure() -> bool:
            return kind == "worker" and self._strategy is not None and process.sent_objects is None

        def should_continue() -> bool:
            return not process.is_lost and self._is_needed(kind, index, process.num_starts)

        with contextlib.suppress(ConnectionLostError):
            while should_continue():
                if should_configure():
                    self._configure_worker(process)
                process.control.call("ping", self._get_server_starts())
                with self._state_changed:
                    self._state_changed.wait_for(
                        lambda: should_configure() or not should_continue(),
                        min(1.0, self._max_silence / 4),
                    )

    def _configure_worker(self, process: _RegisteredProcess) -> None:
        """Configure a worker before its first closure."""
        assert self._strategy is not None and self._functions is not None
        process.control.call(
            "configure", list(sys.path), self.worker_count, tuple(self._strategy.options)
        )
        with self._state_changed:
            process.sent_objects = SentObjects(self._functions)
            self._state_changed.notify_all()

    def _replace_process(self, kind: str, index: int, process: _RegisteredProcess | None) -> None:
        """Record that a process is lost, and end the calls that wait for it."""
        description = "Worker" if kind == "worker" else "Parameter server"
        if process is None:
            _log.warning("%s %d did not start; starting another one.", description, index)
            process = self._processes.get((kind, index))
        else:
            _log.warning("%s %d is lost; starting another one.", description, index)
            self.increment("preemptions" if kind == "worker" else "server_restarts")
        if process is not None:
            self._mark_lost(process)
        if kind == "ps":
            self.servers[index].abandon(self._get_server_starts()[index])

    def _mark_lost(self, process: _RegisteredProcess) -> None:
        with self._state_changed:
            process.is_lost = True
            self._state_changed.notify_all()
        process.close()

    def _get_server_starts(self) -> list[int]:
        """Return the number of starts of the current process of each server, or of the next one."""
        with self._state_changed:
            processes = [self._processes.get(("ps", n)) for n in range(len(self.clocks))]
            return [0 if p is None else p.num_starts + p.is_lost for p in processes]

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
        if process is None or process.is_lost or process.address is None:
            return False
        return key[0] == "ps" or self._strategy is None or process.sent_objects is not None

    def _locate_server(self, index: int, num_starts: int) -> tuple[str, int]:
        """Return the address of a server and its number of starts.

        Wait until this exceeds `num_starts`, or until the known process responds again.
        """
        key = "ps", index

        def is_newer() -> bool:
            return self._is_ready(key) and self._processes[key].num_starts > num_starts

        with self._state_changed:
            while not self._state_changed.wait_for(lambda: self._has_ended() or is_newer(), 2.0):
                if self._is_ready(key):
                    break
            self._check_running()
            process = self._processes[key]
            assert process.address is not None
            return process.address, process.num_starts

    # ---- closures --------------------------------------------------------------------------

    def start(self, strategy: ClusterStrategy) -> None:
        """Wait until the workers are ready."""
        self._functions = FunctionPickles(strategy)
        with self._state_changed:
            self._strategy = strategy
            self._state_changed.notify_all()
        self._wait_until_ready(self._expected)

    def wait_for_worker(self, worker_index: int) -> None:
        """See `Cluster.wait_for_worker`."""
        with self._state_changed:
            self._state_changed.wait_for(
                lambda: (
                    self._has_ended()
                    or worker_index >= self.worker_count
                    or self._is_ready(("worker", worker_index))
                )
            )

    def run(self, worker_index: int, call: ClosureCall) -> Outcome:
        """Run a closure on a worker.

        Raises:
          WorkerNotReadyError: If no process of the worker is ready.
          WorkerLostError: If the worker was lost. Its writes may or may not have been applied.
          PartialClosureError: If a server cannot write. This ends the job.
        """
        with self._state_changed:
            self._check_running()
            if not self._is_ready(("worker", worker_index)):
                raise WorkerNotReadyError(f"worker {worker_index} is not ready")
            process = self._processes["worker", worker_index]
        assert process.sent_objects is not None and self._strategy is not None
        try:
            connection = self._take_connection(process)
            worker = RemoteWorker(RemoteCaller(connection), self._strategy, process.sent_objects)
            try:
                return worker.run(call)
            finally:
                process.idle_connections.append(connection)
        except ConnectionLostError as error:
            # The supervising thread replaces the process, even if only this connection was lost.
            # Until then, no closure is sent to the process.
            self._mark_lost(process)
            raise WorkerLostError(str(error)) from error
        except PartialClosureError as error:
            self._end_job(error)
            # The next calls connect again, and find the error.
            for server in self.servers:
                server.disconnect()
            raise

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
            self._state_changed.notify_all()
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

    def _take_connection(self, process: _RegisteredProcess) -> Connection:
        """Return a connection that no thread uses."""
        try:
            return process.idle_connections.pop()
        except IndexError:
            assert process.address is not None
        connection = connect(process.address, self._secret)
        with self._state_changed:
            # A lost process has closed its connections, so nothing would end a call on this one.
            if not process.is_lost:
                process.connections.append(connection)
                return connection
        connection.close()
        raise ConnectionLostError("the process was lost")

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
