"""Transformations that cache, prefetch or count elements, or skip failures."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, IntLike, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, iter_nodes, prefetch
from meshflow.data.execution import chunks
from meshflow.data.execution.failures import Failure, RaisingIterator, catch_failures
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.static_shapes import StaticShapes
from meshflow.data.storage.element_files import ElementWriter, read_chunks, read_elements
from meshflow.data.transformations.base import ChunkList, ElementList, Unary
from meshflow.environment.types import PyTree
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file


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
        self._cached: Dataset | None = None

    def record_part(self, part: slice) -> None:
        """Do nothing: the first pass determines the order of the elements of all passes."""

    def reset_for_shard(self, suffix: str) -> None:
        """Empty the cache, and use another file, for a shard of the data.

        Args:
          suffix: Suffix of the file name.
        """
        self._cached = None
        if self._file is not None:
            self._name = f"{self._name}.{suffix}"
            self._file = f"{self._name}.meshflow"

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the static shapes of the parent, which are also those of this dataset."""
        return self.parent.infer_static_shapes()

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the cached elements, or fill the cache during a complete pass."""
        rows = self._iter_rows(epoch)
        return RaisingIterator(self._iter_items(epoch)) if rows is None else rows

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the index stream of the cached elements, or None before the cache is complete."""
        return None if self._cached is None else self._cached.vectorize(epoch)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if self._cached is not None or not chunks.is_stackable(self.element_spec):
            return None
        if self._file is not None and gfile.exists(self._file):
            return _read_file_chunks(self._file, self.element_spec)
        parent = self.parent.iter_chunks(epoch)
        if parent is None:
            return None
        return self._cache_chunks(parent) if self._file is None else self._write_file(parent, True)

    def _iter_items(self, epoch: Epoch) -> Iterator[Any]:
        if self._cached is not None:
            yield from self._cached.iter_elements(epoch)
        elif self._file is not None and gfile.exists(self._file):
            yield from read_elements(self._file, self.element_spec)
        elif self._file is not None:
            yield from self._write_file(catch_failures(self.parent.iter_elements(epoch)))
        elif chunks.is_stackable(self.element_spec):
            # The cache holds stacked arrays, so that later passes can access elements by index.
            elements = chunks.wrap_elements(catch_failures(self.parent.iter_elements(epoch)))
            yield from chunks.unpack_chunks(self._cache_chunks(elements), self.element_spec)
        else:
            yield from self._cache_elements(catch_failures(self.parent.iter_elements(epoch)))

    def _count_reliably(self) -> int:
        """Return the number of elements of the parent, unless only the user has declared it."""
        is_declared = any(isinstance(node, AssertCardinality) for node in iter_nodes(self.parent))
        return UNKNOWN_CARDINALITY if is_declared else self.parent.count_elements()

    def _cache_elements(self, items: Iterator[Any]) -> Iterator[Any]:
        elements: list[Any] = []

        def finish() -> None:
            self._cached = ElementList(elements, self.element_spec)

        return self._fill(items, elements.append, finish)

    def _cache_chunks(self, parts: Iterator[Any]) -> Iterator[Any]:
        cached_chunks: list[Any] = []

        def finish() -> None:
            if cached_chunks:
                self._cached = ChunkList(cached_chunks, self.element_spec)

        return self._fill(parts, cached_chunks.append, finish, are_chunks=True)

    def _write_file(self, items: Iterator[Any], are_chunks: bool = False) -> Iterator[Any]:
        assert self._file is not None
        with contextlib.suppress(_IncompleteCacheError), contextlib.ExitStack() as files:
            writer = ElementWriter(files.enter_context(replace_file(self._file)), self.element_spec)

            def finish() -> None:
                writer.write_end()
                files.close()

            write = writer.write_chunk if are_chunks else writer.write
            yield from self._fill(items, write, finish, are_chunks)
            # Discard the file, unless `finish` has closed it.
            raise _IncompleteCacheError

    def _fill(
        self,
        items: Iterator[Any],
        add: Callable[[Any], object],
        finish: Callable[[], None],
        are_chunks: bool = False,
    ) -> Iterator[Any]:
        """Yield items, and add them to a cache until a failure.

        `finish` is called before the last element, because a consumer such as `zip` may stop there. A consumer that
        stops earlier leaves the cache empty.
        """
        num_missing = self._count_reliably()
        for item in items:
            if type(item) is Failure:
                yield item
                yield from items
                return
            add(item)
            count = chunks.count_elements(item) if are_chunks else 1
            num_missing -= count
            if num_missing == 0:
                if count > 1:
                    yield chunks.slice_chunk(item, 0, count - 1)
                    item = chunks.slice_chunk(item, count - 1, count)
                finish()
                yield item
                yield from items
                return
            yield item
        finish()


def _read_file_chunks(path: str, spec: PyTree) -> Iterator[Any]:
    """Iterate over the elements of a file in chunks."""
    size = chunks.choose_chunk_size(spec)
    parts = read_chunks(path, spec)
    stacked = (
        leaves if count is not None else [np.asarray(leaf)[None] for leaf in leaves]
        for leaves, count in parts
    )
    try:
        yield from chunks.merge_chunks(stacked, size)
    finally:
        parts.close()


class _IncompleteCacheError(Exception):
    """Signals that an element is missing, so that the file is discarded."""


class Prefetch(Unary):
    """Elements that a background thread produces before they are requested.

    Args:
      parent: The dataset.
      buffer_size: Number of elements to produce ahead; None or -1 means two, 0 disables
        prefetching.
    """

    runs_parents_in_thread = True

    def __init__(self, parent: DatasetNode, buffer_size: IntLike | None) -> None:
        super().__init__(parent)
        size = 2 if buffer_size is None else to_int(buffer_size, "buffer_size")
        if size < -1:
            raise InvalidArgumentError(
                f"buffer_size must be >= 0, or -1 for auto-tuning, got {size}."
            )
        self._size = 2 if size < 0 else size

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the static shapes of the parent, which are also those of this dataset."""
        return self.parent.infer_static_shapes()

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements, which a background thread computes ahead."""
        elements = self.parent.iter_elements(epoch)
        return elements if self._size == 0 else prefetch(elements, self._size)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self.parent.iter_chunks(epoch)
        if parent is None or self._size == 0:
            return parent
        # Failures are items of a stream of chunks, but `prefetch` raises them.
        return catch_failures(prefetch(parent, 1))

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the index stream of the parent, without a thread of its own."""
        return self.parent.vectorize(epoch)


class AssertCardinality(Unary):
    """A dataset that checks its number of elements.

    Args:
      parent: The dataset.
      expected: Number of elements, or INFINITE_CARDINALITY or UNKNOWN_CARDINALITY.
    """

    def __init__(self, parent: DatasetNode, expected: IntLike) -> None:
        super().__init__(parent)
        self._expected = to_int(expected, "expected_cardinality")

    def count_elements(self) -> int:
        """Return the expected number of elements."""
        return self._expected

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements, and raise FailedPreconditionError if their number differs."""
        return RaisingIterator(self._check_count(catch_failures(self.parent.iter_elements(epoch))))

    def _check_count(self, items: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for item in items:
            count += type(item) is not Failure
            if 0 <= self._expected < count:
                raise _make_count_error(self._expected, "at least", count)
            yield item
        if count != self._expected and self._expected >= INFINITE_CARDINALITY:
            raise _make_count_error(self._expected, "only", count)


def _make_count_error(expected: int, bound: str, actual: int) -> Exception:
    count = lambda n: f"{n} element{'' if n == 1 else 's'}"
    wanted = "an infinite number of elements" if expected < 0 else count(expected)
    return FailedPreconditionError(
        f"Input dataset was expected to contain {wanted} but contained {bound} {count(actual)}."
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

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because failed elements are dropped."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements that can be computed."""
        rows = self._iter_rows(epoch)
        return (
            RaisingIterator(self._drop_failures(catch_failures(self.parent.iter_elements(epoch))))
            if rows is None
            else rows
        )

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self.parent.iter_chunks(epoch)
        return None if parent is None else self._drop_failures(parent)

    def _drop_failures(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            if type(item) is Failure:
                _log_failure(item.error, self._warn)
            else:
                yield item


def _log_failure(error: BaseException, warn: bool) -> None:
    if warn:
        logging.getLogger("meshflow").warning("Skipping an element that failed: %s", error)
