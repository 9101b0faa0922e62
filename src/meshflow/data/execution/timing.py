"""Where the time of a pipeline goes: what every transformation spends, for `explain`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.data.execution.batched_gather import BatchedGather, Gather
from meshflow.data.execution.resumable import ClosingIterator, Failed
from meshflow.data.execution.stopwatch import Stopwatch


def timed_gather(gather: Gather, stopwatch: Stopwatch) -> Gather:
    """A function that gathers elements, with its time added.

    Args:
      gather: the function.
      stopwatch: to what it is added.
    """
    if isinstance(gather, BatchedGather):
        return gather.timed(stopwatch)

    def timed(index: np.ndarray) -> list[Any]:
        if stopwatch.running:
            return gather(index)
        stopwatch.elements += len(index)
        return stopwatch.call(gather, index)

    return timed


class Timed(ClosingIterator):
    """An iterator's items, with the time that each takes added.

    Args:
      items: the iterator.
      stopwatch: to what it is added.
      counts: whether the items are elements.
    """

    def __init__(self, items: Iterator[Any], stopwatch: Stopwatch, counts: bool) -> None:
        super().__init__(items)
        self._items, self._stopwatch, self._counts = items, stopwatch, counts

    def go_ahead(self, size: int) -> bool:
        """As the iterator does."""
        return isinstance(self._items, ClosingIterator) and self._items.go_ahead(size)

    def __next__(self) -> Any:
        # `Stopwatch.call`, written out: it is called for every element.
        stopwatch = self._stopwatch
        if stopwatch.running:
            item = next(self._items)
        else:
            stopwatch.running = True
            start = time.perf_counter()
            try:
                item = next(self._items)
            finally:
                stopwatch.seconds += time.perf_counter() - start
                stopwatch.running = False
        stopwatch.elements += self._counts
        return item


class TimedChunks(Timed):
    """As `Timed`, for chunks of elements."""

    def __init__(self, items: Iterator[Any], stopwatch: Stopwatch) -> None:
        super().__init__(items, stopwatch, False)

    def __next__(self) -> Any:
        stopwatch = self._stopwatch
        counted_elsewhere = stopwatch.running
        item = super().__next__()
        if not counted_elsewhere:
            stopwatch.elements += 1 if type(item) is Failed else len(item[0])
        return item


def timed(cls: type) -> None:
    """Makes a class of datasets take the time of its `_elements`, `_by_chunks` and `_vector`."""
    own = cls.__dict__
    if "_elements" in own:
        cls._elements = _timed_elements(own["_elements"])  # type: ignore[attr-defined]
    if "_by_chunks" in own:
        cls._by_chunks = _timed_chunks(own["_by_chunks"])  # type: ignore[attr-defined]
    if "_vector" in own:
        cls._vector = _timed_vector(own["_vector"])  # type: ignore[attr-defined]


def _timed_elements(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def elements(self: Any, epoch: Any) -> Iterator[Any]:
        iterator = fn(self, epoch)
        # A subclass that calls this takes the time itself.
        if not epoch.counts or type(self)._elements is not elements:
            return iterator
        return Timed(iterator, self._stopwatch, True)

    return elements


def _timed_chunks(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def chunks(self: Any, epoch: Any) -> Any:
        found = fn(self, epoch)
        if found is None or not epoch.counts:
            return found
        return TimedChunks(found, self._stopwatch)

    return chunks


def _timed_vector(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def vector(self: Any, epoch: Any) -> Any:
        found = fn(self, epoch)
        if found is None or not epoch.counts or type(self)._vector is not vector:
            return found
        stopwatch = self._stopwatch
        mapped = found.mapped
        return found._replace(
            gather=timed_gather(found.gather, stopwatch),
            blocks=Timed(found.blocks, stopwatch, False),
            mapped=mapped and (lambda wanted: timed_gather(mapped(wanted), stopwatch)),
        )

    return vector
