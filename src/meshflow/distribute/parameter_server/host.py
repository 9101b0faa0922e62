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

from meshflow.distribute.cluster.addresses import is_loopback, listening, parse, route_to, with_port
from meshflow.distribute.cluster.channel import own_secret
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server.remote_server import RemoteServer, ServerService
from meshflow.distribute.parameter_server.roles import ROLE, Role
from meshflow.distribute.parameter_server.serving import Serving
from meshflow.distribute.parameter_server.wire import Lost, Wire, accepting, answer, connect, end
from meshflow.distribute.parameter_server.worker_service import WorkerService
from meshflow.profiler import description, server

# Environment variable with the first port for the profilers of the processes.
PORTS = "MESHFLOW_PROFILER_PORTS"

__all__ = ["main", "run", "serve", "served"]


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
    coordinator_host = parse(role.coordinator)[0]
    host = "127.0.0.1" if is_loopback(coordinator_host) else route_to(coordinator_host) or ""
    listener = listening(host, 0, f"{role.kind} {role.number}")
    methods = _methods(role, secret)
    threading.Thread(
        target=accepting,
        args=(listener, secret, lambda connection: answer(connection, methods(connection))),
        daemon=True,
    ).start()
    control.send(
        (
            "register",
            role.kind,
            role.number,
            with_port(host, listener.getsockname()[1]),
            os.getpid(),
        )
    )
    try:
        answer(control, {"ping": lambda: True, **methods(control)})
    finally:
        end(listener)


def served(
    cluster_spec: ClusterSpec | Mapping[str, Any], job_name: str, task_index: int
) -> Serving:
    """Return a listener that makes this program a server or worker at its address in a cluster.

    Args:
      cluster_spec: The addresses by job.
      job_name: "worker" or "ps".
      task_index: Index of the task in its job.

    Returns:
      A listener: `start()` starts it, and `join()` waits.
    """

    def serve_coordinator(fields: dict[str, Any], secret: str) -> None:
        with contextlib.suppress(Lost):
            serve(Role(**fields), secret)

    return Serving(cluster_spec, job_name, task_index, serve_coordinator)


def _methods(role: Role, secret: str) -> Callable[[Wire], dict[str, Callable[..., Any]]]:
    """Return a function from a connection to the methods that may be called on it."""
    if role.kind == "ps":
        return ServerService(role.number, role.folder).methods
    locate = Directory(role.coordinator, secret)
    servers = [RemoteServer(n, locate, secret) for n in range(role.servers)]
    methods = WorkerService(role.number, servers, role.crowded).methods()
    return lambda connection: methods


class Directory:
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
        connection: Wire = connect(self._coordinator, self._secret)
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
        _let_profile(role)
        # Results are needed at once, and other threads run programs meanwhile, so asynchronous
        # dispatch would only add a thread.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        # Imported objects are permanent, so garbage collections, which stop all threads, need not
        # visit them.
        gc.collect()
        gc.freeze()
        serve(role, secret)
    except Lost as error:
        print(f"{role.kind} {role.number}: lost the coordinator: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # Other threads may still compute for the lost coordinator.
    os._exit(0)


def _let_profile(role: Role) -> None:
    """Start a profiler server if the environment requests one.

    The ports of parameter servers precede those of workers.
    """
    description.given_name = f"{role.kind} {role.number}"
    first = os.environ.get(PORTS)
    if first:
        port = int(first) + role.number + (role.servers if role.kind == "worker" else 0)
        server.start(port)


def main() -> None:
    """Run the process that the environment describes."""
    run(Role(**json.loads(os.environ[ROLE])), own_secret())
