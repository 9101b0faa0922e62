"""Role of a process of a cluster, which its launcher passes to it."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from meshflow.distribute.parameter_server.server.journal import JournalFolder

# Processes run this module. It is not imported here, because it imports the strategy that launches
# the processes.
HOST_MODULE = "meshflow.distribute.parameter_server.processes.entry_point"
# Environment variable with the role of a process as JSON.
ROLE_VARIABLE = "MESHFLOW_PARAMETER_SERVER"


class Role(NamedTuple):
    """Role of a process of a cluster.

    Attributes:
      kind: "worker" or "ps".
      number: Index among the processes of this kind.
      coordinator: Address of the coordinator as 'host:port'.
      servers: Number of parameter servers.
      num_starts: Number of starts of processes of this kind and index so far. The coordinator
        refuses a process that it has replaced by a later one.
      folder: Folder of the journal of a parameter server, or None.
      crowded: Whether there are at least as many workers on the machine as cores.
    """

    kind: str
    number: int
    coordinator: str
    servers: int
    num_starts: int
    folder: str | None = None
    crowded: bool = False


class _CurrentWorker(threading.local):
    """Thread-local record of the worker for which the thread loads or runs a closure.

    Attributes:
      worker_id: Index of the worker in its own process, or None.
    """

    worker_id: int | None = None


current_worker = _CurrentWorker()


def make_role(
    kind: str,
    index: int,
    coordinator: str,
    servers: int,
    num_starts: int,
    folder: JournalFolder | None,
    crowded: bool,
) -> Role:
    """Return the role of a process that is launched.

    Args:
      kind: "worker" or "ps".
      index: Index among the processes of this kind.
      coordinator: Address of the coordinator.
      servers: Number of parameter servers.
      num_starts: See `Role`.
      folder: Folder of the journals of servers, or None.
      crowded: See `Role`.
    """
    server_folder = str(folder.get_server_folder(index)) if kind == "ps" and folder else None
    return Role(kind, index, coordinator, servers, num_starts, server_folder, crowded)


def is_crowded(workers: int) -> bool:
    """Check whether workers on this machine have at most one core each.

    Args:
      workers: Number of workers.
    """
    return workers >= (os.cpu_count() or 1)
