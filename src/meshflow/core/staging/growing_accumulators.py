"""`TensorArray`s whose element shape or size becomes known while a staged block is traced.

An array without a known element shape has no tensor that a loop could carry. The first `write`
fixes the shape in a record that all versions of the array share; the block is then traced again,
with an array of zeros from the start. Likewise the size of an array with `dynamic_size=True`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor

T = TypeVar("T")

# Each nested block can need one more attempt.
MAX_ATTEMPTS = 8


class ArrayGrew(Exception):
    """An array in the state learned its element shape or size while the block was traced."""


def with_known_arrays(build: Callable[[], T]) -> T:
    """Builds a staged block; again, when an array learned its size the first time."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return build()
        except ArrayGrew:
            continue
    return build()


class _Running(threading.local):
    """The scans whose bodies are being traced: (index tensor, number of iterations, trace)."""

    def __init__(self) -> None:
        self.scans: list[tuple[Any, int, Any]] = []


_running = _Running()


@contextlib.contextmanager
def visiting(index: Any, count: int) -> Iterator[None]:
    """Notes, while a scan's body is traced, that `index` counts its iterations."""
    _running.scans.append((index, count, context.trace))
    try:
        yield
    finally:
        _running.scans.pop()


def count_of_index(tensor: Tensor) -> int | None:
    """The number of iterations, when `tensor` is the counter 0, 1, ... of a running scan.

    None when it is not, or when the present code need not run in every iteration.
    """
    for index, count, scope in _running.scans:
        if index is tensor and scope is context.trace:
            return count
    return None
