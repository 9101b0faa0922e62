"""What a process of a cluster is, for who begins it and for itself."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from meshflow.distribute.parameter_server.journal import Folder

__all__ = ["HOST", "ROLE", "Role", "is_crowded", "role_of", "working"]

# The module that such a process runs. It is named, and not imported, as it needs the strategy that launches it.
HOST = "meshflow.distribute.parameter_server.host"
# The environment variable with the role of a process, as JSON.
ROLE = "MESHFLOW_PARAMETER_SERVER"


class Role(NamedTuple):
    """What a process of a cluster is.

    Attributes:
      kind: "worker" or "ps".
      number: its number among them.
      coordinator: where the coordinator is, as 'host:port'.
      servers: how many parameter servers there are.
      folder: where a parameter server keeps its journal; None for none.
      crowded: whether a worker shares its machine's cores with as many others.
    """

    kind: str
    number: int
    coordinator: str
    servers: int
    folder: str | None = None
    crowded: bool = False


class _Working(threading.local):
    """What the thread works for.

    Attributes:
      worker: the number of the worker whose closure it loads or runs in a process of its own, or None.
    """

    worker: int | None = None


working = _Working()


def role_of(
    kind: str,
    number: int,
    coordinator: str,
    servers: int,
    folder: Folder | None,
    crowded: bool,
) -> Role:
    """The role of a process that is launched.

    Args:
      kind: "worker" or "ps".
      number: its number among them.
      coordinator: where the coordinator is.
      servers: how many parameter servers there are.
      folder: where servers keep their journals; None for none.
      crowded: see `Role`.
    """
    own = str(folder.of_server(number)) if kind == "ps" and folder else None
    return Role(kind, number, coordinator, servers, own, crowded)


def is_crowded(workers: int) -> bool:
    """Whether workers on this machine have no more than one core each.

    Args:
      workers: how many there are.
    """
    return workers >= (os.cpu_count() or 1)
