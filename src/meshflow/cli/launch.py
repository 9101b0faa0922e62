"""Supervisor of a job with several workers, for `meshflow launch`.

If a worker dies or hangs, the launcher stops all workers and restarts the job. `BackupAndRestore`,
or checkpoints that the script writes, let training resume from the last backup.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

from meshflow.cli import worker as worker_script
from meshflow.distribute.cluster.addresses import find_free_port, find_route_address
from meshflow.distribute.cluster.channel import SECRET_VARIABLE
from meshflow.distribute.cluster.supervision import (
    JobSupervisor,
    WorkerFailureError,
    make_virtual_device_environment,
)
from meshflow.shims import make_environment

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
# Prefixes of the environment variables that workers on other hosts inherit.
_FORWARDED_VARIABLES = (
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
# Seconds until workers are killed. After a failure, workers only wait for each other. At the end of
# a job, they may still write files.
_FAILURE_GRACE_SECONDS, _EXIT_GRACE_SECONDS = 3.0, 20.0


class Job:
    """A script that runs on several workers.

    Args:
      script: Path of the Python script.
      arguments: Command-line arguments of the script.
      workers: Number of workers.
      hosts: Hosts to start workers on over ssh, in equal shares. Default: this machine.
      max_restarts: How often to restart the job after a failure.
      watchdog: Seconds without a heartbeat or a step after which a worker has failed.
      devices: Virtual CPU devices of each worker. Default: the devices of the machine.
      address: Address by which workers on other hosts reach this machine.
      port: First port of the workers in TF_CONFIG. Default: free ports.
      gpus: GPUs of each worker. Default: an equal share of the GPUs of the machine.
      output: Stream for the output of the workers. Default: standard output.

    Raises:
      ValueError: The script does not exist, a number is not positive, or there are too few GPUs.
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
            raise ValueError(f"There is no script {script}. Check the path.")
        self._command = [str(Path(script).resolve()), *arguments]
        self._count, self._max_restarts, self._watchdog = workers, max_restarts, watchdog
        per_host = -(-workers // max(len(hosts), 1))
        self._hosts = [hosts[i // per_host] if hosts else "localhost" for i in range(workers)]
        self._all_local = all(_is_local(h) for h in self._hosts)
        self._address = address or (
            "127.0.0.1" if self._all_local else _find_own_address(self._hosts)
        )
        self._devices, self._port, self._gpus = devices, port, gpus
        self._gpu_environments = [self._assign_gpus(index) for index in range(workers)]
        self._output = output or sys.stdout
        self._output_lock = threading.Lock()
        self._processes: list[subprocess.Popen[str]] = []

    # ---- running ---------------------------------------------------------------------------

    def run(self) -> int:
        """Run the job to its end and return the exit code for the shell."""
        restarts = 0
        with _interrupt_on_signals():
            while True:
                try:
                    self._run_once(restarts)
                    return 0
                except WorkerFailureError as failure:
                    if restarts == self._max_restarts:
                        self._write_message(f"{failure} The job failed after {restarts} restarts.")
                        return failure.code
                    restarts += 1
                    self._write_message(f"{failure} Restart {restarts} of {self._max_restarts}.")
                except KeyboardInterrupt:
                    self._write_message("Interrupted; stopped all workers.")
                    return 130

    def _run_once(self, restarts: int) -> None:
        ports = [self._port + i if self._port else find_free_port() for i in range(self._count)]
        # Workers on other hosts would resolve "localhost" to themselves.
        addresses = [
            f"{self._address if _is_local(host) else _strip_user(host)}:{port}"
            for host, port in zip(self._hosts, ports, strict=True)
        ]
        supervisor = JobSupervisor(addresses, self._watchdog, self._address)
        self._processes = []
        job_environment = supervisor.make_environment(restarts)
        secret = job_environment[SECRET_VARIABLE]
        grace = _EXIT_GRACE_SECONDS
        try:
            # The kernel kills a worker when the thread that started it ends, so this thread does it.
            for index in range(self._count):
                task = {"type": "worker", "index": index}
                config = {"cluster": {"worker": addresses}, "task": task}
                environment = {
                    **os.environ,
                    **make_environment(),
                    **job_environment,
                    **(
                        make_virtual_device_environment(self._devices)
                        if self._devices is not None
                        else {}
                    ),
                    **self._gpu_environments[index],
                    "TF_CONFIG": json.dumps(config),
                    # `dtensor.initialize_accelerator_system` reads these variables.
                    "DTENSOR_JOBS": ",".join(addresses),
                    "DTENSOR_NUM_CLIENTS": str(self._count),
                    "DTENSOR_CLIENT_ID": str(index),
                    "DTENSOR_JOB_NAME": "worker",
                    "PYTHONUNBUFFERED": "1",
                }
                self._processes.append(self._start_worker(index, environment))
            printers = [
                threading.Thread(target=self._forward_output, args=(n, p, secret), daemon=True)
                for n, p in enumerate(self._processes)
            ]
            for printer in printers:
                printer.start()
            self._watch_workers(supervisor)
            for printer in printers:
                printer.join(timeout=2)
        except WorkerFailureError:
            grace = _FAILURE_GRACE_SECONDS
            raise
        finally:
            self._stop_workers(grace)
            supervisor.close()

    def _start_worker(self, index: int, environment: dict[str, str]) -> subprocess.Popen[str]:
        host = self._hosts[index]
        stdin: int = subprocess.DEVNULL
        if _is_local(host):
            command = [sys.executable, worker_script.__file__, *self._command]
            environment[worker_script.LAUNCHER] = str(os.getpid())
        else:
            command, stdin = _make_ssh_command(host, self._command, environment), subprocess.PIPE
        return subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _assign_gpus(self, index: int) -> dict[str, str]:
        """Return the variables that hide other workers' GPUs, since collectives cannot share one."""
        host = self._hosts[index]
        local_workers = self._hosts.count(host)
        gpus = _list_gpus() if _is_local(host) else []
        share = self._gpus if self._gpus is not None else len(gpus) // local_workers
        if not share or (local_workers == 1 and self._gpus is None):
            return {}
        first = self._hosts[:index].count(host) * share
        worker_gpus = [str(i) for i in range(first, first + share)]
        if gpus:
            worker_gpus = gpus[first : first + share]
            if len(worker_gpus) < share:
                raise ValueError(
                    f"Expected {local_workers} workers of {share} GPUs each, but this machine has "
                    f"{len(gpus)} GPUs: use fewer workers or another --gpus-per-worker."
                )
        return {"CUDA_VISIBLE_DEVICES": ",".join(worker_gpus)}

    def _watch_workers(self, supervisor: JobSupervisor) -> None:
        """Wait until all workers have exited successfully.

        Raises:
          Failure: A worker exited with an error, or hangs.
        """
        # Before a worker has connected, it sends no heartbeats.
        stop_times: dict[int, float] = {}
        while True:
            codes = [p.poll() for p in self._processes]
            failed = {index: code for index, code in enumerate(codes) if code}
            if failed:
                # Workers that lose a peer exit with an error, so a killed worker is the likely cause.
                index, code = min(failed.items(), key=lambda item: (item[1] > 0, item[0]))
                raise WorkerFailureError(
                    f"Worker {index} {_describe_exit(code)}.", _to_shell_code(code)
                )
            if all(code == 0 for code in codes):
                return
            running = [n for n, code in enumerate(codes) if code is None]
            supervisor.check_workers(running)
            stop_times = self._check_stopped(running, stop_times)
            time.sleep(0.05)

    def _check_stopped(
        self, running: Sequence[int], stop_times: Mapping[int, float]
    ) -> dict[int, float]:
        """Check that no worker is stopped by a signal for too long.

        Args:
          running: Indices of the workers that have not ended.
          stop_times: The times since which workers of this machine are stopped, by index.

        Returns:
          The current `stop_times`.

        Raises:
          WorkerFailureError: If a worker is stopped for too long.
        """
        now = time.monotonic()
        stopped = [n for n in running if _is_stopped(self._processes[n].pid)]
        for index in stopped:
            if now - stop_times.get(index, now) > self._watchdog:
                raise WorkerFailureError(
                    f"Worker {index} is stopped by a signal for {self._watchdog:g} s."
                )
        return {n: stop_times.get(n, now) for n in stopped}

    def _stop_workers(self, grace: float) -> None:
        """Stop all workers and their children, with `grace` seconds from SIGTERM to SIGKILL."""
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

    def _forward_output(self, index: int, process: subprocess.Popen[str], secret: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if process.stdin is not None and line.strip() == worker_script.SECRET_REQUEST:
                _send_secret(process.stdin, secret)
                continue
            if "[Gloo] Rank" in line or "peer ranks" in line:
                continue  # Gloo reports every connection.
            self._write_line(f"[worker {index}] {line.rstrip()}")

    def _write_message(self, text: str) -> None:
        self._write_line(f"[launch] {text}")

    def _write_line(self, line: str) -> None:
        with self._output_lock:
            self._output.write(line + "\n")
            self._output.flush()


def _is_local(host: str) -> bool:
    return host in _LOCAL_HOSTS or host == socket.gethostname()


def _strip_user(host: str) -> str:
    return host.rpartition("@")[2]


def _find_own_address(hosts: Sequence[str]) -> str:
    """Return the address by which other hosts reach this machine."""
    for host in hosts:
        address = None if _is_local(host) else find_route_address(_strip_user(host))
        if address is not None:
            return address
    return socket.getfqdn()


def _list_gpus() -> list[str]:
    """Return the ids of the NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES allows."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [g for g in visible.split(",") if g.strip()]
    ids = [p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(ids, key=int)


def _signal_group(process: subprocess.Popen[str], signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal_number)


def _make_ssh_command(host: str, command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Return the command that runs a worker on another host, in the same folder, until ssh ends."""
    # The secret is sent over the input later, because all users can read command lines.
    forwarded = [
        f"{k}={v}"
        for k, v in environment.items()
        if k.startswith(_FORWARDED_VARIABLES) and k != SECRET_VARIABLE
    ]
    words = [
        "env",
        *forwarded,
        f"{worker_script.REQUESTED_VARIABLE}={SECRET_VARIABLE}",
        sys.executable,
        worker_script.__file__,
        *command,
    ]
    line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
    return ["ssh", "-tt", "-o", "BatchMode=yes", host, line]


def _send_secret(worker: IO[str], secret: str) -> None:
    """Send the secret of the job to a worker on another host."""
    with contextlib.suppress(OSError, ValueError):
        worker.write(secret + "\n")
        worker.close()


def _is_stopped(pid: int) -> bool:
    """Check whether a child process is stopped by a signal such as SIGSTOP."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _describe_exit(code: int) -> str:
    if code > 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _to_shell_code(code: int) -> int:
    return code if code > 0 else 128 - code


@contextlib.contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C while the block runs."""

    def interrupt(*_: object) -> None:
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
