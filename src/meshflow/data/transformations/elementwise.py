"""A function of every element: `map`, `filter`, `scan` and their like."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core import dtypes
from meshflow.core.random import element_keys
from meshflow.core.specs import TensorSpec
from meshflow.data import sources, structure
from meshflow.data.dataset import (
    UNKNOWN_CARDINALITY,
    Dataset,
    Vector,
    integer,
)
from meshflow.data.functions import ElementFunction, randomness, same_randomness
from meshflow.data.running import Run, in_threads
from meshflow.data.sources import seed_of
from meshflow.data.transformations.base import Unary

# Records that are parsed at once.
_RECORDS = 64


class Map(Unary):
    """A function of every element.

    Args:
      parent: the dataset.
      fn: the function.
      calls: how many threads may run it where it is not compiled; -1 for one per processor.
    """

    reshuffles = True

    def __init__(self, parent: Dataset, fn: Callable[..., Any], calls: Any = None) -> None:
        super().__init__(parent)
        self.function = ElementFunction(fn, parent.element_spec, "map")
        threads = 1 if calls is None else integer(calls, "num_parallel_calls")
        self._threads = (os.cpu_count() or 1) if threads < 0 else threads
        self._parallel = calls is not None and threads != 1
        self._words: list[int] | None = None
        self.epoch = 0

    def _known_spec(self) -> Any:
        return self.function.output_spec

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self.function.vectorizes and self._parent._vector(Run(self._parent)) is not None:
            yield from super()._elements(run)
            return
        parent = self._parent._elements(run)
        if self.function.parsing is not None:
            size = 1 if _is_live(self._parent) else _RECORDS
            for texts, error in _chunks(parent, size):
                if texts:
                    yield from self.function.records(texts, size)
                if error is not None:
                    raise error
            return
        if self._parallel and self.function.runs_eagerly and not self.function.holds_variables:
            yield from self._in_threads(parent, run)
            return
        for element in parent:
            yield self.function(element)

    def _in_threads(self, parent: Iterator[Any], run: Run) -> Iterator[Any]:
        words: list[int] = []
        lock = threading.Lock()

        def pass_words() -> list[int]:
            # Drawn when a random op first needs them; most functions do not.
            with lock:
                if not words:
                    words.extend(run.generator(self).integers(1 << 32, size=2).tolist())
            return words

        def computed(numbered: tuple[int, Any]) -> Any:
            # Random ops draw by an element's number, whichever thread comes first.
            with element_keys(lambda: [*pass_words(), numbered[0]]):
                return self.function(numbered[1])

        elements = enumerate(parent)
        before = randomness()
        for numbered in itertools.islice(elements, 1):
            yield computed(numbered)
        try:
            if same_randomness(before, randomness()):
                yield from in_threads(computed, elements, self._threads)
            else:
                # Python's and NumPy's numbers are drawn in the elements' order.
                yield from map(computed, elements)
        finally:
            if hasattr(parent, "close"):
                parent.close()

    def seed(self) -> list[int]:
        """The words of the seed."""
        if self._words is None:
            self._words = seed_of(None)
        return self._words

    def _vector(self, run: Run) -> Vector | None:
        parent = self._parent._vector(run) if self.function.vectorizes else None
        if parent is None:
            return None
        return parent._replace(gather=lambda i: self.function.many(parent.gather(i)))

    def _why_not_vectorized(self) -> str:
        if self.function.parsing is not None:
            return "it parses records, then vectorized"
        reason = self.function.reason or super()._why_not_vectorized()
        many = self._parallel and self.function.runs_eagerly
        return f"{reason}; in {self._threads} threads" if many else reason


def _is_live(dataset: Dataset) -> bool:
    """Whether elements may come in slowly, so that none is waited for while another is there."""
    return isinstance(dataset, sources.Generator) or any(map(_is_live, dataset._parents))


def _chunks(elements: Iterator[Any], size: int) -> Iterator[tuple[list[Any], BaseException | None]]:
    """Several elements at a time, with the error that ended them."""
    while True:
        chunk: list[Any] = []
        try:
            for element in itertools.islice(elements, size):
                chunk.append(element)
        except Exception as error:
            yield chunk, error
            return
        if not chunk:
            return
        yield chunk, None


class HostMap(Unary):
    """A function of NumPy arrays, of every element, by several threads; the order is kept.

    Args:
      parent: the dataset.
      fn: from an element of arrays to one of arrays.
      spec: the spec of its results.
      workers: how many threads; default as many as there are processors.
    """

    def __init__(
        self, parent: Dataset, fn: Callable[[Any], Any], spec: Any, workers: int | None = None
    ) -> None:
        super().__init__(parent)
        self._fn, self._own_spec = fn, spec
        self._workers = os.cpu_count() or 1 if workers is None else workers

    def _known_spec(self) -> Any:
        return self._own_spec

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        return in_threads(self._fn, self._parent._elements(run), self._workers)

    def _why_not_vectorized(self) -> str:
        return f"it calls Python, in {self._workers} threads"


class Filter(Unary):
    """The elements for which a function is true."""

    def __init__(self, parent: Dataset, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "filter")

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            if bool(self._predicate(element)):
                yield element


class TakeWhile(Unary):
    """Elements up to the first for which a function is false."""

    def __init__(self, parent: Dataset, predicate: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._predicate = ElementFunction(predicate, parent.element_spec, "take_while")

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            if not bool(self._predicate(element)):
                return
            yield element


class Scan(Unary):
    """A function of state and element."""

    def __init__(self, parent: Dataset, initial_state: Any, fn: Callable[..., Any]) -> None:
        super().__init__(parent)
        self._state = structure.to_arrays(initial_state)
        spec = structure.spec_of(self._state), parent.element_spec
        self._function = ElementFunction(fn, spec, "scan")

    def _known_spec(self) -> Any:
        found = self._function.output_spec
        return None if found is None else found[1]

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        state = self._state
        for element in self._parent._elements(run):
            state, result = self._function((state, element))
            yield result


class Enumerate(Unary):
    """Elements with their numbers."""

    def __init__(self, parent: Dataset, start: Any) -> None:
        super().__init__(parent)
        self._start = integer(start, "start")

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.int64), self._parent.element_spec

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for number, element in enumerate(self._parent._elements(run), self._start):
            yield np.asarray(np.int64(number)), element
