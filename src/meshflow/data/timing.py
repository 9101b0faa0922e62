"""Where the time of a pipeline goes: what every transformation spends, for `explain`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.data.failures import Failed, Resuming

_END = object()


class Spent:
    """What a transformation, and all before it, spent in all passes so far.

    Attributes:
      elements: how many elements it gave.
      seconds: how long they took.
    """

    def __init__(self) -> None:
        self.elements = 0
        self.seconds = 0.0
        # Whether a clock runs for it already.
        self._running = False

    def call(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function, with its time added."""
        if self._running:
            return fn(*arguments)
        self._running = True
        start = time.perf_counter()
        try:
            return fn(*arguments)
        finally:
            self.seconds += time.perf_counter() - start
            self._running = False

    def iterate(self, iterator: Iterator[Any], count: Callable[[Any], int] | None) -> Iterator[Any]:
        """An iterator's items, with the time that each takes added.

        Args:
          iterator: the iterator.
          count: how many elements an item has; None where elements are counted elsewhere.
        """
        following = functools.partial(next, iterator, _END)

        def items() -> Iterator[Any]:
            while (item := self.call(following)) is not _END:
                if count is not None and not self._running:
                    self.elements += count(item)
                yield item

        return Resuming(items, iterator)

    def gather(self, gather: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A function that gathers elements, with its time added."""

        def timed(index: np.ndarray, *wanted: Any) -> list[Any]:
            if not self._running:
                self.elements += len(index)
            return self.call(gather, index, *wanted)

        return timed


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
        return self._spent.iterate(iterator, _one)

    return elements


def _one(_: Any) -> int:
    return 1


def _of_chunk(chunk: Any) -> int:
    return 1 if type(chunk) is Failed else len(chunk[0])


def _timed_chunks(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def chunks(self: Any, run: Any) -> Any:
        found = fn(self, run)
        if found is None or not run.counts:
            return found
        return self._spent.iterate(found, _of_chunk)

    return chunks


def _timed_vector(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def vector(self: Any, run: Any) -> Any:
        found = fn(self, run)
        if found is None or not run.counts or type(self)._vector is not vector:
            return found
        spent = self._spent
        return found._replace(
            gather=spent.gather(found.gather), blocks=spent.iterate(found.blocks, None)
        )

    return vector
