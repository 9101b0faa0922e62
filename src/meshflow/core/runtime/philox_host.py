"""TensorFlow's stateless random numbers on the host: a seed gives the initial weights that it gives there.

A block of the counter at a time, whose arrays stay in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from meshflow.core.runtime import philox

__all__ = ["StatelessRandom", "Words"]

_BLOCK = 1 << 13
# Each number of four truncated normal ones may use up to 256 words.
_COUNTS_PER_GROUP = 256
_TINY = np.float32(philox.TINY)


def _words(low: np.ndarray, high: int, key: int) -> np.ndarray:
    """Four words [n, 4] for each counter."""
    found = philox.rounds(low, np.uint64(high), np.uint64(key))
    words = np.empty((len(low), 4), np.uint32)
    for column, word in enumerate(found):
        words[:, column] = word
    return words


class Words:
    """The words of a Philox generator, one after the other.

    Args:
      place: where it stands: the low and high halves of the counter, and the key.

    Example:
      >>> from meshflow.core.runtime.philox_host import Words
      >>> Words([0, 1, 7]).take(3).tolist()
      [2126179728, 737597871, 1336687403]
    """

    def __init__(self, place: Sequence[int]) -> None:
        self._low, self._high, self._key = (int(w) & 0xFFFFFFFFFFFFFFFF for w in place)
        self.taken = 0

    def take(self, count: int) -> np.ndarray:
        """The next words, uint32 [count]."""
        first, skipped = divmod(self.taken, 4)
        counters = np.arange(first, -(-(self.taken + count) // 4), dtype=np.uint64)
        self.taken += count
        found = _words(counters + np.uint64(self._low), self._high, self._key)
        return found.reshape(-1)[skipped : skipped + count]

    @property
    def place(self) -> list[int]:
        """Where it stands, with all words of a number of the counter that was begun."""
        return [self._low + -(-self.taken // 4), self._high, self._key]


def _unit(words: np.ndarray) -> np.ndarray:
    """Floats in [0, 1) of the lowest 23 bits."""
    bits = (words & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return bits.view(np.float32) - np.float32(1)


def _normal(words: np.ndarray) -> np.ndarray:
    """Normal numbers, two of every two words (Box and Muller 1958)."""
    pairs = _unit(words).reshape(*words.shape[:-1], -1, 2)
    angle = np.float32(2 * math.pi) * pairs[..., 1]
    length = np.sqrt(np.float32(-2) * np.log(np.maximum(pairs[..., 0], _TINY)))
    return np.stack([np.sin(angle) * length, np.cos(angle) * length], -1).reshape(words.shape)


class StatelessRandom:
    """The numbers that TensorFlow's stateless ops give for the seed `[seed, 0]`, in float32.

    Args:
      seed: an integer.

    Example:
      >>> from meshflow.core.runtime.philox_host import StatelessRandom
      >>> [f"{x:.4f}" for x in StatelessRandom(3).uniform(0.0, 1.0, (2,))]
      ['0.1959', '0.9393']
    """

    def __init__(self, seed: int) -> None:
        _, self._high, self._key = philox.place_of_seed(seed & 0xFFFFFFFFFFFFFFFF, 0)

    def _drawn(
        self, numbers: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], dtype: type
    ) -> np.ndarray:
        """What is made of as many words as a shape has numbers."""
        size = math.prod(shape)
        count = -(-size // 4)
        found: np.ndarray = np.empty((count, 4), dtype)
        for start in range(0, count, _BLOCK):
            counters = np.arange(start, min(start + _BLOCK, count), dtype=np.uint64)
            found[start : start + _BLOCK] = numbers(_words(counters, self._high, self._key))
        return found.reshape(-1)[:size].reshape(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        """Floats from `low` to below `high`."""
        width, start = np.float32(high - low), np.float32(low)
        return self._drawn(lambda words: _unit(words) * width + start, shape, np.float32)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        """Integers from `low` to `high - 1`."""
        return self._drawn(lambda words: words % np.int64(high - low) + low, shape, np.int64)

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Normal numbers."""
        return self._drawn(_normal, shape, np.float32)

    def truncated_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Normal numbers between -2 and 2: of each four, the first four within that their words give."""
        size = math.prod(shape)
        count = -(-size // 4)
        found = np.empty((count, 4), np.float32)
        for start in range(0, count, _BLOCK):
            found[start : start + _BLOCK] = self._truncated(start, min(start + _BLOCK, count))
        return found.reshape(-1)[:size].reshape(shape)

    def _truncated(self, start: int, stop: int) -> np.ndarray:
        firsts = np.arange(start, stop, dtype=np.uint64) * np.uint64(_COUNTS_PER_GROUP)
        # The four of the first count are within in most groups.
        found = _normal(_words(firsts, self._high, self._key))
        held = np.where((np.abs(found) < 2).all(axis=1), 4, 0)
        # Two counts give eight numbers, of which nearly always four are within; few groups need more.
        for step in range(0, _COUNTS_PER_GROUP, 2):
            open_ = np.flatnonzero(held < 4)
            if not open_.size:
                break
            counts = firsts[open_] + np.uint64(step)
            pair = (_words(c, self._high, self._key) for c in (counts, counts + np.uint64(1)))
            normal = _normal(np.concatenate([*pair], -1))
            inside = np.abs(normal) < 2
            places = held[open_, None] + np.cumsum(inside, axis=1) - 1
            taken = inside & (places < 4)
            rows = np.broadcast_to(open_[:, None], taken.shape)
            found[rows[taken], places[taken]] = normal[taken]
            held[open_] = np.minimum(held[open_] + inside.sum(axis=1), 4)
        return found
