"""Loops over a dataset in a compiled function.

The program of `for element in dataset` calls back to the host for each element. The shapes of the
elements must be known when the function is traced: all elements have the same shape, except for a
smaller last batch. Loops over other datasets are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.iterators.callback_infeed import Infeed, call_feed
from meshflow.core.iterators.iterator_captures import IteratorSource
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.staging.loops import LoopElements
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY
from meshflow.data.epoch import Epoch, PipelineNode, iter_nodes
from meshflow.data.static_shapes import make_example
from meshflow.environment.types import PyTree


class LoopSource(IteratorSource):
    """Passes over a dataset, one for each run of a compiled program.

    Args:
      dataset: The dataset.
      prepare: Function that is applied to every element.
    """

    def __init__(self, dataset: PipelineNode, prepare: Callable[[Any], Any]) -> None:
        super().__init__()
        self._dataset, self._prepare = dataset, prepare
        self._elements: Iterator[Any] = iter(())

    def restart(self) -> None:
        """Start a new pass."""
        self._elements = self._dataset.iter_elements(Epoch(self._dataset, measures_time=True))

    def _produce(self) -> PyTree:
        return self._prepare(next(self._elements))


class LoopInfeed(Infeed):
    """Infeed that provides the elements of a pass to a running program.

    Element 0 starts a new pass.
    """

    def next(self, *operands: Any) -> list[np.ndarray]:
        """Return the leaves of the next element.

        Args:
          *operands: The index of the element, followed by values that the program must have
            computed before.
        """
        if int(operands[0]) == 0 and isinstance(self.source, LoopSource):
            self.source.restart()
        return super().next()


def make_loop_elements(
    dataset: PipelineNode, prepare: Callable[[Any], Any] = structure.to_tensors
) -> LoopElements | None:
    """Describe the elements of a dataset to a compiled loop.

    Args:
      dataset: The dataset.
      prepare: Function that is applied to every element.

    Returns:
      The elements, or None if the loop has to be unrolled.

    Raises:
      ValueNeededError: If a function of the dataset changes variables: the program has read them before the loop.
    """
    functions = (getattr(node, "function", None) for node in iter_nodes(dataset))
    if any(function is not None and function.writes_variables for function in functions):
        raise ValueNeededError(
            "A loop over a dataset with a function that changes variables cannot be compiled. The function that contains "
            "the loop runs op by op instead."
        )
    shapes = dataset.infer_static_shapes()
    if shapes is None or shapes.count == 0:
        return None
    source = LoopSource(dataset, prepare)

    def make_infeed(spec: PyTree) -> tuple[LoopInfeed, Any]:
        example = make_example(spec, prepare)
        return LoopInfeed(source, example), example

    infeed, example = make_infeed(shapes.spec)
    count: Any = shapes.count
    if count == INFINITE_CARDINALITY:
        count = Tensor(np.array(np.iinfo(np.int32).max, np.int32))
    end_index = Tensor(np.array(shapes.count, np.int32))
    last_elements = []
    if shapes.last is not None:
        last_infeed, last_example = make_infeed(shapes.last)

        def last(after: Tensor | None) -> PyTree:
            # The dependency on the last state of the loop keeps XLA from requesting this element
            # too early.
            operands = [end_index] if after is None else [end_index, after]
            return call_feed(last_infeed, last_example, operands)[0]

        last_elements.append(last)
    return LoopElements(count, lambda i: call_feed(infeed, example, [i])[0], rest=last_elements)
