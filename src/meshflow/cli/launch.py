"""Starts the workers of a job, watches them, and starts them again when one of them fails.

When a worker dies, or stops, all are ended and the whole job starts again; `BackupAndRestore` (or a
checkpoint of the script's own) makes it go on from the last backup.
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
from typing import IO, Any, TextIO

from meshflow.cli import worker as worker_script
from meshflow.distribute.cluster.addresses import free_port, route_to
from meshflow.distribute.cluster.channel import SECRET
from meshflow.distribute.cluster.supervision import Failure, Supervisor, virtual_devices

__all__ = ["Job"]

_LOCAL = ("localhost", "127.0.0.1", "::1")
# What workers on other machines inherit of this environment.
_SENT = (
    "TF_CONFIG",
    "MESHFLOW_",
    "JAX_",
    "XLA_",
    "NCCL_",
    "GLOO_",
    "NPROC",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
)
# How long workers have to end by themselves, in seconds: after a failure they only wait for each other,
# at the end of the job they may save something first.
_AFTER_FAILURE, _AT_THE_END = 3.0, 20.0


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
      gpus: GPUs of each worker; default the machine's, shared evenly between its workers.
      output: where what the workers write goes.

    Raises:
      ValueError: for a script that is not there, or numbers that are not positive.
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
        gpus: int | None = None,
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
        self._address = address or ("127.0.0.1" if self._local else _reached_from(self._hosts))
        self._devices, self._port, self._gpus = devices, port, gpus
        self._visible = [self._own_gpus(number) for number in range(workers)]
        self._output = output or sys.stdout
        self._writing = threading.Lock()
        self._processes: list[subprocess.Popen[str]] = []

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
        ports = [self._port + i if self._port else free_port() for i in range(self._count)]
        # Workers beside the launcher have its address: "localhost" would be somebody else elsewhere.
        addresses = [
            f"{self._address if _is_local(host) else _without_user(host)}:{port}"
            for host, port in zip(self._hosts, ports, strict=True)
        ]
        supervisor = Supervisor(addresses, self._watchdog, self._address)
        self._processes = []
        shared = supervisor.environment(restarts)
        secret = shared[SECRET]
        grace = _AT_THE_END
        try:
            # From this thread only: the kernel ends workers together with the thread that made them.
            for number in range(self._count):
                task = {"type": "worker", "index": number}
                config = {"cluster": {"worker": addresses}, "task": task}
                environment = {
                    **os.environ,
                    **shared,
                    **(virtual_devices(self._devices) if self._devices is not None else {}),
                    **self._visible[number],
                    "TF_CONFIG": json.dumps(config),
                    # The same for `dtensor.initialize_accelerator_system`.
                    "DTENSOR_JOBS": ",".join(addresses),
                    "DTENSOR_NUM_CLIENTS": str(self._count),
                    "DTENSOR_CLIENT_ID": str(number),
                    "DTENSOR_JOB_NAME": "worker",
                    "PYTHONUNBUFFERED": "1",
                }
                self._processes.append(self._start(number, environment))
            printers = [
                threading.Thread(target=self._print, args=(n, p, secret), daemon=True)
                for n, p in enumerate(self._processes)
            ]
            for printer in printers:
                printer.start()
            self._watch(supervisor)
            for printer in printers:
                printer.join(timeout=2)
        except Failure:
            grace = _AFTER_FAILURE
            raise
        finally:
            self._end_all(grace)
            supervisor.close()

    def _start(self, number: int, environment: dict[str, str]) -> subprocess.Popen[str]:
        host = self._hosts[number]
        given: int = subprocess.DEVNULL
        if _is_local(host):
            command = [sys.executable, worker_script.__file__, *self._command]
            environment[worker_script.LAUNCHER] = str(os.getpid())
        else:
            command, given = _by_ssh(host, self._command, environment), subprocess.PIPE
        return subprocess.Popen(
            command,
            env=environment,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _own_gpus(self, number: int) -> dict[str, str]:
        """Lets a worker see its own GPUs only: two processes cannot share one in a collective."""
        host = self._hosts[number]
        sharing = self._hosts.count(host)
        known = _gpus() if _is_local(host) else []
        share = self._gpus if self._gpus is not None else len(known) // sharing
        if not share or (sharing == 1 and self._gpus is None):
            return {}
        first = self._hosts[:number].count(host) * share
        own = [str(i) for i in range(first, first + share)]
        if known:
            own = known[first : first + share]
            if len(own) < share:
                raise ValueError(
                    f"{sharing} workers of {share} GPUs each were asked for, but this machine has "
                    f"{len(known)}: use fewer workers or another --gpus-per-worker."
                )
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)}

    def _watch(self, supervisor: Supervisor) -> None:
        """Returns when all workers have ended well.

        Raises:
          Failure: when one has not, or hangs.
        """
        while True:
            codes = [p.poll() for p in self._processes]
            failed = {number: code for number, code in enumerate(codes) if code}
            if failed:
                # Who lost another worker ends at once as well, with an error: a signal came first.
                number, code = min(failed.items(), key=lambda item: (item[1] > 0, item[0]))
                raise Failure(f"Worker {number} {_ending(code)}.", _shell_code(code))
            if all(code == 0 for code in codes):
                return
            supervisor.check([n for n, code in enumerate(codes) if code is None])
            time.sleep(0.05)

    def _end_all(self, grace: float) -> None:
        """Ends all workers and what they have started."""
        for process in self._processes:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            if all(p.poll() is not None for p in self._processes):
                break
            time.sleep(0.02)
        for process in self._processes:
            _signal_group(process, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    # ---- writing ---------------------------------------------------------------------------

    def _print(self, number: int, process: subprocess.Popen[str], secret: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if process.stdin is not None and line.strip() == worker_script.ASKING:
                _give(process.stdin, secret)
                continue
            if "[Gloo] Rank" in line or "peer ranks" in line:
                continue  # gloo reports every connection
            self._write(f"[worker {number}] {line.rstrip()}")

    def _say(self, text: str) -> None:
        self._write(f"[launch] {text}")

    def _write(self, line: str) -> None:
        with self._writing:
            self._output.write(line + "\n")
            self._output.flush()


def _is_local(host: str) -> bool:
    return host in _LOCAL or host == socket.gethostname()


def _without_user(host: str) -> str:
    return host.rpartition("@")[2]


def _reached_from(hosts: Sequence[str]) -> str:
    """By which address other machines reach this one."""
    for host in hosts:
        own = None if _is_local(host) else route_to(_without_user(host))
        if own is not None:
            return own
    return socket.getfqdn()


def _gpus() -> list[str]:
    """Numbers of this machine's NVIDIA GPUs, those that may be used."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [g for g in given.split(",") if g.strip()]
    found = [p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(found, key=int)


def _signal_group(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _by_ssh(host: str, command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Runs a worker on another machine, in the same folder; it ends when ssh ends."""
    # The secret is asked for: everybody on both machines can see these words.
    sent = [f"{k}={v}" for k, v in environment.items() if k.startswith(_SENT) and k != SECRET]
    words = [
        "env",
        *sent,
        f"{worker_script.ASKS}={SECRET}",
        sys.executable,
        worker_script.__file__,
        *command,
    ]
    line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
    return ["ssh", "-tt", "-o", "BatchMode=yes", host, line]


def _give(worker: IO[str], secret: str) -> None:
    """Tells a worker on another machine the job's secret, once it asks."""
    with contextlib.suppress(OSError, ValueError):
        worker.write(secret + "\n")
        worker.close()


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
