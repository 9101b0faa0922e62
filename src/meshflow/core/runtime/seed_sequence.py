"""What NumPy's `SeedSequence` makes of seeds that differ in their last word, for many of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["states"]

_POOL = 4
_WORD = 0xFFFFFFFF


def _hashes(start: int, factor: int) -> Iterator[Any]:
    """Functions that mix numbers, each with constants of its own."""
    while True:
        following = start * factor & _WORD
        first, second = np.uint32(start), np.uint32(following)

        def mixed(value: Any, first: Any = first, second: Any = second) -> Any:
            value = (value ^ first) * second
            return value ^ value >> np.uint32(16)

        yield mixed
        start = following


def states(words: Sequence[int], numbers: np.ndarray, size: int = 2) -> np.ndarray:
    """`np.random.SeedSequence([*words, number]).generate_state(size)` for each number.

    Args:
      words: at most three, below 2**32.
      numbers: [count], below 2**32.
      size: how many words are wanted.

    Returns:
      uint32 [count, size].

    Example:
      >>> import numpy as np
      >>> from meshflow.core.runtime.seed_sequence import states
      >>> (states([1, 2], np.arange(5))[4] == np.random.SeedSequence([1, 2, 4]).generate_state(2)).all()
      np.True_
    """
    numbers = np.asarray(numbers).astype(np.uint32)
    same = [np.full_like(numbers, word) for word in words]
    pool = [*same, numbers, *[np.zeros_like(numbers)] * _POOL][:_POOL]
    mixers = _hashes(0x43B0D7E5, 0x931E8875)
    pool = [next(mixers)(value) for value in pool]
    left, right = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                value = left * pool[target] - right * next(mixers)(pool[source])
                pool[target] = value ^ value >> np.uint32(16)
    last = _hashes(0x8B51F9DD, 0x58F38DED)
    return np.stack([next(last)(pool[i % _POOL]) for i in range(size)], axis=-1)
