"""In which order `fit` takes examples: TensorFlow's for the global seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshflow.core.runtime.philox_host import Words
from meshflow.core.variables.random import place_of_pass
from meshflow.kernels import row_gather

__all__ = ["Orders"]


class Orders:
    """Random orders, one for each epoch: what a `tf.random.shuffle` gives call after call.

    Args:
      place: where its generator stands; default where the first random op of a function does.

    Example:
      >>> from meshflow.keras.engine.training.orders import Orders
      >>> orders = Orders([0, 0, 42])
      >>> [orders.permutation(5).tolist() for _ in range(2)]
      [[3, 4, 2, 1, 0], [3, 2, 1, 4, 0]]
    """

    def __init__(self, place: Sequence[int] | None = None) -> None:
        self._words = Words(place_of_pass() if place is None else place)

    def permutation(self, count: int) -> np.ndarray:
        """The numbers from 0 to `count - 1` in the next order."""
        drawn = self._words.take(max(count - 1, 0))
        # Calls begin at whole numbers of the counter.
        self._words.taken = -(-self._words.taken // 4) * 4
        return row_gather.shuffle(drawn, np.arange(count, dtype=np.int64))

    @property
    def state(self) -> dict[str, list[int]]:
        """Where the generator stands, as plain JSON values."""
        return {"place": self._words.place}

    @state.setter
    def state(self, state: dict[str, list[int]]) -> None:
        # Earlier versions kept that of another generator, which does not say where this one stands.
        if "place" in state:
            self._words = Words(state["place"])
