"""Counts and times of requests, as Prometheus reads them."""

from __future__ import annotations

from collections import Counter

__all__ = ["Metrics"]

_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """What was asked of a model.

    Args:
      name: the model's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._requests: Counter[str] = Counter()
        self._within: Counter[float] = Counter()
        self._count, self._seconds = 0, 0.0

    def add(self, status: str, seconds: float) -> None:
        """Counts a request.

        Args:
          status: 'OK', or the error's name.
          seconds: how long it took.
        """
        self._requests[status] += 1
        self._count += 1
        self._seconds += seconds
        self._within.update(b for b in _BOUNDS if seconds <= b)

    def text(self, calls: int, rows: int) -> str:
        """All metrics.

        Args:
          calls: how often versions were run for batches.
          rows: how many rows these had.
        """
        model = f'model_name="{self._name}"'
        lines = ["# TYPE :tensorflow:serving:request_count counter"]
        for status, count in sorted(self._requests.items()):
            lines.append(f':tensorflow:serving:request_count{{{model},status="{status}"}} {count}')
        lines.append("# TYPE meshflow_serving_request_seconds histogram")
        seconds = "meshflow_serving_request_seconds"
        for bound in _BOUNDS:
            lines.append(f'{seconds}_bucket{{{model},le="{bound}"}} {self._within[bound]}')
        lines.append(f'{seconds}_bucket{{{model},le="+Inf"}} {self._count}')
        lines.append(f"{seconds}_sum{{{model}}} {self._seconds:.6f}")
        lines.append(f"{seconds}_count{{{model}}} {self._count}")
        for name, value in (("batches", calls), ("batched_rows", rows)):
            lines.append(f"# TYPE meshflow_serving_{name} counter")
            lines.append(f"meshflow_serving_{name}{{{model}}} {value}")
        return "\n".join(lines) + "\n"
