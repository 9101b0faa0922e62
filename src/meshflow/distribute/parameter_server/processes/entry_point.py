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
from collections.abc import Callable, Mapping
from typing import Any

import jax

from meshflow.core.runtime.errors import DataLossError
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
    accept_connections,
    answer_calls,
    close_listener,
    connect,
    dump_error,
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
    # Other processes are on the coordinator's network, or on this machine.
    coordinator_host = parse_address(role.coordinator)[0]
    host = (
        "127.0.0.1" if is_loopback(coordinator_host) else find_route_address(coordinator_host) or ""
    )
    listener = open_listening_socket(host, 0, f"{role.kind} {role.number}")
    try:
        methods = _define_methods(role, secret)
    except DataLossError as error:
        # Another process would find the same damage.
        control.send(("failed", role.kind, role.number, dump_error(error)))
        raise

    def answer(connection: Connection) -> None:
        try:
            answer_calls(connection, methods(connection))
        except FencedError:
            control.close()  # This ends the process.
            raise

    threading.Thread(
        target=accept_connections, args=(listener, secret, answer), daemon=True
    ).start()
    control.send(
        (
            "register",
            role.kind,
            role.number,
            format_address(host, listener.getsockname()[1]),
            os.getpid(),
        )
    )
    try:
        answer_calls(control, {"ping": lambda: True, **methods(control)})
    finally:
        close_listener(listener)


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


def _define_methods(
    role: Role, secret: str
) -> Callable[[Connection], dict[str, Callable[..., Any]]]:
    """Return a function from a connection to the methods that may be called on it."""
    if role.kind == "ps":
        return ServerService(role.number, role.folder).methods
    locate = ServerDirectory(role.coordinator, secret)
    servers = [RemoteServer(n, locate, secret) for n in range(role.servers)]
    methods = WorkerService(role.number, servers, role.crowded).methods()
    return lambda connection: methods


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
            connection.send(("where", index, known))
            location: tuple[str, int] = connection.receive()
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
