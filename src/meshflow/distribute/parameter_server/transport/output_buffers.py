"""Memory that XLA programs write their outputs to, so that another process reads them without a copy.

The compiled kernels intercept XLA's allocation of buffers. Memory that a thread offers receives the
next buffers of a fitting size that the thread allocates; all other buffers are from the ordinary
allocator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from meshflow.kernels import library

# Memory that its owner has released while an XLA array was still in it, by address.
_retained: dict[int, np.ndarray] = {}


def is_supported() -> bool:
    """Check whether XLA programs can write their outputs to memory of this package.

    This needs the compiled kernels, and a build of XLA in which they can intercept allocations.
    """
    kernels = library.load()
    return kernels is not None and kernels.accepts_offers


@contextlib.contextmanager
def offer_memory(memories: Sequence[tuple[np.ndarray, int]]) -> Iterator[None]:
    """Offer memory for the outputs of programs that run in this context, in the current thread.

    Each memory receives at most one array. Nothing happens where `is_supported` is false.

    Args:
      memories: Pairs of memory and the minimum size in bytes of the array that it may receive.
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


def holds_array(address: int) -> bool:
    """Check whether an XLA array is stored in offered memory.

    Args:
      address: Start address of the memory.
    """
    kernels = library.load()
    return kernels is not None and kernels.holds_memory(address)


def retain_memory(memory: np.ndarray) -> None:
    """Keep released memory mapped for as long as an XLA array is stored in it.

    Args:
      memory: The released memory, whether or not it was offered.
    """
    for address in [a for a in list(_retained) if not holds_array(a)]:
        _retained.pop(address, None)
    if holds_array(memory.ctypes.data):
        _retained[memory.ctypes.data] = memory
