"""Many elements at a time: the form of a dataset between a stream of indices and single elements.

A chunk is a list of the stacked leaves of consecutive elements. In the place of an element that
cannot be made there is a `Failed`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.execution.resumable import Failed, close

Chunk = list[Any]

# Elements of a chunk, and the bytes they may take.
BLOCK, _BYTES = 256, 1 << 22
# What a string is thought to take.
_STRING_BYTES = 64


@contextlib.contextmanager
def _closing(iterator: Iterator[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        close(iterator)


def stackable(spec: Any) -> bool:
    """Whether elements of a spec can be stacked: tensors of known sizes."""
    leaves = nest.flatten(spec) if spec is not None else []
    return bool(leaves) and all(
        isinstance(s, TensorSpec) and s.shape.is_fully_defined() for s in leaves
    )


def size_for(spec: Any) -> int:
    """How many elements of a spec a chunk has."""
    bytes_each = 1
    for leaf in nest.flatten(spec):
        if not isinstance(leaf, TensorSpec) or not leaf.shape.is_fully_defined():
            continue
        width = _STRING_BYTES if leaf.dtype is dtypes.string else leaf.dtype.size
        bytes_each += math.prod(leaf.shape.as_list()) * width
    return max(1, min(BLOCK, _BYTES // bytes_each))


def length(chunk: Chunk) -> int:
    """How many elements a chunk has."""
    return len(chunk[0])


def fits(chunk: Chunk, spec: Any) -> bool:
    """Whether the elements of a chunk have the sizes that a spec says: an element's may differ."""
    leaves = zip(chunk, nest.flatten(spec), strict=True)
    return all(a.shape[1:] == tuple(s.shape.as_list()) for a, s in leaves)


def part(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Some of a chunk's elements."""
    return [a[start:stop] for a in chunk]


def filled_up(chunk: Chunk, size: int) -> Chunk:
    """A chunk of a size, the last element again and again where there are fewer."""
    missing = size - length(chunk)
    if not missing:
        return chunk
    return [np.concatenate([a, np.broadcast_to(a[-1:], (missing, *a.shape[1:]))]) for a in chunk]


def size_to_run(count: int, sizes: Collection[int]) -> int:
    """For how many elements a program is to run for some: not for every number one is compiled.

    Args:
      count: how many elements there are.
      sizes: for how many it has been compiled.
    """
    large = [s for s in sizes if count <= s <= 4 * count]
    if count in sizes or not large:
        return count if len(sizes) < 3 else 1 << (count - 1).bit_length()
    return min(large)


def joined(parts: list[Chunk]) -> Chunk:
    """The elements of several chunks as one.

    Raises:
      InvalidArgumentError: when their sizes differ.
    """
    if len(parts) == 1:
        return parts[0]
    leaves = []
    for arrays in zip(*parts, strict=True):
        first = arrays[0]
        if any(a.shape[1:] != first.shape[1:] for a in arrays):
            # As for single elements, with its error.
            return nest.flatten(
                structure.stack([tuple(row) for p in parts for row in zip(*p, strict=True)])
            )
        if first.dtype.hasobject or any(a.dtype != first.dtype for a in arrays):
            leaves.append(np.concatenate(arrays))
            continue
        whole = transfers.fresh((sum(map(len, arrays)), *first.shape[1:]), first.dtype)
        leaves.append(np.concatenate(arrays, out=whole))
    return leaves


def rows(chunks: Iterator[Any], spec: Any) -> Iterator[Any]:
    """The elements of chunks one by one, or failures."""
    pack = structure.packer(spec)
    with _closing(chunks):
        for chunk in chunks:
            if type(chunk) is Failed:
                yield chunk
            else:
                yield from map(pack, map(list, zip(*map(_single, chunk), strict=True)))


def _single(leaf: np.ndarray) -> Iterator[Any]:
    """What is in an array of one more axis, as arrays."""
    if leaf.ndim == 1 or leaf.dtype == object:
        return map(structure.scalar, leaf)
    return iter(leaf)


def singles(elements: Iterator[Any]) -> Iterator[Any]:
    """Elements as chunks of one, where nobody must wait for the next."""
    for element in elements:
        if type(element) is Failed:
            yield element
        else:
            yield [_stacked_alone(leaf) for leaf in nest.flatten(element)]


def _stacked_alone(leaf: np.ndarray) -> np.ndarray:
    return leaf.reshape(1) if leaf.ndim == 0 else leaf[None]


def applied(fn: Callable[[Chunk], Chunk | None], chunks: Iterator[Any]) -> Iterator[Any]:
    """What a function makes of chunks; one that it cannot make is made element by element.

    Args:
      fn: from a chunk to a chunk; None for no elements.
      chunks: the chunks.
    """
    with _closing(chunks):
        for chunk in chunks:
            if type(chunk) is Failed:
                yield chunk
                continue
            try:
                found: Any = [fn(chunk)]
            except Exception as error:
                found = _one_by_one(fn, chunk) if length(chunk) > 1 else [Failed(error)]
            for item in found:
                if item is not None:
                    yield item


def _one_by_one(fn: Callable[[Chunk], Chunk | None], chunk: Chunk) -> Iterator[Any]:
    for at in range(length(chunk)):
        try:
            item: Any = fn(part(chunk, at, at + 1))
        except Exception as error:
            item = Failed(error)
        yield item


def regrouped(chunks: Iterator[Any], size: int, drop: bool) -> Iterator[Any]:
    """Chunks of one size; one with a failure is lost as a whole.

    Args:
      chunks: chunks of any sizes.
      size: how many elements each is to have.
      drop: whether fewer at the end are left out.
    """
    held: list[Chunk] = []
    count = 0
    failed: Failed | None = None

    def finished() -> Any:
        nonlocal held, count, failed
        parts, hole = held, failed
        held, count, failed = [], 0, None
        if hole is not None:
            return hole
        try:
            return joined(parts)
        except Exception as error:
            return Failed(error)

    with _closing(chunks):
        for chunk in chunks:
            if type(chunk) is Failed:
                failed, count = failed or chunk, count + 1
                if count == size:
                    yield finished()
                continue
            start, stop = 0, length(chunk)
            while start < stop:
                taken = min(size - count, stop - start)
                held.append(part(chunk, start, start + taken))
                start, count = start + taken, count + taken
                if count == size:
                    yield finished()
        if count and (failed is not None or not drop):
            yield finished()


def merged(chunks: Iterator[Any], size: int) -> Iterator[Any]:
    """Chunks with small ones joined, up to a size."""
    held: list[Chunk] = []
    count = 0
    with _closing(chunks):
        for chunk in chunks:
            whole = type(chunk) is Failed or 4 * length(chunk) > size
            different = held and not whole and not alike(held[0], chunk)
            if held and (whole or different or count + length(chunk) > size):
                yield joined(held)
                held, count = [], 0
            if whole:
                yield chunk
            else:
                held.append(chunk)
                count += length(chunk)
        if held:
            yield joined(held)


def alike(first: Chunk, second: Chunk) -> bool:
    """Whether the elements of two chunks can be stacked."""
    return all(
        a.shape[1:] == b.shape[1:] and a.dtype == b.dtype
        for a, b in zip(first, second, strict=True)
    )


def reblocked(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Index blocks of one size; the last may be smaller."""
    held: list[np.ndarray] = []
    count = 0
    for block in blocks:
        while count + len(block) >= size:
            cut = size - count
            yield np.concatenate([*held, block[:cut]]) if held else block[:cut]
            block, held, count = block[cut:], [], 0
        if len(block):
            held.append(block)
            count += len(block)
    if held:
        yield np.concatenate(held)


def gathered(
    gather: Callable[..., Chunk], blocks: Iterator[np.ndarray], size: int
) -> Iterator[Any]:
    """The chunks of a stream of indices."""
    with _closing(blocks):
        for block in reblocked(blocks, size):
            try:
                found: Any = [gather(block)]
            except Exception as error:
                found = [Failed(error)]
                if len(block) > 1:
                    # One by one, to find those that cannot be made.
                    found = _one_by_one(lambda index: gather(index[0]), [block])
            yield from found
