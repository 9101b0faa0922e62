"""Worker processes that compute Python functions in parallel, and that can be killed."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing import connection
from pathlib import Path
from typing import Any

from meshflow.core.runtime.errors import AbortedError

_PROGRAM = Path(__file__).with_name("worker_main.py")


class WorkerProcess:
    """A worker process that computes a function.

    Args:
      function: The pickled function.
      name: Name of the program for error messages.
    """

    def __init__(self, function: bytes, name: str) -> None:
        self._name = name
        local, remote = socket.socketpair()
        read_end, write_end = os.pipe()
        limits = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(remote.fileno()), str(read_end)],
                pass_fds=(remote.fileno(), read_end),
                env={**limits, **os.environ, "JAX_PLATFORMS": "cpu"},
            )
        finally:
            remote.close()
            os.close(read_end)
        # A file can be closed twice, because a pool may be closed while a call fails.
        self._lifeline = os.fdopen(write_end, "wb")
        self.connection: Any = connection.Connection(local.detach())
        # This is the index of the element that the worker is computing.
        self.index: int | None = None
        try:
            self.connection.send_bytes(pickle.dumps(sys.path))
            self.connection.send_bytes(function)
        except OSError:
            error = self.make_death_error()
            self.stop()
            raise error from None

    def start(self, index: int, seed: int, arguments: tuple[Any, ...]) -> None:
        """Send an element to the worker."""
        self.index = index
        try:
            self.connection.send_bytes(pickle.dumps((index, seed, arguments), 5))
        except OSError:
            raise self.make_death_error() from None

    def receive_result(self) -> Any:
        """Receive the result of the function, and raise its error.

        Raises:
          AbortedError: The worker is dead; `index` is still that of its element.
        """
        try:
            message = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self.make_death_error() from None
        self.index = None
        if len(message) == 3:
            raise _annotate_error(self._name, *message)
        return message[1]

    def make_death_error(self) -> AbortedError:
        """Return the error for a dead worker."""
        code = self.process.wait()
        ending = f"exited with status {code}"
        if code < 0:
            ending = f"was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            ending += " (the system does so when memory runs out: use fewer workers)"
        context = "" if self.index is None else f" while it computed element {self.index}"
        return AbortedError(f"Worker process {self.process.pid} of {self._name} {ending}{context}.")

    def stop(self) -> None:
        """Terminate the process."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._lifeline.close()


def _annotate_error(name: str, index: int, error: BaseException | None, text: str) -> BaseException:
    """Return the error of a function with a note that contains the element and the traceback."""
    if error is None:
        error = RuntimeError(f"An exception in a worker process of {name}:\n{text}")
        text = ""
    if index < 0:
        error.add_note("(while a worker process loaded the function)\n" + text)
    else:
        error.add_note(f"(in a worker process, for element {index})\n{text}")
    return error
