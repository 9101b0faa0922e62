"""Servers and workers as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from meshflow.distribute.cluster.channel import SECRET
from meshflow.distribute.parameter_server.journal import Folder
from meshflow.distribute.parameter_server.roles import HOST, ROLE, is_crowded, role_of

__all__ = ["LocalProcesses"]


class LocalProcesses:
    """Begins and ends the processes of a cluster on this machine.

    Args:
      folder: where servers keep their journals; None for none.
      workers: how many workers there are to be.
    """

    resizes = True

    def __init__(self, folder: Folder | None, workers: int) -> None:
        self._folder, self._crowded = folder, is_crowded(workers)
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def launch(self, kind: str, number: int, coordinator: str, secret: str, servers: int) -> None:
        """See `Launcher.launch`."""
        role = role_of(kind, number, coordinator, servers, self._folder, self._crowded)
        paths = [str(Path(p).resolve()) for p in sys.path if p] + [os.getcwd()]
        self.processes[kind, number] = subprocess.Popen(
            [sys.executable, "-c", f"import {HOST} as host; host.main()"],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                SECRET: secret,
                ROLE: json.dumps(role._asdict()),
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

    def about(self, kind: str, number: int) -> str:
        """See `Launcher.about`."""
        return ""

    def stop(self) -> None:
        """See `Launcher.stop`."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        if self._folder is not None:
            self._folder.close()
