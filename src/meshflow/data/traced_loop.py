"""`for element in dataset` in a compiled function: a loop of the program that asks for its elements.

Shapes must be known when the function is traced: all elements alike, or all but a smaller last
batch. Other datasets are unrolled into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.iterators.callback_infeed import Feed, feed_element
from meshflow.core.iterators.iterator_captures import Source
from meshflow.core.staging.loops import Elements
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data import transformations as nodes
from meshflow.data.dataset import INFINITE_CARDINALITY, Dataset
from meshflow.data.epoch import Run


class Shapes(NamedTuple):
    """What is known of a dataset's elements.

    Attributes:
      spec: the spec of all but the last.
      count: their number, INFINITE_CARDINALITY for no end.
      last: the spec of the last where it is another, or None.
    """

    spec: Any
    count: int  # type: ignore[assignment]  # hides a method of tuples
    last: Any


def shapes(dataset: Dataset) -> Shapes | None:
    """What is known of a dataset's elements; None when a program needs to know more."""
    if isinstance(dataset, (nodes.Prefetch, nodes.WithOptions, nodes.Cache)):
        return shapes(dataset._parent)
    if isinstance(dataset, nodes.Batch):
        parent = shapes(dataset._parent)
        if parent is None or parent.last is not None:
            return None
        size = dataset._size
        spec = structure.batched(parent.spec, size)
        if parent.count == INFINITE_CARDINALITY:
            return Shapes(spec, parent.count, None)
        left = 0 if dataset._drop else parent.count % size
        last = structure.batched(parent.spec, left) if left else None
        return Shapes(spec, parent.count // size, last)
    if isinstance(dataset, nodes.Map):
        parent = shapes(dataset._parent)
        if parent is None:
            return None
        spec = dataset.function.results_of(parent.spec)
        last = None if parent.last is None else dataset.function.results_of(parent.last)
        if spec is None or (parent.last is not None and last is None):
            return None
        return Shapes(spec, parent.count, last)
    count, spec = dataset._count(), dataset.element_spec
    if count < INFINITE_CARDINALITY or not structure.static(spec):
        return None
    return Shapes(spec, count, None)


class Pass(Source):
    """Passes over a dataset, one for each run of a program.

    Args:
      dataset: the dataset.
      prepare: what is done to each element.
    """

    def __init__(self, dataset: Dataset, prepare: Callable[[Any], Any]) -> None:
        super().__init__()
        self._dataset, self._prepare = dataset, prepare
        self._elements: Iterator[Any] = iter(())

    def restart(self) -> None:
        """Begins a new pass."""
        self._elements = self._dataset._elements(Run(self._dataset, counts=True))

    def _produce(self) -> Any:
        return self._prepare(next(self._elements))


class PassFeed(Feed):
    """Hands the elements of a pass to a running program; number 0 begins a new one."""

    def next(self, *operands: Any) -> list[np.ndarray]:
        """The leaves of an element.

        Args:
          operands: its number, and what it has to wait for.
        """
        if int(operands[0]) == 0 and isinstance(self.source, Pass):
            self.source.restart()
        return super().next()


def _like(spec: Any, prepare: Callable[[Any], Any]) -> Any:
    zeros = nest.map_structure(lambda s: np.zeros(tuple(s.shape.as_list()), s.dtype.dtype), spec)
    with init_scope():
        return prepare(zeros)


def likes(dataset: Dataset, prepare: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """Elements like those of a dataset, and like its last one, None where that is no other.

    Args:
      dataset: the dataset.
      prepare: what is done to each element.

    Returns:
      None when they are not known.
    """
    known = shapes(dataset)
    if known is None:
        return None
    return _like(known.spec, prepare), None if known.last is None else _like(known.last, prepare)


def form(dataset: Dataset) -> str:
    """A text that tells datasets apart whose elements' sizes differ, where these are known."""
    known = shapes(dataset)
    return "" if known is None else f"{known.spec} {known.last}"


def elements(
    dataset: Dataset, prepare: Callable[[Any], Any] = structure.to_tensors
) -> Elements | None:
    """What a staged loop over a dataset runs over; None to unroll it.

    Args:
      dataset: the dataset.
      prepare: what is done to each element.
    """
    known = shapes(dataset)
    if known is None or known.count == 0:
        return None
    source = Pass(dataset, prepare)

    def feed_for(spec: Any) -> tuple[PassFeed, Any]:
        like = _like(spec, prepare)
        return PassFeed(source, like), like

    feed, like = feed_for(known.spec)
    count: Any = known.count
    if count == INFINITE_CARDINALITY:
        count = Tensor(np.array(np.iinfo(np.int32).max, np.int32))
    number = Tensor(np.array(known.count, np.int32))
    rest = []
    if known.last is not None:
        last_feed, last_like = feed_for(known.last)

        def last(after: Tensor | None) -> Any:
            # The program may not ask for it before the loop is over.
            operands = [number] if after is None else [number, after]
            return feed_element(last_feed, last_like, operands)[0]

        rest.append(last)
    return Elements(count, lambda i: feed_element(feed, like, [i])[0], rest=rest)
