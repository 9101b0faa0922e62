"""Progress reports of a job.

They consist of statistics, lines on stderr, curves for TensorBoard, and a table in profiles.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeAlias

from meshflow.distribute.parameter_server.worker.calls import Outcome
from meshflow.io import protos
from meshflow.io.event_files import EventFile
from meshflow.profiler import description

# Method that returns statistics by name.
StatisticsMethod: TypeAlias = Callable[[], dict[str, float]]

# Default number of seconds between two points of a curve.
_DEFAULT_INTERVAL = 10.0
_TITLE = "Parameter servers"


class ClosureStatistics:
    """Statistics of the closures that have finished."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start_time: float | None = None
        self._closures = self._repeated = self._pushes = self._staleness = self._max_staleness = 0
        self._bytes = [0, 0]

    def add(self, outcome: Outcome) -> None:
        """Count a closure."""
        with self._lock:
            self._start_time = self._start_time or time.monotonic()
            self._closures += 1
            self._repeated += outcome.repeated
            self._pushes += len(outcome.staleness)
            self._staleness += sum(outcome.staleness)
            self._max_staleness = max([self._max_staleness, *outcome.staleness])
            self._bytes = [a + b for a, b in zip(self._bytes, outcome.traffic, strict=True)]

    def get_statistics(self) -> dict[str, float]:
        """Return the statistics by name."""
        with self._lock:
            duration = time.monotonic() - self._start_time if self._start_time else 0.0
            return {
                "closures": self._closures,
                "repeated": self._repeated,
                "staleness": self._staleness / max(self._pushes, 1),
                "max_staleness": self._max_staleness,
                "bytes_sent": self._bytes[0],
                "bytes_received": self._bytes[1],
                "steps_per_second": self._closures / duration if duration else 0.0,
            }


class ProgressReport:
    """Report of the progress of a job, for the lifetime of its coordinator.

    Args:
      statistics: The method `ClusterCoordinator.statistics`.
      is_stopped: Function that checks whether the cluster was stopped.
      interval: Number of seconds between two lines on stderr, or None for no lines.
      log_dir: Folder for the curves, or None for no curves.
    """

    def __init__(
        self,
        statistics: StatisticsMethod,
        is_stopped: Callable[[], bool],
        interval: float | None,
        log_dir: str | None,
    ) -> None:
        self._statistics, self._stopped = weakref.WeakMethod(statistics), is_stopped
        self._interval = interval
        self._file = None if log_dir is None else EventFile(log_dir, ".parameter_servers")
        self._write_lock = threading.Lock()
        # The time and the number of closures of the last line.
        self._last_line: tuple[float, float] = time.monotonic(), 0
        self._is_finished = False
        description.tables[_TITLE] = functools.partial(_get_current, self._statistics)

    def start(self) -> None:
        """Start the thread that writes lines and curves, if any are requested."""
        if self._interval or self._file is not None:
            threading.Thread(target=self._run, daemon=True, name="meshflow-report").start()

    def _run(self) -> None:
        while not self._stopped():
            time.sleep(self._interval or _DEFAULT_INTERVAL)
            statistics = _get_current(self._statistics)
            if not statistics or self._stopped():
                self.finish()
                return
            if self._interval:
                print(self._format_line(statistics), file=sys.stderr, flush=True)
            self.write(statistics)

    def finish(self) -> None:
        """Print a summary, if lines are requested. Later calls do nothing."""
        with self._write_lock:
            statistics, was_finished, self._is_finished = (
                _get_current(self._statistics),
                self._is_finished,
                True,
            )
        if self._interval and statistics and not was_finished:
            print(
                f"{statistics['closures']} steps, {statistics['retries']} retries, {statistics['preemptions']} preemptions, "
                f"{statistics['server_restarts']} restarts of servers, {statistics['bytes_sent'] / 1e6:.1f} MB sent and "
                f"{statistics['bytes_received'] / 1e6:.1f} MB received by workers",
                file=sys.stderr,
                flush=True,
            )

    def _format_line(self, statistics: dict[str, float]) -> str:
        (last_time, last_count), self._last_line = (
            self._last_line,
            (time.monotonic(), statistics["closures"]),
        )
        rate = (statistics["closures"] - last_count) / max(self._last_line[0] - last_time, 1e-9)
        return (
            f"{rate:.1f} steps/s, {statistics['workers']} workers, {statistics['queued']} queued, staleness "
            f"{statistics['staleness']:.1f} (at most {statistics['max_staleness']}), {statistics['retries']} retries, "
            f"{statistics['preemptions']} preemptions"
        )

    def write(self, statistics: dict[str, float] | None = None) -> None:
        """Add a point to each curve.

        Args:
          statistics: The values; by default the current ones.
        """
        if self._file is None:
            return
        statistics = statistics or _get_current(self._statistics)
        with self._write_lock:
            values = [
                {"tag": f"parameter_servers/{name}", "simple_value": float(value)}
                for name, value in statistics.items()
            ]
            self._file.add(int(statistics.get("closures", 0)), summary=protos.Summary(value=values))
            self._file.flush()


def _get_current(method: weakref.WeakMethod[StatisticsMethod]) -> dict[str, float]:
    """Return the statistics of a coordinator, or nothing if it was deleted."""
    bound_method = method()
    return {} if bound_method is None else bound_method()
