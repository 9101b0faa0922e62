"""Windows of consecutive elements as stacked arrays, without a dataset for each window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.data.execution import chunks
from meshflow.data.execution.chunks import Chunk
from meshflow.data.execution.failures import Failure, close_iterator


class WindowBuffer:
    """The elements that later windows contain.

    Args:
      size: Number of elements in a window.
      shift: Number of elements between the starts of windows.
      stride: Distance between the elements of a window.
    """

    def __init__(self, size: int, shift: int, stride: int) -> None:
        self._span, self._shift, self._stride = (size - 1) * stride + 1, shift, stride
        self._rows: Chunk = []
        # The next window starts at this row, which may follow the last one.
        self._start = 0
        # These rows are failures.
        self._failures: dict[int, Failure] = {}

    def append(self, chunk: Chunk, failure: Failure | None = None) -> None:
        """Add elements.

        Args:
          chunk: The elements.
          failure: The failure that the only element of the chunk stands for.
        """
        skipped = min(self._start, self._count)
        rest = chunks.slice_chunk(self._rows, skipped, self._count)
        count = self._count - skipped
        self._start -= skipped
        self._failures = {row - skipped: f for row, f in self._failures.items() if row >= skipped}
        if failure is not None:
            self._failures[count] = failure
        self._rows = chunks.concatenate_chunks([rest, chunk]) if count else chunk

    @property
    def _count(self) -> int:
        return len(self._rows[0]) if self._rows else 0

    def take(self, limit: int, has_ended: bool = False) -> Chunk | Failure | None:
        """Return the next windows as arrays of shape [windows, size, ...], or a failure in one of them.

        Args:
          limit: Largest number of windows.
          has_ended: Whether no elements follow, so that the next window may be smaller.
        """
        start = self._start
        num_ready = max(0, (self._count - self._span - start) // self._shift + 1)
        if not num_ready and has_ended and start < self._count:
            num_ready = 1
        if not num_ready:
            return None
        num_windows = min(num_ready, 1 if self._failures else limit)
        self._start += num_windows * self._shift
        span = min(self._span, self._count - start)
        for row, failure in self._failures.items():
            if row in range(start, start + span, self._stride):
                return failure
        return [self._stack_windows(leaf, start, num_windows, span) for leaf in self._rows]

    def _stack_windows(self, leaf: np.ndarray, start: int, count: int, span: int) -> np.ndarray:
        stop = start + (count - 1) * self._shift + span
        view = np.lib.stride_tricks.sliding_window_view(leaf[start:stop], span, axis=0)
        view = np.moveaxis(view[:: self._shift, ..., :: self._stride], -1, 1)
        if leaf.dtype.hasobject:
            return view.copy()
        out = transfers.allocate(view.shape, leaf.dtype)
        out[...] = view
        return out


def stack_windows(
    parts: Iterator[Any], buffer: WindowBuffer, blank: Chunk, limit: int, drop: bool
) -> Iterator[Any]:
    """Stack windows of elements; a failure is an element of every window that contains it.

    Args:
      parts: Chunks of the elements, and failures.
      buffer: An empty buffer, which determines the windows.
      blank: Chunk of one element that replaces a failure in the buffer.
      limit: Largest number of windows in a chunk of them.
      drop: Whether to drop smaller windows at the end.
    """
    try:
        for part in parts:
            if type(part) is Failure:
                buffer.append(blank, part)
            else:
                buffer.append(part)
            while (windows := buffer.take(limit)) is not None:
                yield windows
        while not drop and (windows := buffer.take(1, has_ended=True)) is not None:
            yield windows
    finally:
        close_iterator(parts)
