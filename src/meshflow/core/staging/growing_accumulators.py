"""`TensorArray`s with an element shape or size that becomes known while a staged block is traced.

An array without a known element shape has no tensor that a loop could carry. The first `write` sets
the shape in a record that all versions of the array share; the block is then traced again, and
starts with an array of zeros. The same is done for the size of an array with `dynamic_size=True`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor

T = TypeVar("T")

# Each nested block may require one more attempt.
MAX_ATTEMPTS = 8


class ArrayGrowth(Exception):
    """Signal that the element shape or size of an array changed while the block was traced."""


def retry_grown_arrays(build: Callable[[], T]) -> T:
    """Build a staged block; retry if the size of an array became known."""
    for _ in range(MAX_ATTEMPTS):
        with contextlib.suppress(ArrayGrowth):
            return build()
    return build()


class _ActiveScans(threading.local):
    """The scans that are being traced: (index tensor, number of iterations, trace)."""

    def __init__(self) -> None:
        self.scans: list[tuple[Any, int, Any]] = []


_active = _ActiveScans()


@contextlib.contextmanager
def scan_scope(index: Tensor | None, count: int) -> Iterator[None]:
    """Record, while the body of a scan is traced, that `index` counts its iterations."""
    _active.scans.append((index, count, context.trace))
    try:
        yield
    finally:
        _active.scans.pop()


def get_index_count(tensor: Tensor) -> int | None:
    """Return the number of iterations if `tensor` is the counter 0, 1, ... of an active scan.

    Returns None if it is not, or if the present code may not run in every iteration.
    """
    for index, count, scope in _active.scans:
        if index is tensor and scope is context.trace:
            return count
    return None
