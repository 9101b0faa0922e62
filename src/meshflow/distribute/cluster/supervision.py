"""Watching over the workers of a job from outside: for `meshflow launch` and for Ray.

A supervisor holds what would otherwise be worker 0's, the meeting point and JAX's coordination service, so
that any worker may die. Workers report to it that they live and how many steps they have done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from meshflow.distribute.cluster import coordination_service
from meshflow.distribute.cluster.addresses import free_port, listening_host, parse, with_port
from meshflow.distribute.cluster.channel import SECRET, Channel, new_secret
from meshflow.distribute.cluster.coordination import COORDINATOR, LEAVING, WATCHDOG
from meshflow.distribute.cluster.rendezvous import TIMEOUT, Rendezvous

__all__ = ["RESTARTS", "Failure", "Supervisor", "virtual_devices"]

# Set for workers: how often the job was started again.
RESTARTS = "MESHFLOW_RESTARTS"


class Failure(Exception):
    """A worker failed.

    Attributes:
      code: for the shell.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Progress:
    """What is known of one worker.

    Attributes:
      heard: when it last said that it lives; None before it joins.
      moved: when it last did a step; None before the second.
      steps: how many it has done.
    """

    def __init__(self) -> None:
        self.heard: float | None = None
        self.moved: float | None = None
        self.steps = 0

    def note(self, steps: int) -> None:
        """Notes a report."""
        self.heard = time.monotonic()
        if steps != self.steps:
            self.steps = steps
            # The first steps compile, which takes longer than all others.
            self.moved = self.heard if steps > 1 else None


def virtual_devices(count: int) -> dict[str, str]:
    """Environment of a process with virtual CPU devices.

    Args:
      count: how many.
    """
    # NPROC sizes XLA's thread pool: with too few threads collectives of virtual devices deadlock.
    threads = max(os.cpu_count() or 1, 4 * count)
    return {"JAX_NUM_CPU_DEVICES": str(count), "NPROC": str(threads)}


class Supervisor:
    """Brings the workers of one start of a job together and watches them.

    Args:
      addresses: the workers' addresses.
      watchdog: after how many seconds without a sign of life, or without a step, a worker has failed.
      host: name by which workers reach this process.
    """

    def __init__(self, addresses: Sequence[str], watchdog: float, host: str) -> None:
        tasks = [f"worker:{i}" for i in range(len(addresses))]
        self._watchdog, self._host = watchdog, host
        self._problem: str | None = None
        self.workers = [Progress() for _ in addresses]
        at = listening_host(host, [parse(a)[0] for a in addresses])
        self._secret = new_secret()
        self._point = Rendezvous(at, 0, tasks, addresses, self._secret)
        self._port = free_port(at)
        arguments = [with_port(at, self._port), str(len(addresses)), str(LEAVING)]
        self._service = subprocess.Popen(
            [sys.executable, coordination_service.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        _thread(self._meet)

    def environment(self, restarts: int) -> dict[str, str]:
        """What workers need in their environment; no command line may have it, as the job's secret is there.

        Args:
          restarts: how often the job was started again.
        """
        return {
            COORDINATOR: with_port(self._host, self._point.port),
            SECRET: self._secret,
            RESTARTS: str(restarts),
            WATCHDOG: str(self._watchdog),
        }

    def _meet(self) -> None:
        """Waits for the workers, if they want to meet, and then listens to them."""
        try:
            self._point.gather(float(os.environ.get(TIMEOUT, 300)), from_first=True)
        except Exception:
            return  # the workers were told, and fail
        self._point.stop_listening()
        assert self._service.stdout is not None
        if not self._service.stdout.readline():
            self._problem = f"The coordination service did not start at port {self._port}."
            return
        self._point.release(with_port(self._host, self._port))
        for number, channel in list(self._point.connections.items()):
            self.workers[number].heard = time.monotonic()
            _thread(self._listen, self.workers[number], channel)

    def _listen(self, worker: Progress, channel: Channel) -> None:
        for message in channel.messages():
            worker.note(int(message.get("steps", 0)))

    def check(self, running: Collection[int]) -> None:
        """Looks whether workers hang.

        Args:
          running: numbers of the workers that have not ended.

        Raises:
          Failure: naming the worker.
        """
        if self._problem is not None:
            raise Failure(self._problem)
        now = time.monotonic()
        for number in running:
            worker = self.workers[number]
            if worker.heard is not None and now - worker.heard > self._watchdog:
                raise Failure(
                    f"Worker {number} has given no sign of life for {self._watchdog:g} s (after step "
                    f"{worker.steps}): it is stopped or stuck."
                )
        moved = [self.workers[n].moved for n in running]
        latest = max((m for m in moved if m is not None), default=None)
        if latest is not None and None not in moved and now - latest > self._watchdog:
            steps = ", ".join(f"worker {n} did {self.workers[n].steps}" for n in running)
            raise Failure(
                f"No worker has done a step for {self._watchdog:g} s (steps: {steps}): they wait for each "
                "other. If steps or what comes between them take longer, give the watchdog more time."
            )

    def close(self) -> None:
        """Ends it; workers that still run end too."""
        self._point.close()
        self._service.kill()
        self._service.wait()
        for pipe in (self._service.stdin, self._service.stdout):
            if pipe is not None:
                pipe.close()


def _thread(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
