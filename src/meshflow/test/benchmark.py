"""`tf.test.Benchmark` and helpers of TensorFlow's tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshflow.environment.types import PyTree


class Benchmark:
    """Base class of benchmarks: methods with the prefix "benchmark" measure something.

    Example:
      >>> class Sum(tf.test.Benchmark):
      ...     def benchmark_small(self):
      ...         self.report_benchmark(iters=2, wall_time=0.5)
      >>> Sum().benchmark_small()
      >>> Sum.reports[-1]["wall_time"]
      0.5
    """

    # Reports of this process.
    reports: list[dict[str, Any]] = []

    @classmethod
    def is_abstract(cls) -> bool:
        """Return whether the class is the base class."""
        return cls is Benchmark

    def report_benchmark(
        self,
        iters: int | None = None,
        cpu_time: float | None = None,
        wall_time: float | None = None,
        throughput: float | None = None,
        extras: Mapping[str, Any] | None = None,
        name: str | None = None,
        metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Record a result in `reports`.

        Args:
          iters: Number of repetitions.
          cpu_time: Seconds of processor time per repetition.
          wall_time: Seconds per repetition.
          throughput: Megabytes per second.
          extras: Other values.
          name: Name of the benchmark.
          metrics: Other metrics.
        """
        report = {
            "name": name or type(self).__name__,
            "iters": iters,
            "cpu_time": cpu_time,
            "wall_time": wall_time,
        }
        Benchmark.reports.append(
            {**report, "throughput": throughput, "extras": extras, "metrics": metrics}
        )

    def evaluate(self, tensors: PyTree) -> PyTree:
        """Return tensors as NumPy arrays."""
        return jax.tree.map(
            lambda t: t.numpy() if hasattr(t, "numpy") else t,
            tensors,
            is_leaf=lambda t: hasattr(t, "numpy"),
        )

    def run_op_benchmark(
        self,
        sess: object,
        op_or_tensor: Callable[[], Any],
        feed_dict: object = None,
        burn_iters: int = 2,
        min_iters: int = 10,
        store_trace: bool = False,
        store_memory_usage: bool = True,
        name: str | None = None,
        extras: Mapping[str, Any] | None = None,
        mbs: float = 0,
    ) -> dict[str, Any]:
        """Measure a function of no arguments, and record its median time.

        Args:
          sess: Ignored.
          op_or_tensor: The function.
          feed_dict: Ignored.
          burn_iters: Number of repetitions that are not measured.
          min_iters: Number of repetitions.
          store_trace: Ignored.
          store_memory_usage: Ignored.
          name: Name of the benchmark.
          extras: Other values.
          mbs: Megabytes that each repetition processes.
        """
        for _ in range(burn_iters):
            jax.block_until_ready(op_or_tensor())
        seconds = []
        for _ in range(min_iters):
            start = time.perf_counter()
            jax.block_until_ready(op_or_tensor())
            seconds.append(time.perf_counter() - start)
        median = sorted(seconds)[len(seconds) // 2]
        throughput = mbs / median if median else 0.0
        self.report_benchmark(min_iters, None, median, throughput, extras, name)
        return {
            "iters": min_iters,
            "wall_time": median,
            "throughput": throughput,
            "name": name,
            "extras": extras,
        }


def benchmark_config() -> dict[str, Any]:
    """Return the options of sessions for benchmarks; there are none."""
    return {}


def sync_devices() -> None:
    """Wait until all devices have finished their work."""
    for device in jax.local_devices():
        jax.device_put(0.0, device).block_until_ready()


def with_eager_op_as_function(cls: Any = None, only_as_function: bool = False) -> Any:
    """Return a test class, or with options a decorator, unchanged."""
    return (lambda test_class: test_class) if cls is None else cls
