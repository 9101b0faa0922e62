"""Memory for large arrays that come again and again. Fresh pages cost more than filling them, so what nobody has is reused."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.distribute.parameter_server import placed

__all__ = ["Buffers", "Spares"]

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


class Spares:
    """Arrays whose memory programs are given for what they make, by who reads that.

    What goes to another process of the machine lies where that reads it, and is free again when it was read. One thread
    gets, another one may put meanwhile.
    """

    def __init__(self) -> None:
        self._by_reader: weakref.WeakKeyDictionary[Any, dict[Any, list[Any]]]
        self._by_reader = weakref.WeakKeyDictionary()

    def get(self, server: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array of anything.

        Args:
          server: who reads what comes to be in its memory.
          shape: its shape.
          dtype: its dtype.
        """
        wire = getattr(server, "wire", None)
        kept = self._of(server, shape, dtype)
        for at, value in enumerate(kept):
            if wire is None or wire.is_free(value):
                return kept.pop(at)
        zeros = np.zeros(shape, dtype)
        if wire is None:
            return transfers.transfer(zeros, copy=False)
        with wire.placing([zeros.nbytes]):
            return transfers.transfer(zeros)

    def put(self, server: Any, value: Any) -> None:
        """Takes an array that nobody here needs any more.

        Args:
          server: who has read it, or still does.
          value: the array.
        """
        wire = getattr(server, "wire", None)
        is_read = wire is not None and wire.reads(value)
        # What lies where a connection that was lost had it would be copied from now on.
        if is_read or not placed.holds(np.asarray(value).ctypes.data):
            self._of(server, value.shape, value.dtype).append(value)

    def _of(self, server: Any, shape: tuple[int, ...], dtype: np.dtype) -> list[Any]:
        # A connection takes them with it.
        kept = self._by_reader.setdefault(getattr(server, "wire", None) or server, {})
        return kept.setdefault((shape, np.dtype(dtype)), [])
