"""Counts and durations of requests in Prometheus' text format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

__all__ = ["Metrics"]

_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Request counts and latency histograms of all models."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._within: Counter[tuple[str, float]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, model: str, status: str, seconds: float) -> None:
        """Count a request.

        Args:
          model: Name of the served model.
          status: 'OK', or the name of the error code.
          seconds: Duration of the request.
        """
        self._requests[model, status] += 1
        self._seconds[model] += seconds
        self._within.update((model, b) for b in _BOUNDS if seconds <= b)

    def text(self, batches: Mapping[str, tuple[int, int]]) -> str:
        """Return all metrics in Prometheus' text format.

        Args:
          batches: Number of calls and of rows in batches of each model.
        """
        models = sorted(self._seconds)
        lines = ["# TYPE :tensorflow:serving:request_count counter"]
        for (model, status), count in sorted(self._requests.items()):
            lines.append(
                f':tensorflow:serving:request_count{{model_name="{model}",status="{status}"}} {count}'
            )
        lines.append("# TYPE meshflow_serving_request_seconds histogram")
        seconds = "meshflow_serving_request_seconds"
        for model in models:
            label = f'model_name="{model}"'
            total = sum(n for (name, _), n in self._requests.items() if name == model)
            for bound in _BOUNDS:
                lines.append(f'{seconds}_bucket{{{label},le="{bound}"}} {self._within[model, bound]}')  # fmt: skip
            lines.append(f'{seconds}_bucket{{{label},le="+Inf"}} {total}')
            lines.append(f"{seconds}_sum{{{label}}} {self._seconds[model]:.6f}")
            lines.append(f"{seconds}_count{{{label}}} {total}")
        for index, name in enumerate(("batches", "batched_rows")):
            lines.append(f"# TYPE meshflow_serving_{name} counter")
            for model, counts in sorted(batches.items()):
                lines.append(f'meshflow_serving_{name}{{model_name="{model}"}} {counts[index]}')
        return "\n".join(lines) + "\n"
