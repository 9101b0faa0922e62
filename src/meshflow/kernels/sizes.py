"""Thresholds from which a computation is worth a handler call, or more than one thread.

The values come from benchmarks/small_kernels.py. They depend neither on the machine nor on the
number of devices over which a result is split, so the choice of code, and with it the bits of the
result, does not either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from meshflow.kernels import descriptors

# Multiply-adds (elements of a sum) below which XLA's loop is faster than the call of a handler.
MIN_PRODUCT_WORK = 1 << 17
# The same for convolutions: above this, XLA's code takes at least 25 us, a handler 10 us. On
# processors without AVX-512, XLA's order of summation depends on the size of the image, so that
# shards would not have the bits of the full convolution.
MIN_CONVOLUTION_WORK = 1 << 11
# Work up to which the calling thread computes without others: one thread does as much in the 10 to
# 60 us that it takes to wake a team of threads.
MAX_INLINE_WORK = 1 << 22
# Number of multiply-adds that take as long as reading or writing one element.
ELEMENT_WORK = 8
# Multiply-adds from which XLA multiplies a float32 vector by a matrix in 0.4 to 0.7 of oneDNN's
# time. Two rows are not faster, and the gradient of such a matrix would be slower: XLA takes 10
# times as long for narrow results.
VECTOR_WORK = 1 << 18


class _Thread(threading.local):
    """Whether programs created by this thread run on the calling thread only."""

    is_single_core = False


_thread = _Thread()


@contextlib.contextmanager
def single_core_scope() -> Iterator[None]:
    """Make programs created inside use one core, because other programs run at the same time."""
    saved, _thread.is_single_core = _thread.is_single_core, True
    try:
        yield
    finally:
        _thread.is_single_core = saved


def is_product_worth_call(work: float) -> bool:
    """Check whether a product with this many multiply-adds is worth the call of a handler."""
    return work >= MIN_PRODUCT_WORK


def is_convolution_worth_call(work: float) -> bool:
    """Check whether a convolution with this many multiply-adds is worth the call of a handler."""
    return work >= MIN_CONVOLUTION_WORK


def is_vector_product(result: Sequence[int], work: float, dtype: np.dtype) -> bool:
    """Check whether a product is one of a vector with a large matrix, for which XLA is faster."""
    is_row = len(result) == 2 and result[0] == 1
    return is_row and work >= VECTOR_WORK and dtype == np.float32


def choose_threading(descriptor: Sequence[int], work: float, elements: int) -> list[int]:
    """Return a descriptor that runs on the calling thread only, if the computation is small."""
    is_inline = _thread.is_single_core or work + ELEMENT_WORK * elements <= MAX_INLINE_WORK
    return descriptors.with_inline_flag(descriptor) if is_inline else list(descriptor)
