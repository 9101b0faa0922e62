"""`for element in dataset` in a compiled function: a loop of the program that asks for its elements.

Shapes must be known when the function is traced: all elements alike, or all but a smaller last
batch. Other datasets are unrolled into the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core import nest
from meshflow.core.dispatch import Op, apply
from meshflow.core.host_calls import keeping_errors
from meshflow.core.staging.loops import Elements
from meshflow.core.tensor import Tensor
from meshflow.data import structure
from meshflow.data import transformations as nodes
from meshflow.data.dataset import INFINITE_CARDINALITY, Dataset
from meshflow.data.running import Run


class Shapes(NamedTuple):
    """What is known of a dataset's elements.

    Attributes:
      spec: the spec of all but the last.
      count: their number, INFINITE_CARDINALITY for no end.
      last: the spec of the last where it is another, or None.
    """

    spec: Any
    count: int
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


class Feed:
    """Hands the elements of one dataset to a running program.

    Args:
      dataset: the dataset; every run of the program begins a new pass.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._elements: Iterator[Any] = iter(())

    def next(self, index: Any, *after: Any) -> list[np.ndarray]:
        """The leaves of the next element; number 0 begins a pass."""
        del after
        if int(index) == 0:
            self._elements = self._dataset._elements(Run(self._dataset, counts=True))
        return [np.asarray(a) for a in nest.flatten(next(self._elements))]


def _call(operands: Any, static: tuple[Any, ...]) -> list[Any]:
    feed, results = static
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    return list(jax.experimental.io_callback(keeping_errors(feed.next), arrays, *operands))


_next = Op("dataset_next", _call, differentiable=False)


def elements(dataset: Dataset) -> Elements | None:
    """What a staged loop over a dataset runs over; None to unroll it."""
    known = shapes(dataset)
    if known is None or known.count == 0:
        return None
    feed = Feed(dataset)

    def element(spec: Any, *operands: Any) -> Any:
        results = tuple((tuple(s.shape.as_list()), s.dtype.dtype) for s in nest.flatten(spec))
        return nest.pack_sequence_as(spec, apply(_next, operands, (feed, results)))

    count: Any = known.count
    if count == INFINITE_CARDINALITY:
        count = Tensor(np.array(np.iinfo(np.int32).max, np.int32))
    number = Tensor(np.array(known.count, np.int32))

    def last(after: Tensor | None) -> Any:
        # The program may not ask for it before the loop is over.
        return element(known.last, number, *([] if after is None else [after]))

    rest = [] if known.last is None else [last]
    return Elements(count, lambda i: element(known.spec, i), rest=rest)
