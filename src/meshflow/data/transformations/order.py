"""Transformations that select or reorder elements: `shuffle`, `repeat`, `take`, `skip` and `shard`."""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, IntLike, to_int
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunk_reordering, chunks
from meshflow.data.execution.failures import (
    Failure,
    RaisingIterator,
    catch_failures,
    close_iterator,
)
from meshflow.data.execution.random_draws import RandomDraws, ShuffleRing
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.sources import make_seed_words
from meshflow.data.transformations.base import Unary

# Number of indices in a block of a small dataset that is repeated, and the largest size of such a dataset.
_BLOCK_SIZE, _MAX_TILED_COUNT = 1024, 256


class Shuffle(Unary):
    """Elements in random order, drawn from a buffer.

    Args:
      parent: The dataset.
      buffer_size: Number of elements in the buffer; UNKNOWN_CARDINALITY means all elements.
      seed: Seed of the order, or None.
      reshuffle: Whether every pass has another order; None means True.
    """

    def __init__(
        self, parent: DatasetNode, buffer_size: IntLike, seed: int | None, reshuffle: bool | None
    ) -> None:
        super().__init__(parent)
        self._buffer = to_int(buffer_size, "buffer_size")
        if self._buffer == UNKNOWN_CARDINALITY:
            self._buffer = sys.maxsize
        if self._buffer < 1:
            raise InvalidArgumentError(
                f"buffer_size must be greater than zero, got {self._buffer}."
            )
        self._words = make_seed_words(seed)
        self.seeded = seed is not None
        self.reshuffles = True if reshuffle is None else bool(reshuffle)
        self.epoch = 0
        # The parts that passes used so far; None after the warning about disjoint parts.
        self._used_parts: list[slice] | None = []

    def get_seed_words(self) -> list[int]:
        """Return the words of the seed."""
        return self._words

    def record_part(self, part: slice) -> None:
        """Record a part of the elements; warn if passes use disjoint parts, which a new order mixes."""
        super().record_part(part)
        if not self.reshuffles or self._used_parts is None or part in self._used_parts:
            return
        other = next((used for used in self._used_parts if _are_disjoint(used, part)), None)
        if other is None:
            self._used_parts.append(part)
            return
        self._used_parts = None
        first, second = sorted((_describe_part(p) for p in (other, part)), reverse=True)
        size = "" if self._buffer == sys.maxsize else f"buffer_size={self._buffer}"
        warnings.warn(
            f"A dataset is split by {first} and {second} after shuffle({size}), which draws a new order in every pass. "
            "The parts therefore share elements, and validation data leak into the training data. Split the dataset "
            "before shuffle and shuffle only the training part, pass reshuffle_each_iteration=False to shuffle, or use "
            "tf.keras.utils.split_dataset.",
            stacklevel=5,
        )

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over elements that are drawn at random from the buffer."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows
        parent = catch_failures(self.parent.iter_elements(epoch))

        def draw_elements() -> Iterator[Any]:
            # The epoch starts when the first element is requested, as for blocks of indices.
            yield from shuffle_items(parent, self._buffer, epoch.create_draws(self))

        return RaisingIterator(draw_elements())

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the parent's index stream in random order; None if the buffer exceeds its spread."""
        parent = self.parent.vectorize(epoch)
        if parent is None or not self._can_shuffle_indices(parent):
            return None

        def blocks() -> Iterator[np.ndarray]:
            # The epoch starts when the first index is requested, and not when a caller only checks
            # for a stream.
            yield from shuffle_blocks(parent.blocks, self._buffer, epoch.create_draws(self))

        return parent._replace(blocks=blocks(), is_in_order=False)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.is_stackable(self.element_spec):
            return None
        parent = self.parent.iter_chunks(epoch)
        if parent is None:
            return None

        def parts() -> Iterator[Any]:
            blank = [
                structure.make_zeros(s)[None] for s in structure.nest.flatten(self.element_spec)
            ]
            yield from chunk_reordering.shuffle_chunks(
                parent, blank, self._buffer, epoch.create_draws(self)
            )

        return parts()

    def _can_shuffle_indices(self, parent: IndexStream | None) -> bool:
        """Check whether the parent can gather indices with a distance up to the size of the buffer."""
        return parent is not None and (
            parent.max_spread is None or self._buffer <= parent.max_spread
        )

    def explain_fallback(self) -> str:
        """Return the reason: the parent has no index stream, or the buffer is too large for it."""
        if self.parent.vectorize(Epoch(self.parent)) is None:
            return super().explain_fallback()
        return "its buffer is larger than the source holds in memory"


def _are_disjoint(first: slice, second: slice) -> bool:
    """Check whether two ranges of consecutive elements have no element in common."""
    if first.step or second.step:
        return False
    return any(
        a.stop is not None and a.stop <= b.start for a, b in ((first, second), (second, first))
    )


def _describe_part(part: slice) -> str:
    taken = "" if part.stop is None else f"take({part.stop - part.start})"
    return ".".join(filter(None, (f"skip({part.start})" if part.start else "", taken)))


def shuffle_items(items: Iterator[Any], buffer_size: int, draws: RandomDraws) -> Iterator[Any]:
    """Draw items at random from a buffer that is refilled with the next items.

    Args:
      items: The items.
      buffer_size: Number of items in the buffer.
      draws: The random numbers.
    """
    buffer = list(itertools.islice(items, buffer_size))
    first = 0
    if len(buffer) == buffer_size:
        words: list[int] = []
        used = 0
        for item in items:
            if used == len(words):
                words, used = draws.words.take(1024).tolist(), 0
            index = (first + words[used] % buffer_size) % buffer_size
            used += 1
            yield buffer[index]
            # The buffer is a ring, with the same exchanges as `row_gather.exchange`.
            buffer[index], buffer[first] = buffer[first], item
            first = (first + 1) % buffer_size
        draws.words.num_taken -= len(words) - used
    for index in draws.shuffle_all(np.roll(np.arange(len(buffer)), -first)).tolist():
        yield buffer[index]
        buffer[index] = None


def shuffle_blocks(
    blocks: Iterator[np.ndarray], buffer_size: int, draws: RandomDraws
) -> Iterator[np.ndarray]:
    """Shuffle the indices in blocks in the same order as `shuffle_items`, one block at a time.

    Args:
      blocks: Arrays of indices.
      buffer_size: Number of indices in the buffer.
      draws: The random numbers.
    """
    first_blocks: list[np.ndarray] = []
    count = 0
    while count < buffer_size:
        block = next(blocks, None)
        if block is None:
            break
        first_blocks.append(block)
        count += len(block)
    indices = np.concatenate(first_blocks) if first_blocks else np.zeros(0, np.int64)
    buffer, rest = indices[:buffer_size].copy(), indices[buffer_size:]
    ring = ShuffleRing(draws.words, buffer)
    if len(buffer) == buffer_size:
        for items in itertools.chain([rest], blocks):
            if len(items):
                yield ring.exchange(items)
    yield draws.shuffle_all(ring.get_remaining())


class Repeat(Unary):
    """The elements of a dataset, repeated.

    Args:
      parent: The dataset.
      count: Number of repetitions; None or -1 repeats indefinitely.
    """

    def __init__(self, parent: DatasetNode, count: IntLike | None) -> None:
        super().__init__(parent)
        self._times = -1 if count is None else to_int(count, "count")

    def count_elements(self) -> int:
        """Return the count of the parent times the repetitions; INFINITE_CARDINALITY for endless ones."""
        count = self.parent.count_elements()
        if self._times == 0:
            return 0
        if count == 0:
            return 0
        if self._times < 0:
            return INFINITE_CARDINALITY
        return count * self._times if count >= 0 else count

    def _iter_repetitions(self) -> Iterator[int]:
        return itertools.count() if self._times < 0 else iter(range(self._times))

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the parent repeatedly; stop at a repetition without elements."""
        rows = self._iter_rows(epoch)
        if rows is not None:
            return rows

        def repeat_elements() -> Iterator[Any]:
            for _ in self._iter_repetitions():
                is_empty = True
                for element in catch_failures(self.parent.iter_elements(epoch)):
                    is_empty = False
                    yield element
                if is_empty:
                    return

        return RaisingIterator(repeat_elements())

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        first = self.parent.iter_chunks(epoch)
        if first is None:
            return None

        def repeat_chunks() -> Iterator[Any]:
            for turn in self._iter_repetitions():
                is_empty = True
                for chunk in first if turn == 0 else self.parent.iter_chunks(epoch) or ():
                    is_empty = False
                    yield chunk
                if is_empty:
                    return

        return repeat_chunks()

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return an index stream that starts the parent's blocks again for each repetition."""
        first = self.parent.vectorize(epoch)
        if first is None:
            return None
        count = self.parent.count_elements()
        if first.is_in_order and 0 < count <= _MAX_TILED_COUNT:
            return first._replace(blocks=self._iter_tiles(count), is_in_order=False)

        def blocks() -> Iterator[np.ndarray]:
            for turn in self._iter_repetitions():
                vector = first if turn == 0 else self.parent.vectorize(epoch)
                assert vector is not None
                is_empty = True
                for block in vector.blocks:
                    is_empty = is_empty and not len(block)
                    yield block
                if is_empty:
                    return

        return first._replace(blocks=blocks(), is_in_order=False)

    def _iter_tiles(self, count: int) -> Iterator[np.ndarray]:
        """Iterate over indices below a count, repeated; blocks of few indices would be slow."""
        turns = _BLOCK_SIZE // count
        left = math.inf if self._times < 0 else self._times
        while left > 0:
            yield np.tile(np.arange(count), int(min(turns, left)))
            left -= turns


class Slice(Unary):
    """Every `step`-th element from `start` up to `stop`: `take`, `skip` and `shard`.

    Args:
      parent: The dataset.
      start: Index of the first element.
      stop: Exclusive bound of the indices, None for no bound.
      step: Distance between the selected elements.
    """

    _tensorflow_name = "TakeDataset"

    def __init__(self, parent: DatasetNode, start: int, stop: int | None, step: int = 1) -> None:
        super().__init__(parent)
        self._start, self._stop, self._step = start, stop, step

    def record_part(self, part: slice) -> None:
        """Record which elements of the parent a pass uses."""
        # The elements of shards are not consecutive; workers of one process use several of them.
        is_strided = self._step != 1 or part.step is not None
        stops = [s for s in (self._stop, part.stop and part.stop + self._start) if s is not None]
        stop = min(stops, default=None)
        if stop is None or part.start + self._start < stop:
            step = 2 if is_strided else None
            super().record_part(slice(part.start + self._start, stop, step))

    def count_elements(self) -> int:
        """Return the number of selected elements, if that of the parent is known."""
        count = self.parent.count_elements()
        if count == INFINITE_CARDINALITY:
            if self._stop is None:
                return count
            count = self._stop
        if count < 0:
            return 0 if self._stop == 0 else count
        return len(range(count)[self._start : self._stop : self._step])

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the selected elements; failed elements do not count."""
        rows = self._iter_rows(epoch)
        return RaisingIterator(self._slice_elements(epoch)) if rows is None else rows

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self.parent.iter_chunks(epoch)
        return None if parent is None else self._slice_chunks(parent)

    def _slice_chunks(self, parent: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        while self._stop is None or seen < self._stop:
            chunk = next(parent, None)
            if chunk is None:
                break
            # Failed elements do not count.
            if type(chunk) is Failure:
                yield chunk
                continue
            count = chunks.count_elements(chunk)
            first = max(self._start - seen, (self._start - seen) % self._step)
            stop = count if self._stop is None else min(count, self._stop - seen)
            if first < stop:
                yield [leaf[first : stop : self._step] for leaf in chunk]
            seen += count
        close_iterator(parent)

    def _slice_elements(self, epoch: Epoch) -> Iterator[Any]:
        if self._stop == 0:
            return
        index = 0
        for item in catch_failures(self.parent.iter_elements(epoch)):
            # Failed elements do not count.
            if type(item) is Failure:
                yield item
                continue
            if index >= self._start and (index - self._start) % self._step == 0:
                yield item
            index += 1
            if index == self._stop:
                return

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the parent's index stream with only the indices at selected positions."""
        parent = self.parent.vectorize(epoch)
        if parent is None:
            return None

        def blocks() -> Iterator[np.ndarray]:
            seen = 0
            for block in parent.blocks:
                if self._stop is not None and seen >= self._stop:
                    return
                positions = np.arange(seen, seen + len(block))
                mask = (positions >= self._start) & ((positions - self._start) % self._step == 0)
                if self._stop is not None:
                    mask &= positions < self._stop
                seen += len(block)
                if mask.any():
                    yield block[mask]

        return parent._replace(blocks=blocks(), is_in_order=False)


class ShardHint(Unary):
    """The place in a pipeline where the auto-shard policy HINT splits the dataset."""

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Raise FailedPreconditionError, because auto-sharding has not replaced the hint."""
        raise FailedPreconditionError(
            "`shard(SHARD_HINT, SHARD_HINT)` is only replaced when a dataset is distributed under the auto-shard policy "
            "HINT. Pass integers to `shard` otherwise."
        )
