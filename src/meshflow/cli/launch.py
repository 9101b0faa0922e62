"""Starts the workers of a job, watches them, and starts them again when one of them fails.

The launcher holds the meeting point and JAX's coordination service itself, so any worker may die. When
one does, or stops, all are ended and the whole job starts again; `BackupAndRestore` (or a checkpoint of
the script's own) makes it go on from the last backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from meshflow.cli import service as service_script
from meshflow.cli import worker as worker_script
from meshflow.distribute.coordination import (
    COORDINATOR,
    LEAVING,
    TIMEOUT,
    MeetingPoint,
    bind_address,
    messages,
)

__all__ = ["RESTARTS", "Job"]

# Set for workers: how often the job was started again.
RESTARTS = "MESHFLOW_RESTARTS"
_LOCAL = ("localhost", "127.0.0.1", "::1")
# What workers on other machines inherit of this environment.
_SENT = (
    "TF_CONFIG",
    "MESHFLOW_",
    "JAX_",
    "XLA_",
    "NCCL_",
    "NPROC",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
)
# How long workers have to end by themselves, in seconds.
_GRACE = 3.0


class Worker:
    """One started worker.

    Args:
      number: its number.
      process: the process, or the ssh that holds it.
    """

    def __init__(self, number: int, process: subprocess.Popen[str]) -> None:
        self.number, self.process = number, process
        # When it last said that it lives, and when it last did a step; None before it joins.
        self.heard: float | None = None
        self.moved: float | None = None
        self.steps = 0

    def signal(self, number: int) -> None:
        """Sends a signal to the worker and the processes it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def note(self, steps: int) -> None:
        """Notes that it lives, and how many steps it has done."""
        self.heard = time.monotonic()
        if steps != self.steps:
            self.steps = steps
            # The first steps compile, which takes longer than all others.
            self.moved = self.heard if steps > 1 else None


class Failure(Exception):
    """A worker failed.

    Attributes:
      code: what the launcher returns when nobody starts the job again.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Job:
    """A script run by several workers.

    Args:
      script: the script.
      arguments: its arguments.
      workers: how many workers.
      hosts: machines to start them on by ssh, in equal shares; default this one.
      max_restarts: how often the job is started again after a failure.
      watchdog: after how many seconds without a sign of life, or without a step, a worker has failed.
      devices: virtual CPU devices of each worker; default the machine's devices.
      address: name by which workers on other machines reach this one.
      port: first port of the workers in TF_CONFIG; default free ones.
      output: where what the workers write goes.
    """

    def __init__(
        self,
        script: str,
        arguments: Sequence[str] = (),
        workers: int = 1,
        hosts: Sequence[str] = (),
        max_restarts: int = 0,
        watchdog: float = 600.0,
        devices: int | None = None,
        address: str | None = None,
        port: int | None = None,
        output: TextIO | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"--workers must be at least 1, got {workers}.")
        if watchdog <= 0:
            raise ValueError(f"--watchdog must be a positive number of seconds, got {watchdog:g}.")
        if not Path(script).is_file():
            raise ValueError(f"There is no script {script}.")
        self._command = [str(Path(script).resolve()), *arguments]
        self._count, self._max_restarts, self._watchdog = workers, max_restarts, watchdog
        per_host = -(-workers // max(len(hosts), 1))
        self._hosts = [hosts[i // per_host] if hosts else "localhost" for i in range(workers)]
        self._local = all(_is_local(h) for h in self._hosts)
        self._address = address or ("127.0.0.1" if self._local else socket.getfqdn())
        self._devices, self._port = devices, port
        self._output = output or sys.stdout
        self._writing = threading.Lock()
        self.workers: list[Worker] = []
        self._service: subprocess.Popen[str] | None = None
        self._service_port = 0

    # ---- running ---------------------------------------------------------------------------

    def run(self) -> int:
        """Runs the job to its end; returns the code for the shell."""
        restarts = 0
        with _terminated_by_signals():
            while True:
                try:
                    self._run_once(restarts)
                    return 0
                except Failure as failure:
                    if restarts == self._max_restarts:
                        self._say(f"{failure} The job has failed after {restarts} restarts.")
                        return failure.code
                    restarts += 1
                    self._say(f"{failure} Restart {restarts} of {self._max_restarts}.")
                except KeyboardInterrupt:
                    self._say("Interrupted: all workers are ended.")
                    return 130

    def _run_once(self, restarts: int) -> None:
        ports = [self._port + i if self._port else _free_port() for i in range(self._count)]
        addresses = [
            f"{'127.0.0.1' if self._local else host}:{port}"
            for host, port in zip(self._hosts, ports, strict=True)
        ]
        tasks = [f"worker:{i}" for i in range(self._count)]
        point = MeetingPoint(0, tasks, addresses)
        try:
            self._start_service()
            # From this thread only: the kernel ends workers together with the thread that made them.
            self.workers = []
            for number in range(self._count):
                environment = self._environment(number, addresses, point.port, restarts)
                self.workers.append(Worker(number, self._start(number, environment)))
            printers = [self._thread(self._print, w) for w in self.workers]
            self._thread(self._meet, point)
            self._watch()
            for printer in printers:
                printer.join(timeout=2)
        finally:
            self._end_all()
            point.close()
            if self._service is not None:
                self._service.kill()
                self._service.wait()

    def _start_service(self) -> None:
        self._service_port = _free_port()
        command = [sys.executable, service_script.__file__, bind_address(self._service_port)]
        self._service = subprocess.Popen(
            [*command, str(self._count), str(LEAVING)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _thread(self, function: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    def _environment(
        self, number: int, addresses: list[str], port: int, restarts: int
    ) -> dict[str, str]:
        task = {"type": "worker", "index": number}
        changed = {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
            COORDINATOR: f"{self._address}:{port}",
            RESTARTS: str(restarts),
            "PYTHONUNBUFFERED": "1",
        }
        if self._devices is not None:
            changed["JAX_NUM_CPU_DEVICES"] = str(self._devices)
            # XLA's thread pool: with too few threads collectives of virtual devices deadlock.
            changed["NPROC"] = str(max(os.cpu_count() or 1, 4 * self._devices))
        return {**os.environ, **changed}

    def _start(self, number: int, environment: dict[str, str]) -> subprocess.Popen[str]:
        host = self._hosts[number]
        if _is_local(host):
            command = [sys.executable, worker_script.__file__, *self._command]
            environment[worker_script.LAUNCHER] = str(os.getpid())
        else:
            command = _by_ssh(host, self._command, environment)
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _meet(self, point: MeetingPoint) -> None:
        """Brings the workers together, if they want that, and listens to their reports."""
        try:
            point.gather(float(os.environ.get(TIMEOUT, 300)), from_first=True)
        except Exception:
            return  # the workers were told, and fail
        assert self._service is not None and self._service.stdout is not None
        self._service.stdout.readline()
        point.release(f"{self._address}:{self._service_port}")
        now = time.monotonic()
        for number, connection in point.connections.items():
            self.workers[number].heard = now
            self._thread(self._listen, self.workers[number], connection)

    def _listen(self, worker: Worker, connection: socket.socket) -> None:
        for message in messages(connection):
            worker.note(int(message.get("steps", 0)))

    # ---- watching --------------------------------------------------------------------------

    def _watch(self) -> None:
        """Returns when all workers have ended well.

        Raises:
          Failure: when one has not, or hangs.
        """
        while True:
            codes = [w.process.poll() for w in self.workers]
            for worker, code in zip(self.workers, codes, strict=True):
                if code:
                    raise Failure(f"Worker {worker.number} {_ending(code)}.", _shell_code(code))
            if all(code == 0 for code in codes):
                return
            self._check_progress([w for w, c in zip(self.workers, codes, strict=True) if c is None])
            time.sleep(0.05)

    def _check_progress(self, running: list[Worker]) -> None:
        now = time.monotonic()
        for worker in running:
            if worker.heard is not None and now - worker.heard > self._watchdog:
                raise Failure(
                    f"Worker {worker.number} has given no sign of life for {self._watchdog:g} s "
                    f"(after step {worker.steps}): it is stopped or stuck.",
                    1,
                )
        moved = [w.moved for w in running]
        latest = max((m for m in moved if m is not None), default=None)
        if latest is not None and None not in moved and now - latest > self._watchdog:
            steps = ", ".join(f"worker {w.number} did {w.steps}" for w in running)
            raise Failure(
                f"No worker has done a step for {self._watchdog:g} s (steps: {steps}): they wait for "
                "each other. If steps or what comes between them take longer, raise --watchdog.",
                1,
            )

    def _end_all(self) -> None:
        """Ends all workers and what they have started."""
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            if all(w.process.poll() is not None for w in self.workers):
                break
            time.sleep(0.02)
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
            worker.process.wait()

    # ---- writing ---------------------------------------------------------------------------

    def _print(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            if "[Gloo] Rank " in line:
                continue  # gloo reports every connection
            self._write(f"[worker {worker.number}] {line.rstrip()}")

    def _say(self, text: str) -> None:
        self._write(f"[launch] {text}")

    def _write(self, line: str) -> None:
        with self._writing:
            self._output.write(line + "\n")
            self._output.flush()


def _is_local(host: str) -> bool:
    return host in _LOCAL or host == socket.gethostname()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("", 0))
        return held.getsockname()[1]


def _by_ssh(host: str, command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Runs a worker on another machine, in the same folder; it ends when ssh ends."""
    sent = [f"{k}={v}" for k, v in environment.items() if k.startswith(_SENT)]
    words = ["env", *sent, sys.executable, worker_script.__file__, *command]
    line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
    return ["ssh", "-tt", "-o", "BatchMode=yes", host, line]


def _ending(code: int) -> str:
    if code > 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _shell_code(code: int) -> int:
    return code if code > 0 else 128 - code


@contextlib.contextmanager
def _terminated_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the launcher as Ctrl-C does."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    saved = {n: signal.signal(n, interrupt) for n in numbers}
    try:
        yield
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)
