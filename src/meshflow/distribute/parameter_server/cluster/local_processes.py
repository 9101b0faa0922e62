"""Launcher of servers and workers as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from meshflow.distribute.cluster.channel import SECRET_VARIABLE
from meshflow.distribute.parameter_server.cluster.roles import (
    HOST_MODULE,
    ROLE_VARIABLE,
    is_crowded,
    make_role,
)
from meshflow.distribute.parameter_server.server.journal import JournalFolder


class LocalProcesses:
    """Launcher of the processes of a cluster on this machine.

    Args:
      folder: Folder of the journals of servers, or None.
      workers: Number of workers.
    """

    can_resize = True

    def __init__(self, folder: JournalFolder | None, workers: int) -> None:
        self._folder, self._crowded = folder, is_crowded(workers)
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def launch(
        self, kind: str, index: int, coordinator: str, secret: str, servers: int, num_starts: int
    ) -> None:
        """See `ProcessLauncher.launch`."""
        role = make_role(kind, index, coordinator, servers, num_starts, self._folder, self._crowded)
        paths = [str(Path(p).resolve()) for p in sys.path if p] + [os.getcwd()]
        self.processes[kind, index] = subprocess.Popen(
            [sys.executable, "-c", f"import {HOST_MODULE} as host; host.main()"],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                SECRET_VARIABLE: secret,
                ROLE_VARIABLE: json.dumps(role._asdict()),
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )

    def is_dead(self, kind: str, index: int) -> bool:
        """See `ProcessLauncher.is_dead`."""
        return self.processes[kind, index].poll() is not None

    def kill(self, kind: str, index: int) -> None:
        """See `ProcessLauncher.kill`."""
        process = self.processes.get((kind, index))
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)

    def describe_process(self, kind: str, index: int) -> str:
        """See `ProcessLauncher.describe_process`."""
        return ""

    def stop(self) -> None:
        """See `ProcessLauncher.stop`."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        if self._folder is not None:
            self._folder.close()
