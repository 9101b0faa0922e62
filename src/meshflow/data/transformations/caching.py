"""Transformations that cache, prefetch or count elements, or skip failures."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Iterator
from typing import Any

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, IntLike, integer
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, ahead
from meshflow.data.execution import chunks
from meshflow.data.execution.resumable import Failed, Raising, caught
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.static_shapes import StaticShapes
from meshflow.data.storage.element_files import ElementWriter, read_elements
from meshflow.data.transformations.base import ElementList, Stacked, Unary
from meshflow.files import gfile
from meshflow.files.replacing import replacing


class Cache(Unary):
    """A cache of the elements of the first complete pass, in memory or in a file.

    Args:
      parent: The dataset.
      filename: Name of the file without its suffix; an empty name means memory.
    """

    def __init__(self, parent: DatasetNode, filename: str) -> None:
        super().__init__(parent)
        self._name = filename
        self._file = f"{filename}.meshflow" if filename else None
        self._kept: Dataset | None = None

    def _forget(self, suffix: str) -> None:
        """Empty the cache, and use another file, for a shard of the data.

        Args:
          suffix: Suffix of the file name.
        """
        self._kept = None
        if self._file is not None:
            self._name = f"{self._name}.{suffix}"
            self._file = f"{self._name}.meshflow"

    def _static_shapes(self) -> StaticShapes | None:
        return self._parent._static_shapes()

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        return Raising(self._items(epoch)) if rows is None else rows

    def _vector(self, epoch: Epoch) -> IndexStream | None:
        return None if self._kept is None else self._kept._vector(epoch)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if self._file is not None or self._kept is not None:
            return None
        if not chunks.stackable(self.element_spec):
            return None
        parent = self._parent._in_chunks(epoch)
        return None if parent is None else self._keep(parent)

    def _items(self, epoch: Epoch) -> Iterator[Any]:
        if self._kept is not None:
            yield from self._kept._elements(epoch)
        elif self._file is not None and gfile.exists(self._file):
            yield from read_elements(self._file, self.element_spec)
        elif self._file is not None:
            yield from self._write(caught(self._parent._elements(epoch)))
        elif chunks.stackable(self.element_spec):
            # The cache holds stacked arrays, so that later passes can access elements by index.
            elements = chunks.singles(caught(self._parent._elements(epoch)))
            yield from chunks.rows(self._keep(elements), self.element_spec)
        else:
            yield from self._keep_elements(caught(self._parent._elements(epoch)))

    def _keep_elements(self, items: Iterator[Any]) -> Iterator[Any]:
        elements, is_complete = [], True
        for item in items:
            elements.append(item)
            is_complete = is_complete and type(item) is not Failed
            yield item
        if is_complete:
            self._kept = ElementList(elements, self.element_spec)

    def _keep(self, parts: Iterator[Any]) -> Iterator[Any]:
        cached_chunks, is_complete = [], True
        for chunk in parts:
            cached_chunks.append(chunk)
            is_complete = is_complete and type(chunk) is not Failed
            yield chunk
        if is_complete and cached_chunks:
            self._kept = Stacked(cached_chunks, self.element_spec)

    def _write(self, items: Iterator[Any]) -> Iterator[Any]:
        assert self._file is not None
        with contextlib.suppress(_HasHoleError), replacing(self._file) as file:
            writer = ElementWriter(file, self.element_spec)
            is_complete = True
            for item in items:
                if type(item) is Failed:
                    is_complete = False
                else:
                    writer.write(item)
                yield item
            writer.finish()
            if not is_complete:
                raise _HasHoleError


class _HasHoleError(Exception):
    """Signals that an element is missing, so that the file is discarded."""


class Prefetch(Unary):
    """Elements that a background thread produces before they are requested.

    Args:
      parent: The dataset.
      buffer_size: Number of elements to produce ahead; None or -1 means two, 0 disables
        prefetching.
    """

    _apart = True

    def __init__(self, parent: DatasetNode, buffer_size: IntLike | None) -> None:
        super().__init__(parent)
        size = 2 if buffer_size is None else integer(buffer_size, "buffer_size")
        if size < -1:
            raise InvalidArgumentError(
                f"buffer_size must be >= 0, or -1 for auto-tuning, got {size}."
            )
        self._size = 2 if size < 0 else size

    def _static_shapes(self) -> StaticShapes | None:
        return self._parent._static_shapes()

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        elements = self._parent._elements(epoch)
        return elements if self._size == 0 else ahead(elements, self._size)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self._parent._in_chunks(epoch)
        return parent if parent is None or self._size == 0 else ahead(parent, 1)

    def _vector(self, epoch: Epoch) -> IndexStream | None:
        return self._parent._vector(epoch)


class AssertCardinality(Unary):
    """A dataset that checks its number of elements.

    Args:
      parent: The dataset.
      expected: Number of elements, or INFINITE_CARDINALITY or UNKNOWN_CARDINALITY.
    """

    def __init__(self, parent: DatasetNode, expected: IntLike) -> None:
        super().__init__(parent)
        self._expected = integer(expected, "expected_cardinality")

    def _count(self) -> int:
        return self._expected

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return Raising(self._counted(caught(self._parent._elements(epoch))))

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for item in items:
            count += type(item) is not Failed
            if 0 <= self._expected < count:
                raise _unexpected(self._expected, f"at least {count}")
            yield item
        if count != self._expected and self._expected >= INFINITE_CARDINALITY:
            raise _unexpected(self._expected, str(count))


def _unexpected(expected: int, actual: str) -> Exception:
    return FailedPreconditionError(
        f"Input dataset was expected to contain {expected} elements but contained {actual} elements."
    )


class IgnoreErrors(Unary):
    """The elements without those that raise an error when they are computed.

    Args:
      parent: The dataset.
      log_warning: Whether to log a warning for each failed element.
    """

    def __init__(self, parent: DatasetNode, log_warning: bool) -> None:
        super().__init__(parent)
        self._warn = log_warning

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        rows = self._rows(epoch)
        return Raising(self._left(caught(self._parent._elements(epoch)))) if rows is None else rows

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self._parent._in_chunks(epoch)
        return None if parent is None else self._left(parent)

    def _left(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            if type(item) is Failed:
                _report(item.error, self._warn)
            else:
                yield item


def _report(error: BaseException, warn: bool) -> None:
    if warn:
        logging.getLogger("meshflow").warning("Skipping an element that failed: %s", error)
