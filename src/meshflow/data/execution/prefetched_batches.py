"""Batches that are gathered from arrays: small batches in groups, and some of them in advance."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.data import structure
from meshflow.data.execution.batched_gather import BatchedGather, Gather, StartedGather
from meshflow.data.execution.chunks import resize_blocks
from meshflow.data.execution.failures import ResumingIterator
from meshflow.environment.types import PyTree

# Small batches are gathered in groups of this many elements and bytes. Two groups, one in use and
# one being filled, fit into the caches of a processor core.
_GROUP_SIZE, _GROUP_BYTES = 1024, 1 << 19
# Larger groups are only gathered in advance on request.
_MAX_PREFETCHED_BYTES = 1 << 21


class PrefetchedBatches(ResumingIterator):
    """Batches of gathered elements.

    Args:
      blocks: Arrays of indices.
      gather: Function from indices to stacked leaves.
      spec: Structure of the leaves.
      size: Number of elements in a batch.
      drop: Whether to drop a smaller last batch.
    """

    def __init__(
        self, blocks: Iterator[np.ndarray], gather: Gather, spec: PyTree, size: int, drop: bool
    ) -> None:
        self._batches, self._gather = iter(resize_blocks(blocks, size)), gather
        self._pack, self._size, self._drop = structure.make_packer(spec), size, drop
        # Two groups are gathered in advance, because the other thread may be descheduled for a
        # while. Large groups are only gathered in advance if `start_prefetching` was called.
        self._num_prefetched, self._is_requested = 2, False
        super().__init__(self._iter_batches, blocks)

    def start_prefetching(self, size: int) -> bool:
        """Gather so many batches in advance from now on, if another thread can do so.

        Args:
          size: Number of batches.

        Returns:
          Whether batches are gathered in advance.
        """
        if not isinstance(self._gather, BatchedGather) or not self._gather.can_start:
            return False
        self._num_prefetched, self._is_requested = size, True
        return True

    def _iter_batches(self) -> Iterator[Any]:
        size, pack = self._size, self._pack
        for leaves in self._iter_groups():
            count = len(leaves[0])
            for start in range(0, count, size):
                rows = [a[start : start + size] for a in leaves]
                if len(rows[0]) == size or not self._drop:
                    yield pack(rows)

    def _iter_groups(self) -> Iterator[list[Any]]:
        first = next(self._batches, None)
        if first is None:
            return
        leaves = self._gather(first)
        yield leaves
        size = sum(a.nbytes for a in leaves)
        groups = _group_blocks(
            self._batches, max(1, min(_GROUP_SIZE // len(first), _GROUP_BYTES // (size + 1)))
        )
        gather = self._gather
        if not isinstance(gather, BatchedGather):
            for group in groups:
                yield from self._gather_group(group)
            return
        started: collections.deque[StartedGather] = collections.deque()
        for group in groups:
            if size <= _MAX_PREFETCHED_BYTES or self._is_requested:
                started.append(gather.start(group))
                if len(started) > self._num_prefetched:
                    yield gather.finish(started.popleft())
            else:
                yield gather(group)
        while started:
            yield gather.finish(started.popleft())

    def _gather_group(self, indices: np.ndarray) -> Iterator[list[Any]]:
        """Gather several batches together, or one by one if one of them raises an error."""
        try:
            leaves = self._gather(indices)
        except Exception:
            if len(indices) <= self._size:
                raise
            starts = range(0, len(indices), self._size)
            batches = iter([indices[i : i + self._size] for i in starts])
            # Iteration continues with the batches after the error.
            self._batches = itertools.chain(batches, self._batches)
            yield from map(self._gather, batches)
        else:
            yield leaves


def _group_blocks(blocks: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
    if count == 1:
        yield from blocks
        return
    while group := list(itertools.islice(blocks, count)):
        yield np.concatenate(group)
