"""What a process of a cluster is, for who begins it and for itself."""

from __future__ import annotations

import os
from typing import NamedTuple

from meshflow.distribute.parameter_server.journal import Folder

__all__ = ["HOST", "ROLE", "Role", "cores_of", "role_of"]

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
    """

    kind: str
    number: int
    coordinator: str
    servers: int
    folder: str | None = None


def role_of(kind: str, number: int, coordinator: str, servers: int, folder: Folder | None) -> Role:
    """The role of a process that is launched.

    Args:
      kind: "worker" or "ps".
      number: its number among them.
      coordinator: where the coordinator is.
      servers: how many parameter servers there are.
      folder: where servers keep their journals; None for none.
    """
    own = str(folder.of_server(number)) if kind == "ps" and folder else None
    return Role(kind, number, coordinator, servers, own)


def cores_of(kind: str, workers: int) -> dict[str, str]:
    """Environment of a process on a machine with others of its job: workers take their share of the cores.

    Args:
      kind: "worker" or "ps".
      workers: how many workers there are.
    """
    share = max(1, (os.cpu_count() or 1) // workers)
    return {"NPROC": os.environ.get("NPROC", str(share))} if kind == "worker" else {}
