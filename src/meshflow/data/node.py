"""The base class of all datasets: how the nodes of a pipeline hand elements to each other.

A dataset can produce its elements in three forms, from the fastest to the most general one:

* `vectorize`: a stream of indices and a function that gathers the elements of many indices at once,
* `iter_chunks`: lists of stacked arrays, each for several consecutive elements
  (`execution/chunks.py`),
* `iter_elements`: one element at a time.

All forms yield the same elements in the same order. A transformation implements `iter_elements`,
and the faster forms where it can; a caller tries the fastest form first.
"""

from __future__ import annotations

import contextvars
import copy
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from meshflow.core.runtime.eager import leave_graph
from meshflow.core.variables.variable import restore_variables
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.affine import AffineMap
from meshflow.data.execution.batched_gather import Gather
from meshflow.data.execution.failures import RaisingIterator
from meshflow.data.execution.stopwatch import Stopwatch
from meshflow.data.execution.timing import install_timing
from meshflow.data.options import Options
from meshflow.data.specs import DatasetSpec
from meshflow.data.static_shapes import StaticShapes
from meshflow.environment.types import PyTree

# Whether a dataset may compute an element in order to find out the spec of its elements.
_may_probe: contextvars.ContextVar[bool] = contextvars.ContextVar("may_probe", default=True)


class _SpecUnknownError(Exception):
    """The spec cannot be inferred without computing an element."""


class IndexStream(NamedTuple):
    """A dataset as a stream of indices and a function that gathers their elements.

    Attributes:
      gather: Function from an int64 array of n indices to the leaves of their elements, each of
        shape [n, ...].
      blocks: Arrays of indices, in the order of the elements.
      max_spread: Largest distance between two indices that can be gathered together efficiently,
        None for any distance.
      gather_affine: Function from a list of affine maps to a function like `gather` that returns
        their results, None if affine maps cannot be computed while elements are gathered.
      is_in_order: Whether the indices are 0 to the number of elements - 1, in this order.
      index_limit: Exclusive upper bound of the indices, None if it is unknown.
    """

    gather: Gather
    blocks: Iterator[np.ndarray]
    max_spread: int | None = None
    gather_affine: Callable[[list[AffineMap]], Gather] | None = None
    is_in_order: bool = False
    index_limit: int | None = None


class DatasetNode(structure.ElementLeaf):
    """A node in the graph of a pipeline; the base class of `tf.data.Dataset`.

    Its methods are the interface between datasets, and are not part of TensorFlow's API. A subclass
    overrides `iter_elements`, or one of the hooks `vectorize` and `_iter_chunks`, and `_infer_spec`
    and `count_elements` where the values differ from those of the first parent.

    Attributes:
      parents: Datasets that this one takes its elements from.
      runs_parents_in_thread: Whether the parents produce their elements in another thread or
        process.
    """

    parents: tuple[DatasetNode, ...] = ()
    runs_parents_in_thread = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        install_timing(cls)

    @functools.cached_property
    def stopwatch(self) -> Stopwatch:
        """The time and number of elements of all passes so far."""
        return Stopwatch()

    def copy_node(self) -> Self:
        """Return a shallow copy with a stopwatch of its own."""
        duplicate = copy.copy(self)
        duplicate.__dict__.pop("stopwatch", None)
        return duplicate

    @property
    def element_spec(self) -> PyTree:
        """The spec of the elements: `tf.TensorSpec`s in the structure of an element.

        Example:
          >>> tf.data.Dataset.range(10).batch(4, drop_remainder=True).element_spec
          TensorSpec(shape=(4,), dtype=tf.int64, name=None)
        """
        # `functools.cached_property` of Python 3.11 has one lock for all datasets. The first element, which may determine
        # the spec, is computed in threads that need specs of other datasets. Two threads may infer the same spec.
        if "_spec" not in self.__dict__:
            # Functions of elements, which may be called now, do not belong to the graph of the program.
            with leave_graph():
                self.__dict__["_spec"] = self._find_spec()
        spec: PyTree = self.__dict__["_spec"]
        return spec

    @property
    def _type_spec(self) -> DatasetSpec:
        return DatasetSpec(self.element_spec)

    def _find_spec(self) -> PyTree:
        """Return the spec of the elements, from the first element if nothing else determines it."""
        spec = self._infer_spec()
        if spec is not None:
            return spec
        if not _may_probe.get():
            raise _SpecUnknownError
        elements = self.iter_elements(Epoch(self))
        try:
            # The function of a map may draw random numbers, which change the state of a generator.
            with restore_variables():
                first = next(elements, None)
        finally:
            elements.close()
        return None if first is None else self._relax_spec(structure.infer_spec(first))

    def _relax_spec(self, first: PyTree) -> PyTree:
        """Return the spec of all elements for the spec of the first one."""
        return structure.relax_spec(first)

    def _infer_spec_without_elements(self) -> PyTree:
        """Return the spec if it is known without computing an element, else None."""
        token = _may_probe.set(False)
        try:
            return self.element_spec
        except _SpecUnknownError:
            return None
        finally:
            _may_probe.reset(token)

    def _infer_spec(self) -> PyTree:
        """Return the spec of the elements, or None if only an element determines it."""
        return self.parents[0].element_spec

    def count_elements(self) -> int:
        """Return the number of elements, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return self.parents[0].count_elements()

    @property
    def infinite(self) -> bool:
        """Return whether the dataset never ends."""
        return self.count_elements() == INFINITE_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[PyTree, None, None]:
        """Iterate over the elements as host arrays; by default unpack the chunks.

        Args:
          epoch: The pass over the pipeline, which provides the random numbers.
        """
        rows = self._iter_rows(epoch)
        assert rows is not None, type(self)
        return rows

    def _iter_rows(self, epoch: Epoch) -> Generator[PyTree, None, None] | None:
        """Iterate over the elements of the chunks; return None if there are no chunks."""
        stream = self.iter_chunks(epoch)
        if stream is None:
            return None
        return RaisingIterator(chunks.unpack_chunks(stream, self.element_spec))

    def iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        """Iterate over chunks of elements and failures; return None if only single elements can be produced.

        Args:
          epoch: The pass over the pipeline.
        """
        stream = self.vectorize(epoch)
        if stream is None:
            return self._iter_chunks(epoch)
        return chunks.gather_chunks(
            stream.gather, stream.blocks, chunks.choose_chunk_size(self.element_spec)
        )

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        """Iterate over chunks where `vectorize` returns None; return None if there are none."""
        return None

    def record_part(self, part: slice) -> None:
        """Record at each `shuffle` of the pipeline which part of its elements a pass uses.

        Args:
          part: The range of this dataset's elements.
        """
        for parent in self.parents:
            parent.record_part(part)

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the elements as a stream of indices, or None if they cannot be gathered by index.

        Args:
          epoch: The pass over the pipeline.
        """
        return None

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the shapes of all elements, or None if a compiled loop could not rely on them."""
        count, spec = self.count_elements(), self.element_spec
        if count < INFINITE_CARDINALITY or not structure.is_static(spec):
            return None
        return StaticShapes(spec, count, None)

    def explain_fallback(self) -> str:
        """Return the reason why `vectorize` returns None, or "" if there is no particular one."""
        return ""

    @property
    def merged_options(self) -> Options:
        """The options of this dataset merged with those of its parents."""
        merged = Options()
        for parent in self.parents:
            merged = merged.merge(parent.merged_options)
        return merged


install_timing(DatasetNode)
