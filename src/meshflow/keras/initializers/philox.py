"""TensorFlow's stateless random numbers on the host: a seed gives the initial weights that it gives there.

Philox (Salmon et al. 2011, doi:10.1145/2063384.2063405) with four words of 32 bits and ten rounds makes four words of
each number of a counter; key and counter begin as what it makes of the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["StatelessRandom"]

_ROUNDS = 10
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_SEED_KEY = 0x3EC8F720, 0x02461E29
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
# Each number of four truncated normal ones may use up to 256 words.
_COUNTS_PER_GROUP = 256
_TINY = np.float32(1e-7)


def _philox(low: np.ndarray, high: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Four words [n, 4] for each counter of 128 bits, given as two halves of 64."""
    words = [low & _LOW, low >> _WORD, high & _LOW, high >> _WORD]
    first, second = key
    for _ in range(_ROUNDS):
        products = _FACTORS[0] * words[0], _FACTORS[1] * words[2]
        keys = np.uint64(first), np.uint64(second)
        words = [
            (products[1] >> _WORD) ^ words[1] ^ keys[0],
            products[1] & _LOW,
            (products[0] >> _WORD) ^ words[3] ^ keys[1],
            products[0] & _LOW,
        ]
        first = (first + _KEY_STEPS[0]) & 0xFFFFFFFF
        second = (second + _KEY_STEPS[1]) & 0xFFFFFFFF
    return np.stack(words, axis=-1).astype(np.uint32)


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
      >>> from meshflow.keras.initializers.philox import StatelessRandom
      >>> [f"{x:.4f}" for x in StatelessRandom(3).uniform(0.0, 1.0, (2,))]
      ['0.1959', '0.9393']
    """

    def __init__(self, seed: int) -> None:
        start = np.array([seed], np.int64).view(np.uint64)
        mixed = _philox(start, np.zeros(1, np.uint64), _SEED_KEY)[0]
        self._key = int(mixed[0]), int(mixed[1])
        self._high = np.uint64(int(mixed[2]) | int(mixed[3]) << 32)

    def _words(self, counts: np.ndarray) -> np.ndarray:
        return _philox(counts, np.full_like(counts, self._high), self._key)

    def _drawn(
        self, numbers: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]
    ) -> np.ndarray:
        """What is made of as many words as a shape has numbers."""
        size = math.prod(shape)
        words = self._words(np.arange(-(-size // 4), dtype=np.uint64))
        return numbers(words).reshape(-1)[:size].reshape(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        """Floats from `low` to below `high`."""
        return self._drawn(_unit, shape) * np.float32(high - low) + np.float32(low)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        """Integers from `low` to `high - 1`."""
        return self._drawn(lambda words: words.astype(np.int64), shape) % (high - low) + low

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Normal numbers."""
        return self._drawn(_normal, shape)

    def truncated_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Normal numbers between -2 and 2: of each four, the first four within that their words give."""
        size = math.prod(shape)
        found = np.zeros((-(-size // 4), 4), np.float32)
        held = np.zeros(len(found), np.int64)
        # Two counts give eight numbers, of which nearly always four are within; few groups need more.
        for step in range(0, _COUNTS_PER_GROUP, 2):
            open_ = np.flatnonzero(held < 4)
            if not open_.size:
                break
            counts = open_.astype(np.uint64) * np.uint64(_COUNTS_PER_GROUP) + np.uint64(step)
            words = np.concatenate([self._words(counts), self._words(counts + np.uint64(1))], -1)
            normal = _normal(words)
            inside = np.abs(normal) < 2
            places = held[open_, None] + np.cumsum(inside, axis=1) - 1
            taken = inside & (places < 4)
            rows = np.broadcast_to(open_[:, None], taken.shape)
            found[rows[taken], places[taken]] = normal[taken]
            held[open_] = np.minimum(held[open_] + inside.sum(axis=1), 4)
        return found.reshape(-1)[:size].reshape(shape)
