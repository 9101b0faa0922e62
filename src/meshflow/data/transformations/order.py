"""Which elements come, and in which order: `shuffle`, `repeat`, `take`, `skip` and `shard`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, integer
from meshflow.data.dataset import Dataset, Vector
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunk_reordering, chunks
from meshflow.data.execution.draws import Draws, Ring
from meshflow.data.execution.resumable import Failed, Raising, caught, close
from meshflow.data.sources import seed_of
from meshflow.data.transformations.base import Unary


class Shuffle(Unary):
    """Elements in random order, drawn from a buffer."""

    def __init__(self, parent: Dataset, buffer_size: Any, seed: Any, reshuffle: Any) -> None:
        super().__init__(parent)
        self._buffer = integer(buffer_size, "buffer_size")
        if self._buffer == UNKNOWN_CARDINALITY:
            self._buffer = sys.maxsize
        if self._buffer < 1:
            raise InvalidArgumentError(
                f"buffer_size must be greater than zero, got {self._buffer}."
            )
        self._words = seed_of(seed)
        self.seeded = seed is not None
        self.reshuffles = True if reshuffle is None else bool(reshuffle)
        self.epoch = 0

    def seed(self) -> list[int]:
        """The words of the seed."""
        return self._words

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        row_gather = self._rows(epoch)
        if row_gather is not None:
            return row_gather
        parent = caught(self._parent._elements(epoch))

        def drawn() -> Iterator[Any]:
            # The epoch begins with the first number, as below.
            yield from shuffled(parent, self._buffer, epoch.draws(self))

        return Raising(drawn())

    def _vector(self, epoch: Epoch) -> Vector | None:
        parent = self._parent._vector(epoch)
        if parent is None or not self._reaches(parent):
            return None

        def blocks() -> Iterator[np.ndarray]:
            # The epoch begins with the first number, not when somebody asks whether there are any.
            yield from shuffled_blocks(parent.blocks, self._buffer, epoch.draws(self))

        return parent._replace(blocks=blocks(), in_order=False)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        if not chunks.stackable(self.element_spec):
            return None
        parent = self._parent._in_chunks(epoch)
        if parent is None:
            return None

        def parts() -> Iterator[Any]:
            blank = [structure.zeros(s)[None] for s in structure.nest.flatten(self.element_spec)]
            yield from chunk_reordering.shuffled(parent, blank, self._buffer, epoch.draws(self))

        return parts()

    def _reaches(self, parent: Vector | None) -> bool:
        return parent is not None and (parent.reach is None or self._buffer <= parent.reach)

    def _why_not_vectorized(self) -> str:
        if self._parent._vector(Epoch(self._parent)) is None:
            return super()._why_not_vectorized()
        return "its buffer is larger than the source holds in memory"


def shuffled(items: Iterator[Any], buffer_size: int, draws: Draws) -> Iterator[Any]:
    """Items drawn at random from a buffer that is filled again from the front."""
    buffer = list(itertools.islice(items, buffer_size))
    first = 0
    if len(buffer) == buffer_size:
        words: list[int] = []
        used = 0
        for item in items:
            if used == len(words):
                words, used = draws.words.take(1024).tolist(), 0
            at = (first + words[used] % buffer_size) % buffer_size
            used += 1
            yield buffer[at]
            # As in the ring of `row_gather.exchange`.
            buffer[at], buffer[first] = buffer[first], item
            first = (first + 1) % buffer_size
        draws.words.taken -= len(words) - used
    for at in draws.drained(np.roll(np.arange(len(buffer)), -first)).tolist():
        yield buffer[at]
        buffer[at] = None


def shuffled_blocks(
    blocks: Iterator[np.ndarray], buffer_size: int, draws: Draws
) -> Iterator[np.ndarray]:
    """What `shuffled` makes of the numbers in some blocks, a block at a time."""
    waiting: list[np.ndarray] = []
    held = 0
    while held < buffer_size:
        block = next(blocks, None)
        if block is None:
            break
        waiting.append(block)
        held += len(block)
    everything = np.concatenate(waiting) if waiting else np.zeros(0, np.int64)
    buffer, rest = everything[:buffer_size].copy(), everything[buffer_size:]
    ring = Ring(draws.words, buffer)
    if len(buffer) == buffer_size:
        for items in itertools.chain([rest], blocks):
            if len(items):
                yield ring.exchange(items)
    yield draws.drained(ring.left())


class Repeat(Unary):
    """Elements again and again."""

    def __init__(self, parent: Dataset, count: Any) -> None:
        super().__init__(parent)
        self._times = -1 if count is None else integer(count, "count")

    def _count(self) -> int:
        count = self._parent._count()
        if self._times == 0:
            return 0
        if count == 0:
            return 0
        if self._times < 0:
            return INFINITE_CARDINALITY
        return count * self._times if count >= 0 else count

    def _turns(self) -> Iterator[int]:
        return itertools.count() if self._times < 0 else iter(range(self._times))

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        row_gather = self._rows(epoch)
        if row_gather is not None:
            return row_gather

        def turns() -> Iterator[Any]:
            for _ in self._turns():
                empty = True
                for element in caught(self._parent._elements(epoch)):
                    empty = False
                    yield element
                if empty:
                    return

        return Raising(turns())

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        first = self._parent._in_chunks(epoch)
        if first is None:
            return None

        def parts() -> Iterator[Any]:
            for turn in self._turns():
                empty = True
                for chunk in first if turn == 0 else self._parent._in_chunks(epoch) or ():
                    empty = False
                    yield chunk
                if empty:
                    return

        return parts()

    def _vector(self, epoch: Epoch) -> Vector | None:
        first = self._parent._vector(epoch)
        if first is None:
            return None

        def blocks() -> Iterator[np.ndarray]:
            for turn in self._turns():
                vector = first if turn == 0 else self._parent._vector(epoch)
                assert vector is not None
                empty = True
                for block in vector.blocks:
                    empty = empty and not len(block)
                    yield block
                if empty:
                    return

        return first._replace(blocks=blocks(), in_order=False)


class Slice(Unary):
    """Every `step`-th element from `start` on, up to `stop`: take, skip and shard."""

    def __init__(self, parent: Dataset, start: int, stop: int | None, step: int = 1) -> None:
        super().__init__(parent)
        self._start, self._stop, self._step = start, stop, step

    def _count(self) -> int:
        count = self._parent._count()
        if count == INFINITE_CARDINALITY:
            if self._stop is None:
                return count
            count = self._stop
        if count < 0:
            return 0 if self._stop == 0 else count
        return len(range(count)[self._start : self._stop : self._step])

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        row_gather = self._rows(epoch)
        return Raising(self._items(epoch)) if row_gather is None else row_gather

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        parent = self._parent._in_chunks(epoch)
        return None if parent is None else self._cut(parent)

    def _cut(self, parent: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        while self._stop is None or seen < self._stop:
            chunk = next(parent, None)
            if chunk is None:
                break
            # Elements that could not be made do not count.
            if type(chunk) is Failed:
                yield chunk
                continue
            count = chunks.length(chunk)
            first = max(self._start - seen, (self._start - seen) % self._step)
            stop = count if self._stop is None else min(count, self._stop - seen)
            if first < stop:
                yield [leaf[first : stop : self._step] for leaf in chunk]
            seen += count
        close(parent)

    def _items(self, epoch: Epoch) -> Iterator[Any]:
        if self._stop == 0:
            return
        number = 0
        for item in caught(self._parent._elements(epoch)):
            # Elements that could not be made do not count.
            if type(item) is Failed:
                yield item
                continue
            if number >= self._start and (number - self._start) % self._step == 0:
                yield item
            number += 1
            if number == self._stop:
                return

    def _vector(self, epoch: Epoch) -> Vector | None:
        parent = self._parent._vector(epoch)
        if parent is None:
            return None

        def blocks() -> Iterator[np.ndarray]:
            seen = 0
            for block in parent.blocks:
                if self._stop is not None and seen >= self._stop:
                    return
                positions = np.arange(seen, seen + len(block))
                keep = (positions >= self._start) & ((positions - self._start) % self._step == 0)
                if self._stop is not None:
                    keep &= positions < self._stop
                seen += len(block)
                if keep.any():
                    yield block[keep]

        return parent._replace(blocks=blocks(), in_order=False)


class ShardHint(Unary):
    """Where a dataset is to be divided between workers."""

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        raise FailedPreconditionError(
            "`shard(SHARD_HINT, SHARD_HINT)` is filled in where a dataset is distributed under the auto-shard policy "
            "HINT; elsewhere give numbers."
        )
