"""`for element in dataset` in a compiled function: a loop of the program that asks for its elements.

Shapes must be known when the function is traced: all elements alike, or all but a smaller last
batch. Other datasets are unrolled into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.iterators.callback_infeed import Infeed, infeed_element
from meshflow.core.iterators.iterator_captures import Source
from meshflow.core.staging.loops import Elements
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY
from meshflow.data.epoch import Epoch
from meshflow.data.static_shapes import example_of


class LoopSource(Source):
    """Passes over a dataset, one for each run of a program.

    Args:
      dataset: the dataset.
      prepare: what is done to each element.
    """

    def __init__(self, dataset: Any, prepare: Callable[[Any], Any]) -> None:
        super().__init__()
        self._dataset, self._prepare = dataset, prepare
        self._elements: Iterator[Any] = iter(())

    def restart(self) -> None:
        """Begins a new pass."""
        self._elements = self._dataset._elements(Epoch(self._dataset, counts=True))

    def _produce(self) -> Any:
        return self._prepare(next(self._elements))


class LoopInfeed(Infeed):
    """Hands the elements of a pass to a running program; number 0 begins a new one."""

    def next(self, *operands: Any) -> list[np.ndarray]:
        """The leaves of an element.

        Args:
          operands: its number, and what it has to wait for.
        """
        if int(operands[0]) == 0 and isinstance(self.source, LoopSource):
            self.source.restart()
        return super().next()


def elements(dataset: Any, prepare: Callable[[Any], Any] = structure.to_tensors) -> Elements | None:
    """What a staged loop over a dataset runs over; None to unroll it.

    Args:
      dataset: the dataset.
      prepare: what is done to each element.
    """
    known = dataset._static_shapes()
    if known is None or known.count == 0:
        return None
    source = LoopSource(dataset, prepare)

    def infeed_for(spec: Any) -> tuple[LoopInfeed, Any]:
        example = example_of(spec, prepare)
        return LoopInfeed(source, example), example

    infeed, example = infeed_for(known.spec)
    count: Any = known.count
    if count == INFINITE_CARDINALITY:
        count = Tensor(np.array(np.iinfo(np.int32).max, np.int32))
    number = Tensor(np.array(known.count, np.int32))
    rest = []
    if known.last is not None:
        last_infeed, last_example = infeed_for(known.last)

        def last(after: Tensor | None) -> Any:
            # The program may not ask for it before the loop is over.
            operands = [number] if after is None else [number, after]
            return infeed_element(last_infeed, last_example, operands)[0]

        rest.append(last)
    return Elements(count, lambda i: infeed_element(infeed, example, [i])[0], rest=rest)
