"""Arrays of XLA in memory of ours: what a program makes can lie where another process reads it, without a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from meshflow.kernels import library

__all__ = ["holds", "keep", "offered", "possible"]

# Memory of nobody else in which there still is an array, by address.
_kept: dict[int, np.ndarray] = {}


def possible() -> bool:
    """Whether arrays of XLA may lie in memory of ours: with the compiled kernels, unless they leave its buffers alone."""
    kernels = library.load()
    return kernels is not None and kernels.places


@contextlib.contextmanager
def offered(memories: Sequence[tuple[np.ndarray, int]]) -> Iterator[None]:
    """What programs that run inside in this thread make lies in these memories: one array in each, if it is as large.

    Nothing happens where that is not `possible`.

    Args:
      memories: each with how many bytes the array has.
    """
    kernels = library.load() if memories else None
    if kernels is None:
        yield
        return
    try:
        for memory, size in memories:
            kernels.offer_memory(memory.ctypes.data, size, memory.nbytes)
        yield
    finally:
        kernels.withdraw_memory()


def holds(address: int) -> bool:
    """Whether an array of XLA lies in a memory.

    Args:
      address: where it begins.
    """
    kernels = library.load()
    return kernels is not None and kernels.holds_memory(address)


def keep(memory: np.ndarray) -> None:
    """Has memory that is given up stay mapped as long as an array of XLA lies in it.

    Args:
      memory: one that was offered, or another.
    """
    for address in [a for a in list(_kept) if not holds(a)]:
        _kept.pop(address, None)
    if holds(memory.ctypes.data):
        _kept[memory.ctypes.data] = memory
