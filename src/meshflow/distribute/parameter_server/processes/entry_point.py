"""Entry point of processes that are a parameter server or a worker.

A process registers with the coordinator, and ends when its connection to the coordinator is closed.
`main` reads the role of the process from the environment.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshflow.distribute.cluster.addresses import (
    find_route_address,
    format_address,
    is_loopback,
    open_listening_socket,
    parse_address,
)
from meshflow.distribute.cluster.channel import get_secret
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.cluster.external_processes import TaskListener
from meshflow.distribute.parameter_server.cluster.roles import ROLE_VARIABLE, Role
from meshflow.distribute.parameter_server.processes.worker_service import WorkerService
from meshflow.distribute.parameter_server.server.remote_server import RemoteServer, ServerService
from meshflow.distribute.parameter_server.transport.connection import (
    Connection,
    ConnectionLostError,
    FencedError,
    RemoteCaller,
    accept_connections,
    answer_calls,
    close_listener,
    connect,
)
from meshflow.profiler import description, server

# Environment variable with the first port for the profilers of the processes.
PROFILER_PORTS = "MESHFLOW_PROFILER_PORTS"

__all__ = ["main", "make_listener", "run", "serve"]


def serve(role: Role, secret: str) -> None:
    """Run a server or a worker until the coordinator stops.

    Args:
      role: Role of the process.
      secret: Secret of the job.

    Raises:
      ConnectionError: If the coordinator cannot be reached.
    """
    control = connect(role.coordinator, secret)
    # The coordinator monitors this process from now on, also while it reads a long journal.
    control.send(("register", role.kind, role.number, role.num_starts, os.getpid()))
    # Other processes are on the coordinator's network, or on this machine.
    coordinator_host = parse_address(role.coordinator)[0]
    host = (
        "127.0.0.1" if is_loopback(coordinator_host) else find_route_address(coordinator_host) or ""
    )
    listener = open_listening_socket(host, 0, f"{role.kind} {role.number}")
    address = format_address(host, listener.getsockname()[1])
    host_service = _HostService(role, secret, address)

    def answer(connection: Connection) -> None:
        try:
            answer_calls(connection, host_service.get_methods(connection))
        except FencedError:
            control.close()  # This ends the process.
            raise

    def load() -> None:
        if host_service.load():
            accept_connections(listener, secret, answer)

    try:
        answer_calls(control, host_service.get_control_methods(control, load))
    finally:
        close_listener(listener)


class _HostService:
    """The server or worker of a process, which another thread loads.

    Args:
      role: Role of the process.
      secret: Secret of the job.
      address: Address at which the process accepts connections.
    """

    def __init__(self, role: Role, secret: str, address: str) -> None:
        self._role, self._secret, self._address = role, secret, address
        self._servers: list[RemoteServer] = []
        self._service: ServerService | WorkerService | None = None
        self._error: Exception | None = None
        self._loaded = threading.Event()

    def load(self) -> bool:
        """Create the server or worker, and return whether it could be created."""
        role = self._role
        try:
            if role.kind == "ps":
                self._service = ServerService(role.number, role.folder)
            else:
                locate = ServerDirectory(role.coordinator, self._secret)
                self._servers = [RemoteServer(n, locate, self._secret) for n in range(role.servers)]
                self._service = WorkerService(role.number, self._servers, role.crowded)
        except Exception as error:
            traceback.print_exc()
            self._error = error
        self._loaded.set()
        return self._error is None

    def get_methods(self, connection: Connection) -> dict[str, Callable[..., Any]]:
        """Return the methods that may be called on a connection after `load`, by name.

        Args:
          connection: The connection.
        """
        assert self._service is not None
        return self._service.methods(connection)

    def get_control_methods(
        self, control: Connection, load: Callable[[], None]
    ) -> Mapping[str, Callable[..., Any]]:
        """Return the methods for the coordinator, to which `prepare` adds those of the service.

        Args:
          control: The connection to the coordinator.
          load: Function that loads the service. The first call of `prepare` starts it in a thread: a
            process that the coordinator has replaced must not open the journal.
        """
        methods: dict[str, Callable[..., Any]] = {}
        loading: list[threading.Thread] = []

        def prepare(timeout: float) -> str | None:
            """Return the address once the service is loaded, or None."""
            if not loading:
                loading.append(threading.Thread(target=load, daemon=True))
                loading[0].start()
            if not self._loaded.wait(timeout):
                return None
            if self._error is not None:
                raise self._error
            methods.update(self.get_methods(control))
            return self._address

        methods.update(ping=self._ping, prepare=prepare)
        return methods

    def _ping(self, num_starts: Sequence[int]) -> bool:
        """Answer a heartbeat, with the number of starts of each parameter server."""
        for remote_server, count in zip(self._servers, num_starts, strict=False):
            remote_server.abandon(count)
        return True


def make_listener(
    cluster_spec: ClusterSpec | Mapping[str, Any], job_name: str, task_index: int
) -> TaskListener:
    """Return a listener that makes this program a server or worker at its address in a cluster.

    Args:
      cluster_spec: The addresses by job.
      job_name: "worker" or "ps".
      task_index: Index of the task in its job.

    Returns:
      A listener: `start()` starts it, and `join()` waits.
    """

    def serve_coordinator(fields: dict[str, Any], secret: str) -> None:
        with contextlib.suppress(ConnectionLostError):
            serve(Role(**fields), secret)

    return TaskListener(cluster_spec, job_name, task_index, serve_coordinator)


class ServerDirectory:
    """Lookup of the addresses of parameter servers at the coordinator.

    Args:
      coordinator: Address of the coordinator.
      secret: Secret of the job.
    """

    def __init__(self, coordinator: str, secret: str) -> None:
        self._coordinator, self._secret = coordinator, secret

    def __call__(self, index: int, known: int) -> tuple[str, int]:
        """Return the address of a server and its number of starts.

        Args:
          index: Index of the server.
          known: Number of starts when the server was lost. The coordinator waits until it is
            exceeded.
        """
        connection: Connection = connect(self._coordinator, self._secret)
        try:
            location: tuple[str, int] = RemoteCaller(connection).call("where", index, known)
            return location
        finally:
            connection.close()


def run(role: Role, secret: str) -> None:
    """Make this process a server or a worker, and end it with the coordinator.

    Args:
      role: Role of the process.
      secret: Secret of the job.
    """
    try:
        _start_profiler(role)
        # Results are needed at once, and other threads run programs meanwhile, so asynchronous
        # dispatch would only add a thread.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        # Imported objects are permanent, so garbage collections, which stop all threads, need not
        # visit them.
        gc.collect()
        gc.freeze()
        serve(role, secret)
    except ConnectionLostError as error:
        print(f"{role.kind} {role.number}: lost the coordinator: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # Other threads may still compute for the lost coordinator.
    os._exit(0)


def _start_profiler(role: Role) -> None:
    """Start a profiler server if the environment requests one.

    The ports of parameter servers precede those of workers.
    """
    description.default_name = f"{role.kind} {role.number}"
    first = os.environ.get(PROFILER_PORTS)
    if first:
        port = int(first) + role.number + (role.servers if role.kind == "worker" else 0)
        server.start(port)


def main() -> None:
    """Run the process that the environment describes."""
    run(Role(**json.loads(os.environ[ROLE_VARIABLE])), get_secret())
