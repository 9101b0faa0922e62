"""Random numbers of shuffles and random sources, equal to those of TensorFlow's kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.philox_host import PhiloxWordStream
from meshflow.kernels import row_gather


class RandomDraws:
    """The random numbers of one node in one epoch.

    Args:
      words: Words of the seed: those of the op and of the program, as TensorFlow combines them.
      epoch: Index of the epoch.
      reseed: Whether each epoch has its own seeds, drawn from a generator with this seed.

    Example:
      >>> from meshflow.data.execution.random_draws import RandomDraws
      >>> RandomDraws([1, 87654321], 0, False).words.take(2).tolist()
      [2870909127, 3455438759]
    """

    def __init__(self, words: Sequence[int], epoch: int, reseed: bool = True) -> None:
        if len(words) > 2:
            words = np.random.default_rng([*words, epoch]).integers(1 << 32, size=2).tolist()
        key = [0, *words]
        if reseed:
            seeds = PhiloxWordStream(key)
            seeds.num_taken = 2 * epoch
            key = [0, *seeds.take(2).tolist()[::-1]]
        self.words = PhiloxWordStream(key)

    def shuffle_all(self, buffer: np.ndarray) -> np.ndarray:
        """Shuffle all indices of a buffer, int64."""
        return row_gather.shuffle(self.words.take(len(buffer)), np.array(buffer, np.int64))


class ShuffleRing:
    """A full shuffle buffer of indices as a ring, as TensorFlow's kernel implements it.

    Args:
      words: The random words.
      buffer: The indices, int64; changed in place.

    Attributes:
      buffer: The indices in the buffer.
    """

    def __init__(self, words: PhiloxWordStream, buffer: np.ndarray) -> None:
        self.buffer = buffer
        self._words, self._first = words, 0

    def exchange(self, items: np.ndarray) -> np.ndarray:
        """Draw as many indices as there are new ones, and put the new ones into the buffer.

        Args:
          items: New indices, int64.
        """
        words = self._words.take(len(items))
        drawn, self._first = row_gather.exchange_ring(words, items, self.buffer, self._first)
        return drawn

    def get_remaining(self) -> np.ndarray:
        """Return the indices in the buffer, the oldest one first."""
        return np.roll(self.buffer, -self._first)
