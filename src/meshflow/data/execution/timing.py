"""Where the time of a pipeline goes: what every transformation spends, for `explain`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.data.execution.batched_gather import Gather, Rows
from meshflow.data.execution.resumable import Failed, Pass


class Spent:
    """What a transformation, and all before it, spent in all passes so far.

    Attributes:
      elements: how many elements it gave.
      seconds: how long they took.
      running: whether a clock runs for it.
    """

    def __init__(self) -> None:
        self.elements = 0
        self.seconds = 0.0
        self.running = False

    def call(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function, with its time added."""
        if self.running:
            return fn(*arguments)
        self.running = True
        start = time.perf_counter()
        try:
            return fn(*arguments)
        finally:
            self.seconds += time.perf_counter() - start
            self.running = False

    def gather(self, gather: Gather) -> Gather:
        """A function that gathers elements, with its time added."""
        if isinstance(gather, Rows):
            return gather.timed(self)

        def timed(index: np.ndarray) -> list[Any]:
            if self.running:
                return gather(index)
            self.elements += len(index)
            return self.call(gather, index)

        return timed


class Timed(Pass):
    """An iterator's items, with the time that each takes added.

    Args:
      items: the iterator.
      spent: to what it is added.
      counts: whether the items are elements.
    """

    def __init__(self, items: Iterator[Any], spent: Spent, counts: bool) -> None:
        super().__init__(items)
        self._items, self._spent, self._counts = items, spent, counts

    def go_ahead(self, size: int) -> bool:
        """As the iterator does."""
        return isinstance(self._items, Pass) and self._items.go_ahead(size)

    def __next__(self) -> Any:
        # `Spent.call`, written out: it is called for every element.
        spent = self._spent
        if spent.running:
            item = next(self._items)
        else:
            spent.running = True
            start = time.perf_counter()
            try:
                item = next(self._items)
            finally:
                spent.seconds += time.perf_counter() - start
                spent.running = False
        spent.elements += self._counts
        return item


class TimedChunks(Timed):
    """As `Timed`, for chunks of elements."""

    def __init__(self, items: Iterator[Any], spent: Spent) -> None:
        super().__init__(items, spent, False)

    def __next__(self) -> Any:
        spent = self._spent
        counted_elsewhere = spent.running
        item = super().__next__()
        if not counted_elsewhere:
            spent.elements += 1 if type(item) is Failed else len(item[0])
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
    def elements(self: Any, run: Any) -> Iterator[Any]:
        iterator = fn(self, run)
        # A subclass that calls this takes the time itself.
        if not run.counts or type(self)._elements is not elements:
            return iterator
        return Timed(iterator, self._spent, True)

    return elements


def _timed_chunks(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def chunks(self: Any, run: Any) -> Any:
        found = fn(self, run)
        if found is None or not run.counts:
            return found
        return TimedChunks(found, self._spent)

    return chunks


def _timed_vector(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def vector(self: Any, run: Any) -> Any:
        found = fn(self, run)
        if found is None or not run.counts or type(self)._vector is not vector:
            return found
        spent = self._spent
        chained = found.chained
        return found._replace(
            gather=spent.gather(found.gather),
            blocks=Timed(found.blocks, spent, False),
            chained=chained and (lambda wanted: spent.gather(chained(wanted))),
        )

    return vector
