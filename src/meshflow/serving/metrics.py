"""Counts and durations of requests in Prometheus' text format."""

from __future__ import annotations

import types
from collections import Counter, defaultdict
from collections.abc import Mapping

_BUCKET_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Request counts and latency histograms of all models."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._bucket_counts: Counter[tuple[str, float]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._rejections: Counter[str] = Counter()

    def count_rejection(self, reason: str) -> None:
        """Count a connection or request that was rejected before its model was known.

        Args:
          reason: "host", "connections", "head" (a head that is too large or incomplete), "pipelined",
            or "stalled" (a response that the client does not read).
        """
        self._rejections[reason] += 1

    def add(self, model: str, status: str, seconds: float) -> None:
        """Count a request.

        Args:
          model: Name of the served model.
          status: 'OK', or the name of the error code.
          seconds: Duration of the request.
        """
        self._requests[model, status] += 1
        self._seconds[model] += seconds
        self._bucket_counts.update((model, b) for b in _BUCKET_SECONDS if seconds <= b)

    def text(
        self,
        batches: Mapping[str, tuple[int, int]],
        busy_seconds: Mapping[str, float] = types.MappingProxyType({}),
        gauges: Mapping[str, float] = types.MappingProxyType({}),
    ) -> str:
        """Return all metrics in Prometheus' text format.

        Args:
          batches: Number of calls and of rows in batches of each model.
          busy_seconds: Seconds for which the current call of each model has been running.
          gauges: Other values by name.
        """
        models = sorted(self._seconds)
        lines = ["# TYPE :tensorflow:serving:request_count counter"]
        for (model, status), count in sorted(self._requests.items()):
            lines.append(
                f':tensorflow:serving:request_count{{model_name="{_escape_label(model)}",status="{status}"}} {count}'
            )
        lines.append("# TYPE meshflow_serving_request_seconds histogram")
        seconds = "meshflow_serving_request_seconds"
        for model in models:
            label = f'model_name="{_escape_label(model)}"'
            total = sum(n for (name, _), n in self._requests.items() if name == model)
            for bound in _BUCKET_SECONDS:
                lines.append(f'{seconds}_bucket{{{label},le="{bound}"}} {self._bucket_counts[model, bound]}')  # fmt: skip
            lines.append(f'{seconds}_bucket{{{label},le="+Inf"}} {total}')
            lines.append(f"{seconds}_sum{{{label}}} {self._seconds[model]:.6f}")
            lines.append(f"{seconds}_count{{{label}}} {total}")
        for index, name in enumerate(("batches", "batched_rows")):
            lines.append(f"# TYPE meshflow_serving_{name} counter")
            for model, counts in sorted(batches.items()):
                lines.append(
                    f'meshflow_serving_{name}{{model_name="{_escape_label(model)}"}} {counts[index]}'
                )
        lines.append("# TYPE meshflow_serving_rejections counter")
        for reason, count in sorted(self._rejections.items()):
            lines.append(f'meshflow_serving_rejections{{reason="{reason}"}} {count}')
        lines.append("# TYPE meshflow_serving_busy_seconds gauge")
        for model, value in sorted(busy_seconds.items()):
            label = f'model_name="{_escape_label(model)}"'
            lines.append(f"meshflow_serving_busy_seconds{{{label}}} {value:.3f}")
        for name, value in gauges.items():
            lines += [f"# TYPE meshflow_serving_{name} gauge", f"meshflow_serving_{name} {value}"]
        return "\n".join(lines) + "\n"


def _escape_label(text: str) -> str:
    """Escape the value of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
