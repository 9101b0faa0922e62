"""Memory for large arrays that come again and again. Fresh pages cost more than filling them, so what nobody has is reused."""

from __future__ import annotations

import sys

import numpy as np

from meshflow.core.runtime import transfers

__all__ = ["Buffers"]

# So many buffers of at least so many bytes are kept; what the list and the loop over it count as references.
_MOST, _LARGE, _ONLY_HERE = 64, 1 << 20, 3


class Buffers:
    """Buffers of bytes that are filled once, and then only read until nobody has them any more; for one thread at a time."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []

    def get(self, size: int) -> np.ndarray:
        """Bytes to be filled.

        Args:
          size: how many.
        """
        if size < _LARGE:
            return transfers.fresh((size,), np.uint8)
        transfers.let_go()
        for kept in self._kept:
            if kept.nbytes == size and sys.getrefcount(kept) == _ONLY_HERE:
                return kept
        made = transfers.fresh((size,), np.uint8)
        self._kept.append(made)
        del self._kept[:-_MOST]
        return made
