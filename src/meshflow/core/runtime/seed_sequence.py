"""Vectorized `numpy.random.SeedSequence` for seeds that differ only in their last word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

_POOL_WORDS = 4
_WORD_MASK = 0xFFFFFFFF


def _generate_mixers(start: int, factor: int) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Yield functions that mix words, each with its own constants."""
    while True:
        following = start * factor & _WORD_MASK
        first, second = np.uint32(start), np.uint32(following)

        def mix(
            value: np.ndarray, first: np.uint32 = first, second: np.uint32 = second
        ) -> np.ndarray:
            value = (value ^ first) * second
            return value ^ value >> np.uint32(16)

        yield mix
        start = following


def generate_states(words: Sequence[int], last_words: np.ndarray, size: int = 2) -> np.ndarray:
    """Generate the states of `numpy.random.SeedSequence([*words, last])` for many last words.

    Args:
      words: At most three leading words of the entropy, each below 2**32.
      last_words: Last word of each seed, shape [count], each below 2**32.
      size: Number of words to generate for each seed.

    Returns:
      The states, uint32 of shape [count, size].

    Example:
      >>> import numpy as np
      >>> from meshflow.core.runtime.seed_sequence import generate_states
      >>> (generate_states([1, 2], np.arange(5))[4] == np.random.SeedSequence([1, 2, 4]).generate_state(2)).all()
      np.True_
    """
    last_words = np.asarray(last_words).astype(np.uint32)
    leading = [np.full_like(last_words, word) for word in words]
    pool = [*leading, last_words, *[np.zeros_like(last_words)] * _POOL_WORDS][:_POOL_WORDS]
    mixers = _generate_mixers(0x43B0D7E5, 0x931E8875)
    pool = [next(mixers)(value) for value in pool]
    left, right = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
    for source in range(_POOL_WORDS):
        for target in range(_POOL_WORDS):
            if source != target:
                value: np.ndarray = left * pool[target] - right * next(mixers)(pool[source])
                pool[target] = value ^ value >> np.uint32(16)
    output_mixers = _generate_mixers(0x8B51F9DD, 0x58F38DED)
    return np.stack([next(output_mixers)(pool[i % _POOL_WORDS]) for i in range(size)], axis=-1)
