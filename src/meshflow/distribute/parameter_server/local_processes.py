"""Servers and workers as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from meshflow.distribute.channel import SECRET
from meshflow.distribute.parameter_server.journal import Folder

__all__ = ["LocalProcesses"]

_MODULE = "meshflow.distribute.parameter_server.host"
# What `host` reads its role from.
_ROLE = "MESHFLOW_PARAMETER_SERVER"


class LocalProcesses:
    """Begins and ends the processes of a cluster on this machine.

    Args:
      folder: where servers keep their journals; None for none.
    """

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def launch(self, kind: str, number: int, coordinator: str, secret: str, servers: int) -> None:
        """See `Launcher.launch`."""
        folder = str(self._folder.of_server(number)) if kind == "ps" and self._folder else None
        role = dict(
            kind=kind, number=number, coordinator=coordinator, servers=servers, folder=folder
        )
        paths = [str(Path(p).resolve()) for p in sys.path if p] + [os.getcwd()]
        self.processes[kind, number] = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                SECRET: secret,
                _ROLE: json.dumps(role),
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )

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
