"""What shuffles and random sources of one pass over a dataset draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.philox_host import Words
from meshflow.kernels import row_gather

__all__ = ["Draws", "Ring"]


class Draws:
    """The draws of one pass, those of TensorFlow's kernels.

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
        if len(words) > 2:
            words = np.random.default_rng([*words, number]).integers(1 << 32, size=2).tolist()
        place = [0, *words]
        if renewed:
            seeds = Words(place)
            seeds.taken = 2 * number
            place = [0, *seeds.take(2).tolist()[::-1]]
        self.words = Words(place)

    def drained(self, buffer: np.ndarray) -> np.ndarray:
        """All numbers of a buffer, int64, in random order."""
        return row_gather.shuffle(self.words.take(len(buffer)), np.array(buffer, np.int64))


class Ring:
    """A full buffer of numbers that gets a new one for each that is drawn, as TensorFlow's kernel keeps it.

    Args:
      words: what is drawn with.
      buffer: int64, changed.

    Attributes:
      buffer: the numbers that are held.
    """

    def __init__(self, words: Words, buffer: np.ndarray) -> None:
        self.buffer = buffer
        self._words, self._first = words, 0

    def exchange(self, items: np.ndarray) -> np.ndarray:
        """As many numbers as there are new ones, int64."""
        words = self._words.take(len(items))
        found, self._first = row_gather.exchange(words, items, self.buffer, self._first)
        return found

    def left(self) -> np.ndarray:
        """The numbers that are held, the first one first."""
        return np.roll(self.buffer, -self._first)
