"""The order in which `fit` reads examples: equal to TensorFlow's for the same global seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.philox_host import PhiloxWordStream
from meshflow.core.variables.random_streams import make_pass_state
from meshflow.kernels import row_gather


class ShuffleOrders:
    """A sequence of random permutations, one per epoch, as successive `tf.random.shuffle` calls return.

    Args:
      state: Counter (low and high half) and key of the Philox generator. Default: the state of the
        first random op of a function.

    Example:
      >>> from meshflow.keras.engine.training.shuffle_orders import ShuffleOrders
      >>> orders = ShuffleOrders([0, 0, 42])
      >>> [orders.draw_permutation(5).tolist() for _ in range(2)]
      [[3, 4, 2, 1, 0], [3, 2, 1, 4, 0]]
    """

    def __init__(self, state: Sequence[int] | None = None) -> None:
        self._words = PhiloxWordStream(make_pass_state() if state is None else state)

    def draw_permutation(self, count: int) -> np.ndarray:
        """Return the integers from 0 to `count - 1` in the next random order, int64 [count]."""
        words = self._words.take(max(count - 1, 0))
        # Each call starts at a new value of the counter, which yields four words.
        self._words.num_taken = -(-self._words.num_taken // 4) * 4
        return row_gather.shuffle(words, np.arange(count, dtype=np.int64))

    @property
    def state(self) -> dict[str, list[int]]:
        """Return the state of the generator as JSON values."""
        return {"place": self._words.state}

    @state.setter
    def state(self, state: dict[str, list[int]]) -> None:
        # Earlier versions stored the state of another generator, from which this one cannot be
        # restored.
        if "place" in state:
            self._words = PhiloxWordStream(state["place"])
