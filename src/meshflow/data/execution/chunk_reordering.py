"""Streams of chunks put in another order: side by side, in turn, chosen, shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.data.execution.chunks import BLOCK, Chunk, alike, length, part
from meshflow.data.execution.draws import Draws, Ring
from meshflow.data.execution.resumable import Failed, close


class Head:
    """The front of a stream of chunks.

    Args:
      chunks: the stream.

    Attributes:
      chunk: what is left of the first chunk, or a failure; None at the end.
    """

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks = chunks
        self._known = False
        self._chunk: Any = None

    @property
    def chunk(self) -> Any:
        """The first chunk, or what is left of it; None at the end."""
        if not self._known:
            self._chunk, self._known = next(self._chunks, None), True
            while self._chunk is not None and self.ready == 0 and type(self._chunk) is not Failed:
                self._chunk = next(self._chunks, None)
        return self._chunk

    @property
    def ready(self) -> int:
        """How many elements there are at once; none before a failure and at the end."""
        chunk = self._chunk if self._known else self.chunk
        return 0 if chunk is None or type(chunk) is Failed else length(chunk)

    def take(self, count: int) -> Any:
        """At most so many elements, a failure (which counts as one), or None at the end."""
        chunk = self.chunk
        if chunk is None:
            return None
        if type(chunk) is Failed or length(chunk) <= count:
            self._known = False
            return chunk
        self._chunk = part(chunk, count, length(chunk))
        return part(chunk, 0, count)

    def close(self) -> None:
        """Closes the stream."""
        close(self._chunks)


def side_by_side(streams: list[Iterator[Any]]) -> Iterator[list[Chunk] | Failed]:
    """The chunks of several streams, of the same lengths, until the first stream ends."""
    heads = [Head(s) for s in streams]
    try:
        while all(head.chunk is not None for head in heads):
            count = min(head.ready for head in heads)
            if count:
                yield [head.take(count) for head in heads]
            else:
                # A failure has the place of an element.
                taken = [head.take(1) for head in heads]
                yield next(t for t in taken if type(t) is Failed)
    finally:
        for head in heads:
            head.close()


def in_turn(
    sources: Iterator[Any], opened: Callable[[Any], Iterator[Any]], cycle: int, block: int
) -> Iterator[Any]:
    """Chunks of the streams that a function makes of sources; `turns.in_turn` gives their order.

    Args:
      sources: what the streams are made of.
      opened: makes one.
      cycle: how many of them are open at a time.
      block: how many elements of each follow each other.
    """
    if cycle == 1:
        for source in sources:
            yield from opened(source)
        return
    active: list[Head | None] = []

    def following() -> Head | None:
        for source in sources:
            return Head(opened(source))
        return None

    try:
        while len(active) < cycle and (first := following()) is not None:
            active.append(first)
        at = 0
        while any(a is not None for a in active):
            if at == 0 and (rounds := _rounds(active, block)):
                yield _woven([a.take(rounds * block) for a in active if a is not None], block)
                continue
            current, taken = active[at], 0
            while current is not None and taken < block:
                item = current.take(block - taken)
                if item is None:
                    active[at] = following()
                    break
                taken += 1 if type(item) is Failed else length(item)
                yield item
            at = (at + 1) % len(active)
    finally:
        for head in active:
            if head is not None:
                head.close()
        close(sources)


def _rounds(heads: list[Head | None], block: int) -> int:
    """How many rounds of whole blocks of all heads there are at once."""
    open_ones = [h for h in heads if h is not None]
    if len(open_ones) < len(heads):
        return 0
    rounds = min(h.ready for h in open_ones) // block
    return rounds if rounds and all(alike(h.chunk, open_ones[0].chunk) for h in open_ones) else 0


def _woven(parts: list[Chunk], block: int) -> Chunk:
    """Blocks of several chunks of one length, in turn."""
    leaves = []
    count = length(parts[0])
    for arrays in zip(*parts, strict=True):
        row, dtype = arrays[0].shape[1:], arrays[0].dtype
        shape = (count // block, len(arrays), block, *row)
        out = _empty(shape, dtype)
        for at, array in enumerate(arrays):
            out[:, at] = array.reshape(count // block, block, *row)
        leaves.append(out.reshape(count * len(arrays), *row))
    return leaves


def shuffled(chunks: Iterator[Any], blank: Chunk, buffer_size: int, draws: Draws) -> Iterator[Any]:
    """Elements drawn at random from a buffer, in the order of `order.shuffled`, in chunks.

    Args:
      chunks: the elements.
      blank: a chunk of one, in the place of a failure.
      buffer_size: how many elements are drawn from.
      draws: what is drawn in the pass.
    """
    heads = Head(chunks)
    try:
        held: list[Chunk] = []
        count = 0
        while count < buffer_size and (chunk := heads.take(buffer_size - count)) is not None:
            chunk = _marked(chunk, blank)
            held.append(chunk)
            count += length(chunk)
        if not held:
            return
        # Elements lie in places; which of them the buffer has in which order is a row of numbers.
        places = [np.concatenate(arrays) for arrays in zip(*held, strict=True)]
        del held
        ring = Ring(draws.words, np.arange(count))
        buffer = ring.buffer
        if count == buffer_size:
            while (chunk := heads.take(1 << 62)) is not None:
                chunk = _marked(chunk, blank)
                new = np.arange(count, count + length(chunk))
                left = ring.exchange(new)
                yield from _unmarked(_gathered(places, chunk, left))
                moved = np.flatnonzero(buffer >= count)
                free = left[left < count]
                for place, leaf in zip(places, chunk, strict=True):
                    place[free] = leaf[buffer[moved] - count]
                buffer[moved] = free
        left = draws.drained(ring.left())
        for start in range(0, count, BLOCK):
            at = left[start : start + BLOCK]
            yield from _unmarked([place[at] for place in places])
    finally:
        heads.close()


def _marked(chunk: Any, blank: Chunk) -> Chunk:
    """A chunk with one leaf more, which has the failures."""
    if type(chunk) is not Failed:
        return [np.full(length(chunk), None, object), *chunk]
    mark = np.empty(1, object)
    mark[0] = chunk
    return [mark, *blank]


def _gathered(places: Chunk, chunk: Chunk, index: np.ndarray) -> Chunk:
    """Elements by number: those of the places, and after them those of a chunk."""
    count = length(places)
    new = index >= count
    leaves = []
    for place, leaf in zip(places, chunk, strict=True):
        shape = (len(index), *place.shape[1:])
        out = _empty(shape, place.dtype)
        out[~new] = place[index[~new]]
        out[new] = leaf[index[new] - count]
        leaves.append(out)
    return leaves


def _unmarked(chunk: Chunk) -> Iterator[Any]:
    failures = [i for i, mark in enumerate(chunk[0]) if mark is not None]
    leaves, start = chunk[1:], 0
    for at in (*failures, length(chunk)):
        if at > start and leaves:
            yield part(leaves, start, at)
        if at < length(chunk):
            yield chunk[0][at]
        start = at + 1


def chosen(
    choices: Iterator[Any], streams: list[Iterator[Any]], stop_on_empty: bool
) -> Iterator[Any]:
    """Elements of several streams, each of the one that a number names.

    Args:
      choices: chunks of the numbers.
      streams: chunks of the elements.
      stop_on_empty: whether the end of one is the end; else its numbers are passed over.
    """
    heads = [Head(s) for s in streams]
    left = len(heads)
    ended = [False] * left
    try:
        for choice in choices:
            if type(choice) is Failed:
                yield choice
                continue
            numbers = choice[0]
            wrong = np.flatnonzero((numbers < 0) | (numbers >= len(heads)))
            count = int(wrong[0]) if len(wrong) else len(numbers)
            start = 0
            while start < count:
                stop = _reach(numbers[start:count], heads) + start
                if stop > start:
                    yield _picked(numbers[start:stop], heads)
                    start = stop
                    continue
                at = numbers[start]
                start += 1
                item = None if ended[at] else heads[at].take(1)
                if item is not None:
                    yield item
                    continue
                if stop_on_empty:
                    return
                left -= not ended[at]
                ended[at] = True
                if not left:
                    return
            if count < len(numbers):
                yield no_such(int(numbers[count]), len(heads))
                return
    finally:
        for head in heads:
            head.close()
        close(choices)


def no_such(choice: int, count: int) -> Failed:
    """The failure of a choice that names none of the datasets."""
    return Failed(InvalidArgumentError(f"selector_input must be in [0, {count}), got {choice}."))


def _reach(numbers: np.ndarray, heads: list[Head]) -> int:
    """How many of some choices can be taken at once."""
    reach = len(numbers)
    for at, head in enumerate(heads):
        places = np.flatnonzero(numbers[:reach] == at)
        if len(places) and len(places) > head.ready:
            reach = int(places[head.ready])
    return reach


def _picked(numbers: np.ndarray, heads: list[Head]) -> Chunk:
    """The elements that some choices name, of which there are enough."""
    taken = {
        at: head.take(int(np.count_nonzero(numbers == at)))
        for at, head in enumerate(heads)
        if (numbers == at).any()
    }
    if len(taken) == 1:
        return next(iter(taken.values()))
    parts = list(taken.items())
    leaves = []
    for leaf, first in enumerate(parts[0][1]):
        out = _empty((len(numbers), *first.shape[1:]), first.dtype)
        for at, chunk in parts:
            out[numbers == at] = chunk[leaf]
        leaves.append(out)
    return leaves


def gather_of_two(
    first: Callable[..., Chunk], second: Callable[..., Chunk], extent: int
) -> Callable[[np.ndarray], Chunk]:
    """A function that gathers from one dataset below an index, and from another from there on."""

    def gather(index: np.ndarray) -> Chunk:
        low = index < extent
        if low.all():
            return first(index)
        if not low.any():
            return second(index - extent)
        leaves = []
        parts = first(index[low]), second(index[~low] - extent)
        for one, other in zip(*parts, strict=True):
            out = _empty((len(index), *one.shape[1:]), one.dtype)
            out[low], out[~low] = one, other
            leaves.append(out)
        return leaves

    return gather


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array to be filled; one of numbers may become a tensor without being copied."""
    return np.empty(shape, dtype) if dtype.hasobject else transfers.fresh(shape, dtype)
