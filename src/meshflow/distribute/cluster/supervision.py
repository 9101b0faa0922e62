"""Supervision of the workers of a job by another process: by `meshflow launch` and by Ray.

A supervisor hosts the rendezvous and JAX's coordination service instead of worker 0, so any worker
can fail. Workers send heartbeats and step counts to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence

from meshflow.distribute.cluster import coordination_service
from meshflow.distribute.cluster.addresses import (
    choose_listening_host,
    find_free_port,
    format_address,
    parse_address,
)
from meshflow.distribute.cluster.channel import SECRET_VARIABLE, SignedChannel, create_secret
from meshflow.distribute.cluster.coordination import (
    COORDINATOR_VARIABLE,
    SHUTDOWN_SECONDS,
    WATCHDOG_VARIABLE,
)
from meshflow.distribute.cluster.rendezvous import TIMEOUT_VARIABLE, Rendezvous

# Environment variable of workers: the number of restarts of the job.
RESTARTS_VARIABLE = "MESHFLOW_RESTARTS"


class WorkerFailureError(Exception):
    """Error for a failed worker.

    Attributes:
      code: Exit code for the shell.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class WorkerProgress:
    """Last reports of a worker.

    Attributes:
      heartbeat_time: Time of the last heartbeat; None before the worker connects.
      step_time: Time of the last step; None before the second step.
      steps: Number of steps.
    """

    def __init__(self) -> None:
        self.heartbeat_time: float | None = None
        self.step_time: float | None = None
        self.steps = 0

    def record_report(self, steps: int) -> None:
        """Record a report."""
        self.heartbeat_time = time.monotonic()
        if steps != self.steps:
            self.steps = steps
            # The first steps include compilation, which takes longer than all other steps.
            self.step_time = self.heartbeat_time if steps > 1 else None

    def omit_pause(self, seconds: float) -> None:
        """Do not count a time in which no reports could be read."""
        # Reports that waited in sockets may have been read since.
        now = time.monotonic()
        if self.heartbeat_time is not None:
            self.heartbeat_time = min(self.heartbeat_time + seconds, now)
        if self.step_time is not None:
            self.step_time = min(self.step_time + seconds, now)


def make_virtual_device_environment(count: int) -> dict[str, str]:
    """Return the environment variables of a process with virtual CPU devices."""
    # NPROC sets the size of XLA's thread pool: with too few threads, collectives of virtual devices
    # deadlock.
    threads = max(os.cpu_count() or 1, 4 * count)
    return {"JAX_NUM_CPU_DEVICES": str(count), "NPROC": str(threads)}


class JobSupervisor:
    """Supervisor of the workers of one start of a job: it connects and monitors them.

    Args:
      addresses: Addresses of the workers.
      watchdog: Number of seconds without a heartbeat, or without a step, after which a worker has
        failed.
      host: Name by which workers reach this process.
    """

    def __init__(self, addresses: Sequence[str], watchdog: float, host: str) -> None:
        tasks = [f"worker:{i}" for i in range(len(addresses))]
        self._watchdog, self._host = watchdog, host
        self._problem: str | None = None
        self._check_time = time.monotonic()
        self.workers = [WorkerProgress() for _ in addresses]
        listening_address = choose_listening_host(host, [parse_address(a)[0] for a in addresses])
        self._secret = create_secret()
        self._rendezvous = Rendezvous(listening_address, 0, tasks, addresses, self._secret)
        self._port = find_free_port(listening_address)
        arguments = [
            format_address(listening_address, self._port),
            str(len(addresses)),
            str(SHUTDOWN_SECONDS),
        ]
        self._service = subprocess.Popen(
            [sys.executable, coordination_service.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        _start_thread(self._connect_workers)

    def make_environment(self, restarts: int) -> dict[str, str]:
        """Return the environment variables of workers, which contain the secret of the job."""
        return {
            COORDINATOR_VARIABLE: format_address(self._host, self._rendezvous.port),
            SECRET_VARIABLE: self._secret,
            RESTARTS_VARIABLE: str(restarts),
            WATCHDOG_VARIABLE: str(self._watchdog),
        }

    def _connect_workers(self) -> None:
        """Wait for the workers, if they connect, and start to read their reports."""
        try:
            self._rendezvous.wait_for_workers(
                float(os.environ.get(TIMEOUT_VARIABLE, 300)), from_first=True
            )
        except Exception:
            return  # the workers received the error and fail
        self._rendezvous.stop_listening()
        assert self._service.stdout is not None
        if not self._service.stdout.readline():
            self._problem = f"The coordination service did not start at port {self._port}."
            return
        self._rendezvous.send_service_address(format_address(self._host, self._port))
        for index, channel in list(self._rendezvous.connections.items()):
            self.workers[index].heartbeat_time = time.monotonic()
            _start_thread(self._read_reports, self.workers[index], channel)

    def _read_reports(self, worker: WorkerProgress, channel: SignedChannel) -> None:
        for message in channel.iterate_messages():
            worker.record_report(int(message.get("steps", 0)))

    def check_workers(self, running: Collection[int]) -> None:
        """Check that no worker hangs, and that the coordination service runs.

        Args:
          running: Indices of the workers that have not ended.

        Raises:
          WorkerFailureError: If a worker hangs, or if the service ended; the message names it.
        """
        if self._problem is not None:
            raise WorkerFailureError(self._problem)
        code = self._service.poll()
        if code is not None:
            raise WorkerFailureError(
                f"The coordination service at port {self._port} ended with code {code}; workers would wait."
            )
        now = time.monotonic()
        pause, self._check_time = now - self._check_time, now
        # Checks are separated by 0.05 s or more, also if the watchdog's time is shorter.
        if pause > max(1.0, self._watchdog / 2):
            # This process was suspended, as by Ctrl-Z or with its virtual machine, and so were workers.
            for worker in self.workers:
                worker.omit_pause(pause)
        for index in running:
            worker = self.workers[index]
            if worker.heartbeat_time is not None and now - worker.heartbeat_time > self._watchdog:
                raise WorkerFailureError(
                    f"Worker {index} has given no sign of life for {self._watchdog:g} s (after step "
                    f"{worker.steps}): it is stopped or stuck."
                )
        step_times = [self.workers[n].step_time for n in running]
        latest = max((m for m in step_times if m is not None), default=None)
        if latest is not None and None not in step_times and now - latest > self._watchdog:
            steps = ", ".join(f"worker {n} did {self.workers[n].steps}" for n in running)
            raise WorkerFailureError(
                f"No worker has done a step for {self._watchdog:g} s (steps: {steps}): they wait for each "
                "other. If steps or the work between them take longer, increase the watchdog's time."
            )

    def close(self) -> None:
        """Stop the supervisor; workers that still run end, too."""
        self._rendezvous.close()
        self._service.kill()
        self._service.wait()
        for pipe in (self._service.stdin, self._service.stdout):
            if pipe is not None:
                pipe.close()


def _start_thread(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
