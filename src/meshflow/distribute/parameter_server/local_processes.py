"""Servers and workers as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from meshflow.distribute.channel import SECRET
from meshflow.distribute.parameter_server.journal import Folder

__all__ = ["LocalProcesses"]

# The module that such a process runs. It is named, and not imported, as it needs the strategy that launches it.
HOST = "meshflow.distribute.parameter_server.host"
# What `host` reads its role from.
_ROLE = "MESHFLOW_PARAMETER_SERVER"


def role_of(
    kind: str, number: int, coordinator: str, servers: int, folder: Folder | None
) -> dict[str, Any]:
    """What a process is, as `host.Role` takes it.

    Args:
      kind: "worker" or "ps".
      number: its number among them.
      coordinator: where the coordinator is.
      servers: how many parameter servers there are.
      folder: where servers keep their journals; None for none.
    """
    own = str(folder.of_server(number)) if kind == "ps" and folder else None
    return {
        "kind": kind,
        "number": number,
        "coordinator": coordinator,
        "servers": servers,
        "folder": own,
    }


class LocalProcesses:
    """Begins and ends the processes of a cluster on this machine.

    Args:
      folder: where servers keep their journals; None for none.
    """

    resizes = True

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def launch(self, kind: str, number: int, coordinator: str, secret: str, servers: int) -> None:
        """See `Launcher.launch`."""
        role = role_of(kind, number, coordinator, servers, self._folder)
        paths = [str(Path(p).resolve()) for p in sys.path if p] + [os.getcwd()]
        self.processes[kind, number] = subprocess.Popen(
            [sys.executable, "-c", f"import {HOST} as host; host.main()"],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                SECRET: secret,
                _ROLE: json.dumps(role),
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )

    def is_dead(self, kind: str, number: int) -> bool:
        """See `Launcher.is_dead`."""
        return self.processes[kind, number].poll() is not None

    def kill(self, kind: str, number: int) -> None:
        """See `Launcher.kill`."""
        process = self.processes.get((kind, number))
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)

    def stop(self) -> None:
        """See `Launcher.stop`."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        if self._folder is not None:
            self._folder.close()
