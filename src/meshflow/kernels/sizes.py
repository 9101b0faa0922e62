"""How large a computation must be for a handler, and for more threads than the one that calls.

The numbers come from benchmarks/small_kernels.py and are the same on every machine and for whatever
a result is divided into: how many devices there are changes no choice, and so no bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.kernels import plans

# Multiply-adds (elements of a sum) below which XLA's own loop costs less than the call of a handler.
LEAST_WORK = 1 << 17
# Work up to which the calling thread computes alone: waking a team of threads takes 10-60 us, in which one
# thread does this much.
MOST_INLINE = 1 << 22
# An element read or written takes as long as so many multiply-adds.
ELEMENT_WORK = 8
# A float32 product with at most so many rows or columns only waits for the other matrix, which XLA reads at 1.5
# to 3 times oneDNN's speed.
THIN = 8


def worth_a_call(work: float) -> bool:
    """Whether so many multiply-adds are worth the call of a handler."""
    return work >= LEAST_WORK


def is_thin(result: Sequence[int], dtype: np.dtype) -> bool:
    """Whether a product with a result of this size, batches first, is better read by XLA."""
    return len(result) == 2 and min(result) <= THIN and dtype == np.float32


def placed(plan: Sequence[int], work: float, elements: int) -> list[int]:
    """A plan that says whether the calling thread computes alone.

    Args:
      plan: of the whole computation.
      work: its multiply-adds.
      elements: those of its operands and its result.
    """
    alone = work + ELEMENT_WORK * elements <= MOST_INLINE
    return plans.inline(plan) if alone else list(plan)
