"""Errors in a pass over a dataset: they do not end it, and the next element comes after them.

Python's generators end with an error. Where a transformation keeps nothing from element to element,
its generator is begun again on the same input (`Resuming`). Where it does, failures travel through it
as items (`caught`) and are raised behind it (`Raising`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple


class Failed(NamedTuple):
    """An error in the place of an element."""

    error: BaseException


class ClosingIterator(Generator[Any, None, None]):
    """An iterator with `close`, which also closes what it takes its items from."""

    def __init__(self, *inputs: Iterator[Any]) -> None:
        self._inputs = inputs

    def go_ahead(self, size: int) -> bool:
        """Asks it to begin so many items before they are asked for; whether it does, without a thread."""
        return False

    def send(self, value: Any) -> Any:
        return self.__next__()

    def throw(self, *error: Any) -> Any:
        for source in self._inputs:
            close(source)
        return super().throw(*error)


class Resuming(ClosingIterator):
    """What a generator gives, begun again after an error.

    Args:
      body: makes the generator, which takes its items from the inputs.
      *inputs: iterators; they outlive an error and are closed with this one.
    """

    def __init__(self, body: Callable[[], Iterator[Any]], *inputs: Iterator[Any]) -> None:
        super().__init__(*inputs)
        self._body = body
        self._now: Iterator[Any] | None = body()

    def __next__(self) -> Any:
        if self._now is None:
            self._now = self._body()
        try:
            return next(self._now)
        except StopIteration:
            raise
        except Exception:
            self._now = None
            raise

    def throw(self, *error: Any) -> Any:
        close(self._now)
        self._now = iter(())
        return super().throw(*error)


class Raising(ClosingIterator):
    """Items, with failures among them raised.

    Args:
      items: an iterator.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        super().__init__(items)
        self._items = items

    def __next__(self) -> Any:
        item = next(self._items)
        if type(item) is Failed:
            raise item.error
        return item


def caught(elements: Iterator[Any]) -> Iterator[Any]:
    """Elements, with a failure in the place of each error."""
    try:
        while True:
            try:
                element = next(elements)
            except StopIteration:
                return
            except Exception as error:
                element = Failed(error)
            yield element
    finally:
        close(elements)


def close(iterator: Any) -> None:
    """Closes an iterator that can be."""
    if hasattr(iterator, "close"):
        iterator.close()
