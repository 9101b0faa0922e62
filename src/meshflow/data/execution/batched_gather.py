"""BatchedGather of arrays gathered for batches, and begun before they are asked for."""

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

# From an array of indices to the stacked leaves of their elements.
Gather = Callable[[np.ndarray], list[Any]]
Begun = list[Callable[[], np.ndarray]]
# Bytes that are worth being handed to another thread.
_AHEAD = 1 << 15


class LeafGather:
    """Takes some rows of an array, or what affine steps make of them.

    Args:
      array: all rows.
      steps: what is done after a cast to float32, `row_gather.Step`; None for the rows as they are.
      shape: that of a result; None for a row's own.
    """

    def __init__(
        self,
        array: np.ndarray,
        steps: tuple[Any, ...] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self._array, self._objects = array, array.dtype.hasobject
        self._rows = kernels.Rows(array, steps)
        self._shape: tuple[int, ...] = self._rows.shape if shape is None else shape

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Some rows; the array itself may be a part of them.

        Args:
          index: int64, their numbers.
        """
        if self._objects:
            return self._array[index].reshape(len(index), *self._shape)
        if self._is_part(index):
            part = np.asarray(self._array[index[0] : index[-1] + 1])
            return part.reshape(len(index), *self._shape)
        found, address = transfers.filled_at((len(index), *self._shape), self._rows.dtype)
        return self._rows.take(index, found, address)

    @property
    def begins(self) -> bool:
        """Whether another thread takes what is begun."""
        return self._rows.begins

    def _is_part(self, index: np.ndarray) -> bool:
        """Whether the rows follow each other in the array, and nothing is computed of them."""
        if self._rows.steps is not None:
            return False
        first, last = int(index[0]), int(index[-1])
        return last - first == len(index) - 1 and bool((np.diff(index) == 1).all())

    def begin(self, index: np.ndarray) -> Callable[[], np.ndarray]:
        """Has some rows taken while others are used.

        Returns:
          A function that gives them, to be called once.
        """
        if self._objects or self._is_part(index):
            return functools.partial(self, index)
        found, address = transfers.filled_at((len(index), *self._shape), self._rows.dtype)
        begun = self._rows.begin(index, found, address) if found.nbytes >= _AHEAD else None
        if begun is not None:
            return begun.result
        self._rows.take(index, found, address)
        return lambda: found

    def all(self) -> np.ndarray:
        """All rows."""
        if self._rows.steps is None:
            return self._array.reshape(-1, *self._shape)
        return self(np.arange(len(self._array)))


class BatchedGather:
    """Gathers rows of arrays, as they are or computed on.

    Args:
      leaves: for each leaf what takes its rows.
      note: told what was read.
      stopwatches: to what the time it takes is added.
    """

    def __init__(
        self,
        leaves: list[LeafGather],
        note: Callable[[list[np.ndarray]], None],
        stopwatches: tuple[Stopwatch, ...] = (),
    ) -> None:
        self._leaves, self._note, self._stopwatches = leaves, note, stopwatches

    @classmethod
    def joined(cls, parts: list[BatchedGather], order: list[int]) -> BatchedGather:
        """All of several, with the leaves in an order."""
        leaves = [leaf for part in parts for leaf in part._leaves]

        def note(found: list[np.ndarray]) -> None:
            for part in parts:
                part._note(found)

        stopwatches = itertools.chain.from_iterable(part._stopwatches for part in parts)
        return cls([leaves[i] for i in order], note, tuple(stopwatches))

    @property
    def begins(self) -> bool:
        """Whether another thread takes what is begun."""
        return all(leaf.begins for leaf in self._leaves)

    def timed(self, stopwatch: Stopwatch) -> BatchedGather:
        """The same, which adds its time there too."""
        return BatchedGather(self._leaves, self._note, (*self._stopwatches, stopwatch))

    def __call__(self, index: np.ndarray) -> list[np.ndarray]:
        """The rows of all leaves."""
        start = time.perf_counter()
        found = [leaf(index) for leaf in self._leaves]
        self._end(start, len(index), found)
        return found

    def begin(self, index: np.ndarray) -> Begun:
        """What `finish` makes of it, while others are used."""
        return [leaf.begin(index) for leaf in self._leaves]

    def finish(self, begun: Begun) -> list[np.ndarray]:
        """The rows of all leaves."""
        start = time.perf_counter()
        found = [result() for result in begun]
        self._end(start, len(found[0]), found)
        return found

    def _end(self, start: float, count: int, found: list[np.ndarray]) -> None:
        self._note(found)
        seconds = time.perf_counter() - start
        for stopwatch in self._stopwatches:
            if not stopwatch.running:
                stopwatch.elements += count
                stopwatch.seconds += seconds


def joined(gathers: list[Gather], order: list[int]) -> Gather:
    """A function that gathers the leaves of several.

    Args:
      gathers: the functions.
      order: the number of each leaf among all of theirs.
    """
    rows = [gather for gather in gathers if isinstance(gather, BatchedGather)]
    if len(rows) == len(gathers):
        return BatchedGather.joined(rows, order)

    def gather(index: np.ndarray) -> list[Any]:
        leaves = [leaf for part in gathers for leaf in part(index)]
        return [leaves[i] for i in order]

    return gather
