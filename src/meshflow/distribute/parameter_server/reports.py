"""What is told of a job while it runs: numbers, a line now and then, curves for TensorBoard, and a table in profiles."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from meshflow.distribute.parameter_server.worker import Outcome
from meshflow.io import protos
from meshflow.io.event_files import EventFile
from meshflow.profiler import description

__all__ = ["Figures", "Report"]

# How many seconds between two points of a curve, where no other number is asked for.
_EVERY = 10.0
_TITLE = "Parameter servers"


class Figures:
    """What has happened so far, in numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._closures = self._repeated = self._pushes = self._staleness = self._most = 0
        self._bytes = [0, 0]

    def add(self, outcome: Outcome) -> None:
        """Counts a closure."""
        with self._lock:
            self._begun = self._begun or time.monotonic()
            self._closures += 1
            self._repeated += outcome.repeated
            self._pushes += len(outcome.staleness)
            self._staleness += sum(outcome.staleness)
            self._most = max([self._most, *outcome.staleness])
            self._bytes = [a + b for a, b in zip(self._bytes, outcome.traffic, strict=True)]

    def so_far(self) -> dict[str, Any]:
        """The numbers, by name."""
        with self._lock:
            taken = time.monotonic() - self._begun if self._begun else 0.0
            return {
                "closures": self._closures,
                "repeated": self._repeated,
                "staleness": self._staleness / max(self._pushes, 1),
                "max_staleness": self._most,
                "bytes_sent": self._bytes[0],
                "bytes_received": self._bytes[1],
                "steps_per_second": self._closures / taken if taken else 0.0,
            }


class Report:
    """Tells how a job goes, as long as there is its coordinator.

    Args:
      statistics: a coordinator's method of that name.
      stopped: whether the cluster has been stopped.
      every: every so many seconds there is a line on stderr; None for none.
      log_dir: where curves are written; None for nowhere.
    """

    def __init__(
        self,
        statistics: Callable[[], dict[str, Any]],
        stopped: Callable[[], bool],
        every: float | None,
        log_dir: str | None,
    ) -> None:
        self._statistics, self._stopped = weakref.WeakMethod(statistics), stopped
        self._every = every
        self._file = None if log_dir is None else EventFile(log_dir, ".parameter_servers")
        self._writing = threading.Lock()
        # What was told last: when, and how many closures were done then.
        self._told = time.monotonic(), 0
        self._over = False
        description.tables[_TITLE] = functools.partial(_so_far, self._statistics)

    def start(self) -> None:
        """Begins to tell, when anything is to be told."""
        if self._every or self._file is not None:
            threading.Thread(target=self._run, daemon=True, name="meshflow-report").start()

    def _run(self) -> None:
        while not self._stopped():
            time.sleep(self._every or _EVERY)
            now = _so_far(self._statistics)
            if not now or self._stopped():
                self.end()
                return
            if self._every:
                print(self._line(now), file=sys.stderr, flush=True)
            self.write(now)

    def end(self) -> None:
        """Says what there was in all, the first time that it is called, where lines were asked for."""
        with self._writing:
            now, over, self._over = _so_far(self._statistics), self._over, True
        if self._every and now and not over:
            print(
                f"{now['closures']} steps, {now['retries']} retries, {now['preemptions']} preemptions, "
                f"{now['server_restarts']} restarts of servers, {now['bytes_sent'] / 1e6:.1f} MB sent and "
                f"{now['bytes_received'] / 1e6:.1f} MB received by workers",
                file=sys.stderr,
                flush=True,
            )

    def _line(self, now: dict[str, Any]) -> str:
        (when, done), self._told = self._told, (time.monotonic(), now["closures"])
        rate = (now["closures"] - done) / max(self._told[0] - when, 1e-9)
        return (
            f"{rate:.1f} steps/s, {now['workers']} workers, {now['queued']} queued, staleness "
            f"{now['staleness']:.1f} (at most {now['max_staleness']}), {now['retries']} retries, "
            f"{now['preemptions']} preemptions"
        )

    def write(self, now: dict[str, Any] | None = None) -> None:
        """Adds a point to each curve.

        Args:
          now: the numbers; default those of now.
        """
        if self._file is None:
            return
        now = now or _so_far(self._statistics)
        with self._writing:
            values = [
                {"tag": f"parameter_servers/{name}", "simple_value": float(value)}
                for name, value in now.items()
            ]
            self._file.add(now.get("closures", 0), summary=protos.Summary(value=values))
            self._file.flush()


def _so_far(statistics: weakref.WeakMethod[Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    """A coordinator's numbers; none when it is gone."""
    found = statistics()
    return {} if found is None else found()
