"""Operators of a deployed model, and the measurement of its calls."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable


@dataclasses.dataclass
class OperatorCosts:
    """An operator and its costs.

    Attributes:
      name: Name of the operator.
      kind: Its operation.
      calls: Calls per run of the model.
      seconds: Seconds per run of the model.
      first_seconds: Seconds in the first run, None if unknown.
      bytes: Bytes of its results, with XLA also of its operands; None if unknown.
    """

    name: str
    kind: str
    calls: float
    seconds: float
    first_seconds: float | None = None
    bytes: int | None = None


def measure_seconds(run: Callable[[], object], count: int) -> float:
    """Return the mean seconds of `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count
