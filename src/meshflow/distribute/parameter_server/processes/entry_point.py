"""Entry point of processes that are a parameter server or a worker.

A process registers with the coordinator, and ends when its connection to the coordinator is closed.
`main` reads the role of the process from the environment.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
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
    control.send(("register", (role.kind, role.number, role.num_starts, os.getpid())))
    # Other processes are on the coordinator's network, or on this machine.
    coordinator_host = parse_address(role.coordinator)[0]
    host = (
        "127.0.0.1" if is_loopback(coordinator_host) else find_route_address(coordinator_host) or ""
    )
    listener = open_listening_socket(host, 0, f"{role.kind} {role.number}")
    address = format_address(host, listener.getsockname()[1])
    host_service = _HostService(role, secret, control, listener, address)
    try:
        answer_calls(control, host_service.control_methods)
    finally:
        close_listener(listener)


class _HostService:
    """The server or worker of a process, which another thread loads.

    Args:
      role: Role of the process.
      secret: Secret of the job.
      control: The connection to the coordinator.
      listener: Socket on which the process accepts connections.
      address: Address of the listener.

    Attributes:
      control_methods: The methods for the coordinator, to which `prepare` adds those of the service.
    """

    def __init__(
        self,
        role: Role,
        secret: str,
        control: Connection,
        listener: socket.socket,
        address: str,
    ) -> None:
        self._role, self._secret = role, secret
        self._control, self._listener, self._address = control, listener, address
        self._servers: list[RemoteServer] = []
        self._service: ServerService | WorkerService | None = None
        self._error: Exception | None = None
        self._loader: threading.Thread | None = None
        self._loaded = threading.Event()
        self.control_methods: dict[str, Callable[..., Any]] = {
            "ping": self._ping,
            "prepare": self._prepare,
        }

    def _prepare(self, timeout: float) -> str | None:
        """Return the address once the service is loaded, or None.

        The first call starts to load it: a process that the coordinator has replaced must not open
        the journal.
        """
        if self._loader is None:
            self._loader = threading.Thread(target=self._load_and_accept, daemon=True)
            self._loader.start()
        if not self._loaded.wait(timeout):
            return None
        if self._error is not None:
            raise self._error
        self.control_methods.update(self._get_methods(self._control))
        return self._address

    def _load_and_accept(self) -> None:
        """Load the service, and accept connections if this succeeds."""
        try:
            self._service = self._create_service()
        except Exception as error:
            traceback.print_exc()
            self._error = error
        self._loaded.set()
        if self._error is None:
            accept_connections(self._listener, self._secret, self._answer)

    def _create_service(self) -> ServerService | WorkerService:
        role = self._role
        if role.kind == "ps":
            return ServerService(role.number, role.folder)
        locate = ServerDirectory(role.coordinator, self._secret)
        self._servers = [RemoteServer(n, locate, self._secret) for n in range(role.servers)]
        return WorkerService(role.number, self._servers, role.crowded)

    def _get_methods(self, connection: Connection) -> dict[str, Callable[..., Any]]:
        assert self._service is not None
        return self._service.methods(connection)

    def _answer(self, connection: Connection) -> None:
        try:
            answer_calls(connection, self._get_methods(connection))
        except FencedError:
            self._control.close()  # This ends the process.
            raise

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
