"""What shuffles and random sources of one pass over a dataset draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.philox_host import Words
from meshflow.kernels import row_gather

__all__ = ["Draws"]


class Draws:
    """The draws of one pass; those of TensorFlow's kernels, but for the places in a buffer that is filled again.

    Args:
      words: of the seed: the op's and the program's, as TensorFlow combines them.
      number: which pass over the dataset it is.
      renewed: whether each pass has seeds of its own, which the seed's generator draws.

    Example:
      >>> from meshflow.data.execution.draws import Draws
      >>> Draws([1, 87654321], 0, False).words.take(2).tolist()
      [2870909127, 3455438759]
    """

    def __init__(self, words: Sequence[int], number: int, renewed: bool = True) -> None:
        self._rng = np.random.default_rng([*words, number])
        if len(words) > 2:
            words = self._rng.integers(1 << 32, size=2).tolist()
        place = [0, *words]
        if renewed:
            seeds = Words(place)
            seeds.taken = 2 * number
            place = [0, *seeds.take(2).tolist()[::-1]]
        self.words = Words(place)

    def random(self, count: int) -> np.ndarray:
        """Shares in [0, 1), float64 [count]."""
        return self._rng.random(count)

    def drained(self, buffer: np.ndarray) -> np.ndarray:
        """All numbers of a buffer, int64, in random order."""
        left = np.arange(len(buffer), 0, -1, dtype=np.int64)
        # TensorFlow exchanges from the front, which is from the back of the reversed numbers.
        places = left - 1 - self.words.take(len(buffer)) % left
        return row_gather.drain((places + 0.5) / left, np.ascontiguousarray(buffer[::-1]))
