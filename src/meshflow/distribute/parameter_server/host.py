"""A process of a cluster: a parameter server or a worker, which begins by telling the coordinator where it is.

`main` runs one in a process of its own, in whose environment is what it needs to know. It ends when its connection to the
coordinator ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import jax

from meshflow.distribute.cluster.addresses import is_loopback, listening, parse, route_to, with_port
from meshflow.distribute.cluster.channel import own_secret
from meshflow.distribute.parameter_server.remote_server import RemoteServer, ServerService
from meshflow.distribute.parameter_server.roles import ROLE, Role
from meshflow.distribute.parameter_server.serving import Serving
from meshflow.distribute.parameter_server.wire import Lost, Wire, accepting, answer, connect, end
from meshflow.distribute.parameter_server.worker_service import WorkerService
from meshflow.profiler import description, server

# The first port of the profiler's servers in processes of a cluster that are begun here.
PORTS = "MESHFLOW_PROFILER_PORTS"

__all__ = ["main", "run", "serve", "served"]


def serve(role: Role, secret: str) -> None:
    """Is a server or a worker until the coordinator ends.

    Args:
      role: which one.
      secret: the job's.

    Raises:
      ConnectionError: when the coordinator cannot be reached.
    """
    control = connect(role.coordinator, secret)
    # Others come from where the coordinator is, or from this machine.
    theirs = parse(role.coordinator)[0]
    host = "127.0.0.1" if is_loopback(theirs) else route_to(theirs) or ""
    listener = listening(host, 0, f"{role.kind} {role.number}")
    methods = _methods(role, secret)
    threading.Thread(
        target=accepting,
        args=(listener, secret, lambda wire: answer(wire, methods(wire))),
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


def served(cluster_spec: Any, job_name: str, task_index: int) -> Serving:
    """This program as a server or worker at its address in a cluster.

    Args:
      cluster_spec: addresses by job.
      job_name: "worker" or "ps".
      task_index: the number in the job.

    Returns:
      What listens after `start()`, and waits in `join()`.
    """

    def work(fields: dict[str, Any], secret: str) -> None:
        with contextlib.suppress(Lost):
            serve(Role(**fields), secret)

    return Serving(cluster_spec, job_name, task_index, work)


def _methods(role: Role, secret: str) -> Callable[[Wire], dict[str, Callable[..., Any]]]:
    """What may be called on a connection."""
    if role.kind == "ps":
        return ServerService(role.number, role.folder).methods
    where = Directory(role.coordinator, secret)
    servers = [RemoteServer(n, where, secret) for n in range(role.servers)]
    methods = WorkerService(role.number, servers, role.crowded).methods()
    return lambda wire: methods


class Directory:
    """Asks the coordinator where parameter servers are.

    Args:
      coordinator: its address.
      secret: the job's.
    """

    def __init__(self, coordinator: str, secret: str) -> None:
        self._coordinator, self._secret = coordinator, secret

    def __call__(self, number: int, known: int) -> tuple[str, int]:
        """Where a server is, and how often it has begun.

        Args:
          number: the server's number.
          known: how often it had begun when it was found dead: one that began later is waited for.
        """
        wire: Wire = connect(self._coordinator, self._secret)
        try:
            wire.send(("where", number, known))
            found: tuple[str, int] = wire.receive()
            return found
        finally:
            wire.close()


def run(role: Role, secret: str) -> None:
    """Makes this process a server or a worker, and ends it with the coordinator.

    Args:
      role: which one.
      secret: the job's.
    """
    try:
        _let_profile(role)
        # What a program gives is needed at once, and other threads' programs run meanwhile: nobody else is to run this one.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        # What was imported stays: collections, which hold all threads up, need not look at it each time.
        gc.collect()
        gc.freeze()
        serve(role, secret)
    except Lost as error:
        print(f"{role.kind} {role.number}: the coordinator is gone: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # Threads may still compute for a coordinator that is gone.
    os._exit(0)


def _let_profile(role: Role) -> None:
    """Begins a profiler's server where the environment asks for one: servers' ports come first."""
    description.given_name = f"{role.kind} {role.number}"
    first = os.environ.get(PORTS)
    if first:
        port = int(first) + role.number + (role.servers if role.kind == "worker" else 0)
        server.start(port)


def main() -> None:
    """Runs the process that the environment describes."""
    run(Role(**json.loads(os.environ[ROLE])), own_secret())
