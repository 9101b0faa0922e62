"""Gathering of rows of several arrays, which can be started before the rows are requested."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.data.execution.stopwatch import Stopwatch
from meshflow.kernels import row_gather as kernels

# Function from an array of indices to the stacked leaves of their elements.
Gather = Callable[[np.ndarray], list[Any]]
StartedGather = list[Callable[[], np.ndarray]]
# For smaller gathers, in bytes, the hand-over to another thread would take longer.
_MIN_BYTES_IN_THREAD = 1 << 15


class LeafGather:
    """Gathers rows of an array, or affine maps of them.

    Args:
      array: All rows.
      steps: Operations after a cast to float32, each a `row_gather.Step`; None for unchanged rows.
      shape: Shape of a result, None for that of a row.
    """

    def __init__(
        self,
        array: np.ndarray,
        steps: tuple[Any, ...] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self._array, self._objects = array, array.dtype.hasobject
        self._rows = kernels.RowSource(array, steps)
        self._shape: tuple[int, ...] = self._rows.shape if shape is None else shape

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Return the rows of some indices; the result may be a view of the array.

        Args:
          index: Indices, int64.
        """
        if self._objects:
            return self._array[index].reshape(len(index), *self._shape)
        if self._is_slice(index):
            part = np.asarray(self._array[index[0] : index[-1] + 1])
            return part.reshape(len(index), *self._shape)
        out, address = transfers.allocate_with_address((len(index), *self._shape), self._rows.dtype)
        return self._rows.take(index, out, address)

    @property
    def can_start(self) -> bool:
        """Return whether another thread can gather rows that `start` requests."""
        return self._rows.has_worker_thread

    def _is_slice(self, index: np.ndarray) -> bool:
        """Check whether the indices are consecutive, so that a view of the array is enough."""
        if self._rows.steps is not None:
            return False
        first, last = int(index[0]), int(index[-1])
        return last - first == len(index) - 1 and bool((np.diff(index) == 1).all())

    def start(self, index: np.ndarray) -> Callable[[], np.ndarray]:
        """Start to gather rows in another thread.

        Args:
          index: Indices, int64.

        Returns:
          A function that returns the rows, to be called once.
        """
        if self._objects or self._is_slice(index):
            return functools.partial(self, index)
        out, address = transfers.allocate_with_address((len(index), *self._shape), self._rows.dtype)
        begun = (
            self._rows.start(index, out, address) if out.nbytes >= _MIN_BYTES_IN_THREAD else None
        )
        if begun is not None:
            return begun.result
        self._rows.take(index, out, address)
        return lambda: out

    def gather_all(self) -> np.ndarray:
        """Return all rows."""
        if self._rows.steps is None:
            return self._array.reshape(-1, *self._shape)
        return self(np.arange(len(self._array)))


class BatchedGather:
    """Gathers rows of several arrays, or affine maps of them.

    Args:
      leaves: For each leaf the object that gathers its rows.
      note: Function that is called with the rows that were read.
      stopwatches: Stopwatches that the time is added to.
    """

    def __init__(
        self,
        leaves: list[LeafGather],
        note: Callable[[list[np.ndarray]], None],
        stopwatches: tuple[Stopwatch, ...] = (),
    ) -> None:
        self.leaves, self.note, self.stopwatches = leaves, note, stopwatches

    @classmethod
    def join(cls, parts: list[BatchedGather], order: list[int]) -> BatchedGather:
        """Combine the leaves of several gathers in an order.

        Args:
          parts: The gathers.
          order: For each leaf its index among the leaves of all parts.
        """
        leaves = [leaf for part in parts for leaf in part.leaves]

        def note(rows: list[np.ndarray]) -> None:
            for part in parts:
                part.note(rows)

        stopwatches = itertools.chain.from_iterable(part.stopwatches for part in parts)
        return cls([leaves[i] for i in order], note, tuple(stopwatches))

    @property
    def can_start(self) -> bool:
        """Return whether another thread can gather rows that `start` requests."""
        return all(leaf.can_start for leaf in self.leaves)

    def with_stopwatch(self, stopwatch: Stopwatch) -> BatchedGather:
        """Return the same gather with a further stopwatch."""
        return BatchedGather(self.leaves, self.note, (*self.stopwatches, stopwatch))

    def __call__(self, index: np.ndarray) -> list[np.ndarray]:
        """Return the rows of all leaves."""
        start = time.perf_counter()
        rows = [leaf(index) for leaf in self.leaves]
        self._record(start, len(index), rows)
        return rows

    def start(self, index: np.ndarray) -> StartedGather:
        """Start to gather rows; `finish` returns them."""
        return [leaf.start(index) for leaf in self.leaves]

    def finish(self, started: StartedGather) -> list[np.ndarray]:
        """Wait for the rows of all leaves."""
        start = time.perf_counter()
        rows = [result() for result in started]
        self._record(start, len(rows[0]), rows)
        return rows

    def _record(self, start: float, count: int, rows: list[np.ndarray]) -> None:
        """Report the rows that were read, and add the time to the stopwatches that are not running."""
        self.note(rows)
        seconds = time.perf_counter() - start
        for stopwatch in self.stopwatches:
            if not stopwatch.running:
                stopwatch.elements += count
                stopwatch.seconds += seconds


def join_gathers(gathers: list[Gather], order: list[int]) -> Gather:
    """Return a function that gathers the leaves of several functions.

    Args:
      gathers: The functions.
      order: For each leaf its index among the leaves of all functions.
    """
    batched_gathers = [gather for gather in gathers if isinstance(gather, BatchedGather)]
    if len(batched_gathers) == len(gathers):
        return BatchedGather.join(batched_gathers, order)

    def gather(index: np.ndarray) -> list[Any]:
        leaves = [leaf for part in gathers for leaf in part(index)]
        return [leaves[i] for i in order]

    return gather
