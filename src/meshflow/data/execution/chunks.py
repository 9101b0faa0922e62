"""Chunks: many consecutive elements as a list of stacked leaves.

Chunks are the form of a dataset between a stream of indices and single elements. A stream of chunks
contains a `Failure` where an element could not be computed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.execution.failures import Failure, close_iterator
from meshflow.environment.types import PyTree

Chunk = list[Any]

# Largest number of elements in a chunk, and the largest size of a chunk in bytes.
MAX_CHUNK_SIZE, _BYTES = 256, 1 << 22
# Estimated size of a string, which the size of a chunk is based on.
_STRING_BYTES = 64


@contextlib.contextmanager
def _close_at_exit(
    iterator: Iterator[Any], close: Callable[[Iterator[Any]], None] = close_iterator
) -> Iterator[None]:
    """Close an iterator when the block is left."""
    try:
        yield
    finally:
        close(iterator)


def is_stackable(spec: PyTree) -> bool:
    """Check whether elements of a spec can be stacked: all leaves are tensors of known sizes."""
    leaves = nest.flatten(spec) if spec is not None else []
    return bool(leaves) and all(
        isinstance(s, TensorSpec) and s.shape.is_fully_defined() for s in leaves
    )


def choose_chunk_size(spec: PyTree) -> int:
    """Return the number of elements in a chunk."""
    bytes_each = 1
    for leaf in nest.flatten(spec):
        if not isinstance(leaf, TensorSpec) or not leaf.shape.is_fully_defined():
            continue
        width = _STRING_BYTES if leaf.dtype is dtypes.string else leaf.dtype.size
        bytes_each += math.prod(leaf.shape.as_list()) * width
    return max(1, min(MAX_CHUNK_SIZE, _BYTES // bytes_each))


def count_elements(chunk: Chunk) -> int:
    """Return the number of elements of a chunk."""
    return len(chunk[0])


def matches_spec(chunk: Chunk, spec: PyTree) -> bool:
    """Check whether the elements of a chunk have the sizes of a spec."""
    leaves = zip(chunk, nest.flatten(spec), strict=True)
    return all(a.shape[1:] == tuple(s.shape.as_list()) for a, s in leaves)


def slice_chunk(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Return the elements of a chunk from `start` to `stop`."""
    return [a[start:stop] for a in chunk]


def pad_chunk(chunk: Chunk, size: int) -> Chunk:
    """Pad a chunk to a size by repeating its last element."""
    missing = size - count_elements(chunk)
    if not missing:
        return chunk
    return [np.concatenate([a, np.broadcast_to(a[-1:], (missing, *a.shape[1:]))]) for a in chunk]


def choose_program_size(count: int, sizes: Collection[int]) -> int:
    """Choose the number of elements that a program is compiled for.

    Programs are compiled for few sizes; smaller chunks are padded.

    Args:
      count: Number of elements.
      sizes: Sizes that have been compiled already.
    """
    large = [s for s in sizes if count <= s <= 4 * count]
    if count in sizes or not large:
        return count if len(sizes) < 3 else 1 << (count - 1).bit_length()
    return min(large)


class ProgramSizes:
    """The numbers of elements that the programs of a function were compiled for."""

    def __init__(self) -> None:
        self._sizes: set[int] = set()

    def pad_chunk(self, chunk: Chunk) -> Chunk:
        """Pad a chunk to one of these sizes, or add its own size."""
        size = choose_program_size(count_elements(chunk), self._sizes)
        self._sizes.add(size)
        return pad_chunk(chunk, size)


def concatenate_chunks(parts: list[Chunk]) -> Chunk:
    """Concatenate chunks.

    Raises:
      InvalidArgumentError: If the shapes of the elements differ.
    """
    if len(parts) == 1:
        return parts[0]
    leaves = []
    for arrays in zip(*parts, strict=True):
        first = arrays[0]
        if any(a.shape[1:] != first.shape[1:] for a in arrays):
            # Stacking single elements raises the error that names the element.
            return nest.flatten(
                structure.stack_elements(
                    [tuple(row) for p in parts for row in zip(*p, strict=True)]
                )
            )
        if first.dtype.hasobject or any(a.dtype != first.dtype for a in arrays):
            leaves.append(np.concatenate(arrays))
            continue
        out = transfers.allocate((sum(map(len, arrays)), *first.shape[1:]), first.dtype)
        leaves.append(np.concatenate(arrays, out=out))
    return leaves


def unpack_chunks(chunks: Iterator[Any], spec: PyTree) -> Iterator[Any]:
    """Iterate over the elements of chunks, and failures."""
    pack = structure.make_packer(spec)
    with _close_at_exit(chunks):
        for chunk in chunks:
            if type(chunk) is Failure:
                yield chunk
            else:
                yield from map(pack, map(list, zip(*map(iter_leaf, chunk), strict=True)))


def iter_leaf(leaf: np.ndarray) -> Iterator[Any]:
    """Iterate over the items of a leaf as arrays."""
    if leaf.ndim == 1 or leaf.dtype == object:
        return map(structure.item_to_array, leaf)
    return iter(leaf)


def wrap_elements(elements: Iterator[Any]) -> Iterator[Any]:
    """Wrap every element in a chunk of its own, so that no element waits for the next one."""
    for element in elements:
        if type(element) is Failure:
            yield element
        else:
            yield [_add_axis(leaf) for leaf in nest.flatten(element)]


def _add_axis(leaf: np.ndarray) -> np.ndarray:
    return leaf.reshape(1) if leaf.ndim == 0 else leaf[None]


def map_chunks(fn: Callable[[Chunk], Chunk | None], chunks: Iterator[Any]) -> Iterator[Any]:
    """Apply a function to chunks; if it fails, apply it to the elements of the chunk one by one.

    Args:
      fn: Function from a chunk to a chunk, or None if no element is left.
      chunks: The chunks.
    """
    with _close_at_exit(chunks):
        for chunk in chunks:
            if type(chunk) is Failure:
                yield chunk
                continue
            try:
                results: Any = [fn(chunk)]
            except Exception as error:
                results = (
                    _map_elements(fn, chunk) if count_elements(chunk) > 1 else [Failure(error)]
                )
            for item in results:
                if item is not None:
                    yield item


def expand_chunks(fn: Callable[[Chunk], Iterable[Any]], chunks: Iterator[Any]) -> Iterator[Any]:
    """Replace each chunk by the chunks and failures that a function returns for it."""
    with _close_at_exit(chunks):
        for chunk in chunks:
            if type(chunk) is Failure:
                yield chunk
            else:
                yield from fn(chunk)


def _map_elements(fn: Callable[[Chunk], Chunk | None], chunk: Chunk) -> Iterator[Any]:
    """Apply a function to each element of a chunk, as a chunk of one element."""
    for i in range(count_elements(chunk)):
        try:
            item: Any = fn(slice_chunk(chunk, i, i + 1))
        except Exception as error:
            item = Failure(error)
        yield item


def regroup_chunks(chunks: Iterator[Any], size: int, drop: bool) -> Iterator[Any]:
    """Change the size of chunks; a new chunk in which an element failed is replaced by the failure.

    Args:
      chunks: Chunks of any sizes.
      size: Number of elements in a new chunk.
      drop: Whether to drop a smaller last chunk.
    """
    pending: list[Chunk] = []
    count = 0
    failure: Failure | None = None

    def finish_chunk() -> Chunk | Failure:
        nonlocal pending, count, failure
        parts, first_failure = pending, failure
        pending, count, failure = [], 0, None
        if first_failure is not None:
            return first_failure
        try:
            return concatenate_chunks(parts)
        except Exception as error:
            return Failure(error)

    with _close_at_exit(chunks):
        for chunk in chunks:
            if type(chunk) is Failure:
                failure, count = failure or chunk, count + 1
                if count == size:
                    yield finish_chunk()
                continue
            start, stop = 0, count_elements(chunk)
            while start < stop:
                step = min(size - count, stop - start)
                pending.append(slice_chunk(chunk, start, start + step))
                start, count = start + step, count + step
                if count == size:
                    yield finish_chunk()
        if count and (failure is not None or not drop):
            yield finish_chunk()


def merge_chunks(chunks: Iterator[Any], size: int) -> Iterator[Any]:
    """Concatenate small chunks, up to a size."""
    pending: list[Chunk] = []
    count = 0
    with _close_at_exit(chunks):
        for chunk in chunks:
            is_separate = type(chunk) is Failure or 4 * count_elements(chunk) > size
            differs = pending and not is_separate and not are_stackable(pending[0], chunk)
            if pending and (is_separate or differs or count + count_elements(chunk) > size):
                yield concatenate_chunks(pending)
                pending, count = [], 0
            if is_separate:
                yield chunk
            else:
                pending.append(chunk)
                count += count_elements(chunk)
        if pending:
            yield concatenate_chunks(pending)


def are_stackable(first: Chunk, second: Chunk) -> bool:
    """Check whether the elements of two chunks can be stacked."""
    return all(
        a.shape[1:] == b.shape[1:] and a.dtype == b.dtype
        for a, b in zip(first, second, strict=True)
    )


def resize_blocks(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Change the size of blocks of indices; the last block may be smaller."""
    pending: list[np.ndarray] = []
    count = 0
    for block in blocks:
        while count + len(block) >= size:
            cut = size - count
            yield np.concatenate([*pending, block[:cut]]) if pending else block[:cut]
            block, pending, count = block[cut:], [], 0
        if len(block):
            pending.append(block)
            count += len(block)
    if pending:
        yield np.concatenate(pending)


def gather_chunks(
    gather: Callable[..., Chunk], blocks: Iterator[np.ndarray], size: int
) -> Iterator[Any]:
    """Gather the elements of a stream of indices in chunks.

    Args:
      gather: Function from indices to a chunk.
      blocks: Arrays of indices.
      size: Number of elements in a chunk.
    """
    with _close_at_exit(blocks):
        for block in resize_blocks(blocks, size):
            try:
                results: Any = [gather(block)]
            except Exception as error:
                results = [Failure(error)]
                if len(block) > 1:
                    # Gathering the elements one by one finds those that fail.
                    results = _map_elements(lambda index: gather(index[0]), [block])
            yield from results
