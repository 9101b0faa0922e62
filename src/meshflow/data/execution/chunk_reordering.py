"""Reordering of streams of chunks: zipped, interleaved, chosen by index, and shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.data.execution.chunks import (
    MAX_CHUNK_SIZE,
    Chunk,
    are_stackable,
    count_elements,
    slice_chunk,
)
from meshflow.data.execution.failures import Failure, close_iterator
from meshflow.data.execution.random_draws import RandomDraws, ShuffleRing


class ChunkReader:
    """Reads any number of elements from a stream of chunks.

    Args:
      chunks: The stream of chunks and failures.
    """

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks = chunks
        self._is_peeked = False
        self._chunk: Any = None

    @property
    def peek(self) -> Any:
        """Return the next chunk, or the rest of it, without consuming it; None at the end."""
        if not self._is_peeked:
            self._chunk, self._is_peeked = next(self._chunks, None), True
            while (
                self._chunk is not None and self.num_ready == 0 and type(self._chunk) is not Failure
            ):
                self._chunk = next(self._chunks, None)
        return self._chunk

    @property
    def num_ready(self) -> int:
        """Return the number of elements that can be taken at once.

        It is 0 before a failure and at the end.
        """
        chunk = self._chunk if self._is_peeked else self.peek
        return 0 if chunk is None or type(chunk) is Failure else count_elements(chunk)

    def take(self, count: int) -> Any:
        """Take up to `count` elements or one failure; return None at the end.

        Args:
          count: Largest number of elements to take.
        """
        chunk = self.peek
        if chunk is None:
            return None
        if type(chunk) is Failure or count_elements(chunk) <= count:
            self._is_peeked = False
            return chunk
        self._chunk = slice_chunk(chunk, count, count_elements(chunk))
        return slice_chunk(chunk, 0, count)

    def close(self) -> None:
        """Close the stream."""
        close_iterator(self._chunks)


def align_streams(streams: list[Iterator[Any]]) -> Iterator[list[Chunk] | Failure]:
    """Split the chunks of several streams into chunks of equal sizes, until the first stream ends.

    Yields:
      A list with one chunk of each stream, or a failure of one of them.
    """
    heads = [ChunkReader(s) for s in streams]
    try:
        while all(head.peek is not None for head in heads):
            count = min(head.num_ready for head in heads)
            if count:
                yield [head.take(count) for head in heads]
            else:
                # A failure counts as an element, so the other streams skip one.
                items = [head.take(1) for head in heads]
                yield next(t for t in items if type(t) is Failure)
    finally:
        for head in heads:
            head.close()


def interleave_chunks(
    sources: Iterator[Any], open_stream: Callable[[Any], Iterator[Any]], cycle: int, block: int
) -> Iterator[Any]:
    """Interleave the streams that a function creates, in the order of `round_robin.interleave`.

    Args:
      sources: Items that the streams are created from.
      open_stream: Function from an item to a stream of chunks.
      cycle: Number of streams that are open at a time.
      block: Number of consecutive elements taken from each stream.
    """
    if cycle == 1:
        for source in sources:
            yield from open_stream(source)
        return
    active: list[ChunkReader | None] = []

    def open_next() -> ChunkReader | None:
        for source in sources:
            return ChunkReader(open_stream(source))
        return None

    try:
        while len(active) < cycle and (first := open_next()) is not None:
            active.append(first)
        position = 0
        while any(a is not None for a in active):
            if position == 0 and (rounds := _count_ready_rounds(active, block)):
                yield _interleave_blocks(
                    [a.take(rounds * block) for a in active if a is not None], block
                )
                continue
            current, taken = active[position], 0
            while current is not None and taken < block:
                item = current.take(block - taken)
                if item is None:
                    active[position] = open_next()
                    break
                taken += 1 if type(item) is Failure else count_elements(item)
                yield item
            position = (position + 1) % len(active)
    finally:
        for head in active:
            if head is not None:
                head.close()
        close_iterator(sources)


def _count_ready_rounds(heads: list[ChunkReader | None], block: int) -> int:
    """Return for how many complete rounds all streams have elements ready."""
    open_heads = [h for h in heads if h is not None]
    if len(open_heads) < len(heads):
        return 0
    rounds = min(h.num_ready for h in open_heads) // block
    return (
        rounds
        if rounds and all(are_stackable(h.peek, open_heads[0].peek) for h in open_heads)
        else 0
    )


def _interleave_blocks(parts: list[Chunk], block: int) -> Chunk:
    """Interleave blocks of several chunks of the same length."""
    leaves = []
    count = count_elements(parts[0])
    for arrays in zip(*parts, strict=True):
        row, dtype = arrays[0].shape[1:], arrays[0].dtype
        shape = (count // block, len(arrays), block, *row)
        out = _make_empty(shape, dtype)
        for index, array in enumerate(arrays):
            out[:, index] = array.reshape(count // block, block, *row)
        leaves.append(out.reshape(count * len(arrays), *row))
    return leaves


def shuffle_chunks(
    chunks: Iterator[Any], blank: Chunk, buffer_size: int, draws: RandomDraws
) -> Iterator[Any]:
    """Shuffle elements with a buffer, in the same order as `order.shuffle_items`.

    Args:
      chunks: The chunks.
      blank: Chunk of one element that replaces a failure in the buffer.
      buffer_size: Number of elements in the buffer.
      draws: The random numbers.
    """
    reader = ChunkReader(chunks)
    try:
        first_chunks: list[Chunk] = []
        count = 0
        while count < buffer_size and (chunk := reader.take(buffer_size - count)) is not None:
            chunk = _add_failure_leaf(chunk, blank)
            first_chunks.append(chunk)
            count += count_elements(chunk)
        if not first_chunks:
            return
        # The buffer holds slots of these arrays, so only integers are exchanged while shuffling.
        slots = [np.concatenate(arrays) for arrays in zip(*first_chunks, strict=True)]
        del first_chunks
        ring = ShuffleRing(draws.words, np.arange(count))
        buffer = ring.buffer
        if count == buffer_size:
            while (chunk := reader.take(1 << 62)) is not None:
                chunk = _add_failure_leaf(chunk, blank)
                new = np.arange(count, count + count_elements(chunk))
                drawn = ring.exchange(new)
                yield from _split_failures(_gather_from_two(slots, chunk, drawn))
                moved = np.flatnonzero(buffer >= count)
                free = drawn[drawn < count]
                for slot, leaf in zip(slots, chunk, strict=True):
                    slot[free] = leaf[buffer[moved] - count]
                buffer[moved] = free
        remaining = draws.shuffle_all(ring.get_remaining())
        for start in range(0, count, MAX_CHUNK_SIZE):
            index = remaining[start : start + MAX_CHUNK_SIZE]
            yield from _split_failures([slot[index] for slot in slots])
    finally:
        reader.close()


def _add_failure_leaf(chunk: Any, blank: Chunk) -> Chunk:
    """Prepend a leaf that contains the failures of a chunk, None for other elements."""
    if type(chunk) is not Failure:
        return [np.full(count_elements(chunk), None, object), *chunk]
    failure = np.empty(1, object)
    failure[0] = chunk
    return [failure, *blank]


def _gather_from_two(slots: Chunk, chunk: Chunk, index: np.ndarray) -> Chunk:
    """Gather elements by index from the slots of the buffer, and from a chunk after them.

    Args:
      slots: The arrays of the buffer.
      chunk: The chunk; its indices start at the number of slots.
      index: The indices.
    """
    count = count_elements(slots)
    is_new = index >= count
    leaves = []
    for slot, leaf in zip(slots, chunk, strict=True):
        shape = (len(index), *slot.shape[1:])
        out = _make_empty(shape, slot.dtype)
        out[~is_new] = slot[index[~is_new]]
        out[is_new] = leaf[index[is_new] - count]
        leaves.append(out)
    return leaves


def _split_failures(chunk: Chunk) -> Iterator[Any]:
    """Split a chunk with a leaf of failures into chunks without it, and failures."""
    failures = [i for i, failure in enumerate(chunk[0]) if failure is not None]
    leaves, start = chunk[1:], 0
    for stop in (*failures, count_elements(chunk)):
        if stop > start and leaves:
            yield slice_chunk(leaves, start, stop)
        if stop < count_elements(chunk):
            yield chunk[0][stop]
        start = stop + 1


def choose_chunks(
    choices: Iterator[Any], streams: list[Iterator[Any]], stop_on_empty: bool
) -> Iterator[Any]:
    """Take each element from the stream that an index selects.

    Args:
      choices: Chunks of the indices.
      streams: Chunks of the elements.
      stop_on_empty: Whether to stop as soon as a selected stream has ended; otherwise its indices
        are skipped.
    """
    heads = [ChunkReader(s) for s in streams]
    num_open = len(heads)
    has_ended = [False] * num_open
    try:
        for choice in choices:
            if type(choice) is Failure:
                yield choice
                continue
            indices = choice[0]
            invalid = np.flatnonzero((indices < 0) | (indices >= len(heads)))
            count = int(invalid[0]) if len(invalid) else len(indices)
            start = 0
            while start < count:
                stop = _count_ready_choices(indices[start:count], heads) + start
                if stop > start:
                    yield _take_choices(indices[start:stop], heads)
                    start = stop
                    continue
                index = indices[start]
                start += 1
                item = None if has_ended[index] else heads[index].take(1)
                if item is not None:
                    yield item
                    continue
                if stop_on_empty:
                    return
                num_open -= not has_ended[index]
                has_ended[index] = True
                if not num_open:
                    return
            if count < len(indices):
                yield make_choice_failure(int(indices[count]), len(heads))
                return
    finally:
        for head in heads:
            head.close()
        close_iterator(choices)


def make_choice_failure(choice: int, count: int) -> Failure:
    """Return the failure for an index that selects no dataset."""
    return Failure(
        InvalidArgumentError(
            f"Selector index out of range: it must be in [0, {count}), got {choice}."
        )
    )


def _count_ready_choices(choices: np.ndarray, heads: list[ChunkReader]) -> int:
    """Return how many of the first choices can be taken at once."""
    reach = len(choices)
    for index, head in enumerate(heads):
        positions = np.flatnonzero(choices[:reach] == index)
        if len(positions) and len(positions) > head.num_ready:
            reach = int(positions[head.num_ready])
    return reach


def _take_choices(choices: np.ndarray, heads: list[ChunkReader]) -> Chunk:
    """Take the elements that some choices select, which must be ready."""
    taken = {
        index: head.take(int(np.count_nonzero(choices == index)))
        for index, head in enumerate(heads)
        if (choices == index).any()
    }
    if len(taken) == 1:
        return next(iter(taken.values()))
    parts = list(taken.items())
    leaves = []
    for leaf, first in enumerate(parts[0][1]):
        out = _make_empty((len(choices), *first.shape[1:]), first.dtype)
        for index, chunk in parts:
            out[choices == index] = chunk[leaf]
        leaves.append(out)
    return leaves


def concatenate_gathers(
    first: Callable[..., Chunk], second: Callable[..., Chunk], index_limit: int
) -> Callable[[np.ndarray], Chunk]:
    """Return a function that gathers from the concatenation of two datasets.

    Args:
      first: Gather of the first dataset.
      second: Gather of the second dataset.
      index_limit: Number of indices of the first dataset, which those of the second one follow.
    """

    def gather(index: np.ndarray) -> Chunk:
        low = index < index_limit
        if low.all():
            return first(index)
        if not low.any():
            return second(index - index_limit)
        leaves = []
        parts = first(index[low]), second(index[~low] - index_limit)
        for first_rows, second_rows in zip(*parts, strict=True):
            out = _make_empty((len(index), *first_rows.shape[1:]), first_rows.dtype)
            out[low], out[~low] = first_rows, second_rows
            leaves.append(out)
        return leaves

    return gather


def _make_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Create an uninitialized array; a numeric one can become a tensor without a copy."""
    return np.empty(shape, dtype) if dtype.hasobject else transfers.allocate(shape, dtype)
