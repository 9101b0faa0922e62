"""Rows of arrays gathered for batches, and begun before they are asked for."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.kernels import row_gather as kernels

if TYPE_CHECKING:
    from meshflow.data.execution.affine import Chain
    from meshflow.data.execution.timing import Spent

# From an array of indices to the stacked leaves of their elements.
Gather = Callable[[np.ndarray], list[Any]]
Begun = list[Callable[[], np.ndarray]]
# Bytes that are worth being handed to another thread.
_AHEAD = 1 << 15


class Taker:
    """Takes what a chain gives of some rows of an array.

    Args:
      array: the argument, for all elements.
      chain: None for the rows as they are.
    """

    def __init__(self, array: np.ndarray, chain: Chain | None = None) -> None:
        self._array, self._objects = array, array.dtype.hasobject
        self._rows = kernels.Rows(array, None if chain is None else chain.steps)
        shape = None if chain is None else chain.shape
        self._shape: tuple[int, ...] = self._rows.shape if shape is None else shape

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Some rows; the array itself may be a part of them.

        Args:
          index: int64, their numbers.
        """
        if self._objects:
            return self._array[index].reshape(len(index), *self._shape)
        if self._is_part(index):
            part = np.asarray(self._array[index[0] : index[-1] + 1])
            return part.reshape(len(index), *self._shape)
        found, address = transfers.filled_at((len(index), *self._shape), self._rows.dtype)
        return self._rows.take(index, found, address)

    @property
    def begins(self) -> bool:
        """Whether another thread takes what is begun."""
        return self._rows.begins

    def _is_part(self, index: np.ndarray) -> bool:
        """Whether the rows follow each other in the array, and nothing is computed of them."""
        if self._rows.steps is not None:
            return False
        first, last = int(index[0]), int(index[-1])
        return last - first == len(index) - 1 and bool((np.diff(index) == 1).all())

    def begin(self, index: np.ndarray) -> Callable[[], np.ndarray]:
        """Has some rows taken while others are used.

        Returns:
          A function that gives them, to be called once.
        """
        if self._objects or self._is_part(index):
            return functools.partial(self, index)
        found, address = transfers.filled_at((len(index), *self._shape), self._rows.dtype)
        begun = self._rows.begin(index, found, address) if found.nbytes >= _AHEAD else None
        if begun is not None:
            return begun.result
        self._rows.take(index, found, address)
        return lambda: found

    def all(self) -> np.ndarray:
        """All rows."""
        if self._rows.steps is None:
            return self._array.reshape(-1, *self._shape)
        return self(np.arange(len(self._array)))


class Rows:
    """Gathers rows of arrays, as they are or computed on.

    Args:
      takers: for each leaf what takes its rows.
      note: told what was read.
      spents: to what the time it takes is added.
    """

    def __init__(
        self,
        takers: list[Taker],
        note: Callable[[list[np.ndarray]], None],
        spents: tuple[Spent, ...] = (),
    ) -> None:
        self._takers, self._note, self._spents = takers, note, spents

    @classmethod
    def joined(cls, parts: list[Rows], order: list[int]) -> Rows:
        """All of several, with the leaves in an order."""
        takers = [taker for part in parts for taker in part._takers]

        def note(found: list[np.ndarray]) -> None:
            for part in parts:
                part._note(found)

        spents = itertools.chain.from_iterable(part._spents for part in parts)
        return cls([takers[i] for i in order], note, tuple(spents))

    @property
    def begins(self) -> bool:
        """Whether another thread takes what is begun."""
        return all(taker.begins for taker in self._takers)

    def timed(self, spent: Spent) -> Rows:
        """The same, which adds its time there too."""
        return Rows(self._takers, self._note, (*self._spents, spent))

    def __call__(self, index: np.ndarray) -> list[np.ndarray]:
        """The rows of all leaves."""
        start = time.perf_counter()
        found = [taker(index) for taker in self._takers]
        self._end(start, len(index), found)
        return found

    def begin(self, index: np.ndarray) -> Begun:
        """What `finish` makes of it, while others are used."""
        return [taker.begin(index) for taker in self._takers]

    def finish(self, begun: Begun) -> list[np.ndarray]:
        """The rows of all leaves."""
        start = time.perf_counter()
        found = [result() for result in begun]
        self._end(start, len(found[0]), found)
        return found

    def _end(self, start: float, count: int, found: list[np.ndarray]) -> None:
        self._note(found)
        seconds = time.perf_counter() - start
        for spent in self._spents:
            if not spent.running:
                spent.elements += count
                spent.seconds += seconds


def joined(gathers: list[Gather], order: list[int]) -> Gather:
    """A function that gathers the leaves of several.

    Args:
      gathers: the functions.
      order: the number of each leaf among all of theirs.
    """
    rows = [gather for gather in gathers if isinstance(gather, Rows)]
    if len(rows) == len(gathers):
        return Rows.joined(rows, order)

    def gather(index: np.ndarray) -> list[Any]:
        leaves = [leaf for part in gathers for leaf in part(index)]
        return [leaves[i] for i in order]

    return gather
