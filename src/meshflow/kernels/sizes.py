"""How large a computation must be for a handler, and for more threads than the one that calls.

The numbers come from benchmarks/small_kernels.py and are the same on every machine and for whatever
a result is divided into: how many devices there are changes no choice, and so no bits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from meshflow.kernels import descriptors

# Multiply-adds (elements of a sum) below which XLA's own loop costs less than the call of a handler.
LEAST_WORK = 1 << 17
# The same of a convolution: XLA's own takes 25 us wherever it has more to do than that, a handler 10. On processors without
# AVX-512 XLA's sums depend on an image's size as well, so that parts of one would not have the bits of the whole.
LEAST_CONVOLUTION = 1 << 11
# Work up to which the calling thread computes alone: waking a team of threads takes 10-60 us, in which one
# thread does this much.
MOST_INLINE = 1 << 22
# An element read or written takes as long as so many multiply-adds.
ELEMENT_WORK = 8
# Multiply-adds from which XLA computes a float32 vector's product with a matrix in 0.4 to 0.7 of oneDNN's time. Two
# rows gain nothing, and the gradient of such a matrix would lose: XLA takes 10 times as long for narrow results.
VECTOR_WORK = 1 << 18


class _Thread(threading.local):
    """Whether programs that this thread makes are to be computed by the thread that calls them."""

    is_alone = False


_thread = _Thread()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Programs made inside take one core: others compute at the same time on all that there are."""
    saved, _thread.is_alone = _thread.is_alone, True
    try:
        yield
    finally:
        _thread.is_alone = saved


def worth_a_call(work: float) -> bool:
    """Whether a product of so many multiply-adds is worth the call of a handler."""
    return work >= LEAST_WORK


def convolution_worth_a_call(work: float) -> bool:
    """Whether a convolution of so many multiply-adds is worth the call of a handler."""
    return work >= LEAST_CONVOLUTION


def is_vectors(result: Sequence[int], work: float, dtype: np.dtype) -> bool:
    """Whether a product is one of a large matrix with a vector, which XLA reads faster.

    Args:
      result: its sizes, batches first.
      work: multiply-adds.
      dtype: of the operands.
    """
    alone = len(result) == 2 and result[0] == 1
    return alone and work >= VECTOR_WORK and dtype == np.float32


def placed(descriptor: Sequence[int], work: float, elements: int) -> list[int]:
    """A descriptor that says whether the calling thread computes alone.

    Args:
      descriptor: of the whole computation.
      work: its multiply-adds.
      elements: those of its operands and its result.
    """
    alone = _thread.is_alone or work + ELEMENT_WORK * elements <= MOST_INLINE
    return descriptors.inline(descriptor) if alone else list(descriptor)
