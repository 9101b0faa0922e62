"""Measurement of the time that each transformation of a pipeline takes, for `explain`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from meshflow.data.execution.batched_gather import BatchedGather, Gather
from meshflow.data.execution.failures import ClosingIterator, Failure
from meshflow.data.execution.stopwatch import Stopwatch
from meshflow.environment.types import PyTree


class MeasuredPass(Protocol):
    """A pass over a dataset."""

    measures_time: bool


class MeasuredNode(Protocol):
    """A dataset with a stopwatch."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch of all passes over the dataset."""


def time_gather(gather: Gather, stopwatch: Stopwatch) -> Gather:
    """Wrap a function that gathers elements, such that its time is added to a stopwatch.

    Args:
      gather: The function.
      stopwatch: The stopwatch.
    """
    if isinstance(gather, BatchedGather):
        return gather.with_stopwatch(stopwatch)

    def gather_timed(index: np.ndarray) -> list[Any]:
        if stopwatch.running:
            return gather(index)
        stopwatch.elements += len(index)
        return stopwatch.call(gather, index)

    return gather_timed


class TimedIterator(ClosingIterator):
    """Iterates over items, and adds the time that they take to a stopwatch.

    Args:
      items: The items.
      stopwatch: The stopwatch.
      count_items: Whether the items are elements, which the stopwatch counts.
    """

    def __init__(self, items: Iterator[Any], stopwatch: Stopwatch, count_items: bool) -> None:
        super().__init__(items)
        self._items, self.stopwatch, self._counts_items = items, stopwatch, count_items

    def start_prefetching(self, size: int) -> bool:
        """Forward the request to the items.

        Args:
          size: Number of items to produce in advance.

        Returns:
          Whether the items are produced in advance.
        """
        return isinstance(self._items, ClosingIterator) and self._items.start_prefetching(size)

    def __next__(self) -> PyTree:
        # This is `Stopwatch.call`, inlined because it runs for every element.
        stopwatch = self.stopwatch
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
        stopwatch.elements += self._counts_items
        return item


class TimedChunkIterator(TimedIterator):
    """Iterates over chunks like `TimedIterator`, and counts their elements.

    Args:
      items: The chunks and failures.
      stopwatch: The stopwatch.
    """

    def __init__(self, items: Iterator[Any], stopwatch: Stopwatch) -> None:
        super().__init__(items, stopwatch, False)

    def __next__(self) -> PyTree:
        stopwatch = self.stopwatch
        is_counted = stopwatch.running
        item = super().__next__()
        if not is_counted:
            stopwatch.elements += 1 if type(item) is Failure else len(item[0])
        return item


def install_timing(cls: type) -> None:
    """Make a class of datasets measure the time of its elements, chunks and index streams."""
    methods = cls.__dict__
    for name, wrap in _WRAPPERS.items():
        if name in methods:
            setattr(cls, name, wrap(methods[name]))


def _time_elements(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def timed_method(self: MeasuredNode, epoch: MeasuredPass) -> Iterator[Any]:
        iterator = fn(self, epoch)
        # If a method of a subclass calls this one, the method of the subclass measures the time.
        if not epoch.measures_time or getattr(type(self), fn.__name__) is not timed_method:
            return iterator
        return TimedIterator(iterator, self.stopwatch, True)

    return timed_method


def _time_chunks(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def timed_method(self: MeasuredNode, epoch: MeasuredPass) -> Iterator[Any] | None:
        stream = fn(self, epoch)
        if stream is None or not epoch.measures_time:
            return stream
        return TimedChunkIterator(stream, self.stopwatch)

    return timed_method


def _time_index_stream(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def timed_method(self: MeasuredNode, epoch: MeasuredPass) -> Any:
        stream = fn(self, epoch)
        is_outermost = getattr(type(self), fn.__name__) is timed_method
        if stream is None or not epoch.measures_time or not is_outermost:
            return stream
        stopwatch = self.stopwatch
        gather_affine = stream.gather_affine
        return stream._replace(
            gather=time_gather(stream.gather, stopwatch),
            blocks=TimedIterator(stream.blocks, stopwatch, False),
            gather_affine=gather_affine
            and (lambda affine_maps: time_gather(gather_affine(affine_maps), stopwatch)),
        )

    return timed_method


# The methods of `DatasetNode` that are measured.
_WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "iter_elements": _time_elements,
    "_iter_chunks": _time_chunks,
    "vectorize": _time_index_stream,
}
