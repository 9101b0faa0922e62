"""Batches of rows of arrays, several of small ones gathered at once, and some begun ahead."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.data import structure
from meshflow.data.execution.batched_gather import BatchedGather, Begun, Gather
from meshflow.data.execution.chunks import reblocked
from meshflow.data.execution.resumable import Resuming

# Elements that are gathered at once where batches are small, and the bytes they may take: of two such
# groups, one in use and one being filled, a processor's own caches have both.
_CHUNK, _CHUNK_BYTES = 1024, 1 << 19
# Larger groups are not begun before they are asked for, unless that is asked for.
_AHEAD_BYTES = 1 << 21


class PrefetchedBatches(Resuming):
    """Batches of what is gathered.

    Args:
      blocks: arrays of indices.
      gather: from indices to stacked leaves.
      spec: the structure of the leaves.
      size: how many elements make a batch.
      drop: whether fewer at the end are left out.
    """

    def __init__(
        self, blocks: Iterator[np.ndarray], gather: Gather, spec: Any, size: int, drop: bool
    ) -> None:
        self._blocks, self._gather = blocks, gather
        self._pack, self._size, self._drop = structure.packer(spec), size, drop
        # How many groups are begun ahead: two, as the other thread may lose its processor for a while, and
        # only small ones unless it was asked for.
        self._ahead, self._asked = 2, False
        super().__init__(self._batches, blocks)

    def go_ahead(self, size: int) -> bool:
        """Begins so many batches before they are asked for from now on, if another thread can do that."""
        if not isinstance(self._gather, BatchedGather) or not self._gather.begins:
            return False
        self._ahead, self._asked = size, True
        return True

    def _batches(self) -> Iterator[Any]:
        size, pack = self._size, self._pack
        for leaves in self._groups():
            count = len(leaves[0])
            for start in range(0, count, size):
                rows = [a[start : start + size] for a in leaves]
                if len(rows[0]) == size or not self._drop:
                    yield pack(rows)

    def _groups(self) -> Iterator[list[Any]]:
        single = reblocked(self._blocks, self._size)
        first = next(single, None)
        if first is None:
            return
        leaves = self._gather(first)
        yield leaves
        size = sum(a.nbytes for a in leaves)
        groups = _grouped(single, max(1, min(_CHUNK // len(first), _CHUNK_BYTES // (size + 1))))
        gather = self._gather
        if not isinstance(gather, BatchedGather):
            yield from map(gather, groups)
            return
        begun: collections.deque[Begun] = collections.deque()
        for group in groups:
            if size <= _AHEAD_BYTES or self._asked:
                begun.append(gather.begin(group))
                if len(begun) > self._ahead:
                    yield gather.finish(begun.popleft())
            else:
                yield gather(group)
        while begun:
            yield gather.finish(begun.popleft())


def _grouped(blocks: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
    if count == 1:
        yield from blocks
        return
    while group := list(itertools.islice(blocks, count)):
        yield np.concatenate(group)
