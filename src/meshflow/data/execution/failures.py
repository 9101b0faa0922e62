"""Errors in a pass over a dataset, after which the pass continues with the next element.

A Python generator ends with an error. If a transformation keeps no state between elements, its
generator is restarted on the same input (`ResumingIterator`). Otherwise errors travel through the
transformation as items (`catch_failures`) and are raised at its output (`RaisingIterator`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from meshflow.environment.types import PyTree


class Failure(NamedTuple):
    """An error in place of an element.

    Attributes:
      error: The error.
    """

    error: BaseException


class ClosingIterator(Generator[Any, None, None]):
    """An iterator with a `close` method that also closes its inputs.

    Args:
      *inputs: The inputs.
    """

    def __init__(self, *inputs: Iterator[Any]) -> None:
        self._inputs = inputs

    def start_prefetching(self, size: int) -> bool:
        """Let the iterator produce items in advance without a further thread.

        Args:
          size: Number of items to produce in advance.

        Returns:
          Whether the iterator does so.
        """
        return False

    def send(self, value: object) -> Any:
        """Return the next item; the sent value is ignored."""
        return self.__next__()

    def throw(self, *error: Any) -> Any:
        """Close the inputs, then raise the error."""
        for source in self._inputs:
            close_iterator(source)
        return super().throw(*error)


class ResumingIterator(ClosingIterator):
    """Iterates over a generator, and restarts it after an error.

    Args:
      body: Function that creates the generator, which reads from the inputs.
      *inputs: Iterators that survive an error, and are closed together with this one.
    """

    def __init__(self, body: Callable[[], Iterator[Any]], *inputs: Iterator[Any]) -> None:
        super().__init__(*inputs)
        self._body = body
        self._generator: Iterator[Any] | None = body()

    def __next__(self) -> PyTree:
        if self._generator is None:
            self._generator = self._body()
        try:
            return next(self._generator)
        except StopIteration:
            raise
        except Exception:
            self._generator = None
            raise

    def throw(self, *error: Any) -> Any:
        """Close the generator and the inputs, then raise the error; no further item follows."""
        close_iterator(self._generator)
        self._generator = iter(())
        return super().throw(*error)


class RaisingIterator(ClosingIterator):
    """Iterates over items, and raises the failures among them.

    Args:
      items: Items and failures.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        super().__init__(items)
        self._items = items

    def __next__(self) -> PyTree:
        item = next(self._items)
        if type(item) is Failure:
            raise item.error
        return item


def catch_failures(elements: Iterator[Any]) -> Iterator[Any]:
    """Iterate over elements, with a failure in place of each error."""
    try:
        while True:
            try:
                element = next(elements)
            except StopIteration:
                return
            except Exception as error:
                element = Failure(error)
            yield element
    finally:
        close_iterator(elements)


def close_iterator(iterator: object) -> None:
    """Close an iterator if it has a `close` method."""
    if hasattr(iterator, "close"):
        iterator.close()
