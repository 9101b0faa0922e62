"""Names of `tf.compat.v1.data` that TensorFlow 2 does not have."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.data.dataset import Dataset
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.legacy.graph.operations import Operation

__all__ = [
    "get_output_classes",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]


def _map_element_spec(dataset_or_iterator: Any, function: Callable[[Any], object]) -> PyTree:
    """Apply a function to the spec of each component of the elements."""
    return _tf.nest.map_structure(function, dataset_or_iterator.element_spec)


def get_output_types(dataset_or_iterator: Any) -> PyTree:
    """Return the dtypes of the elements of a dataset or iterator."""
    return _map_element_spec(dataset_or_iterator, lambda spec: spec.dtype)


def get_output_shapes(dataset_or_iterator: Any) -> PyTree:
    """Return the shapes of the elements of a dataset or iterator."""
    return _map_element_spec(dataset_or_iterator, lambda spec: spec.shape)


def get_output_classes(dataset_or_iterator: Any) -> PyTree:
    """Return the classes of the elements of a dataset or iterator."""
    return _map_element_spec(dataset_or_iterator, lambda spec: spec.value_type)


class GraphIterator:
    """Iterator of a graph, whose elements are operations.

    Args:
      dataset: The dataset.
      is_initialized: Whether the iterator starts at the first element that a session requests.
    """

    def __init__(self, dataset: Dataset, is_initialized: bool) -> None:
        self._dataset, self._is_initialized = dataset, is_initialized
        self._graph = get_default_graph()
        # The iterators over the elements by the session.
        self._running: weakref.WeakKeyDictionary[Any, Iterator[Any]] = weakref.WeakKeyDictionary()
        self._initializer: Operation = self._graph.record(self._start, name="MakeIterator")

    @property
    def element_spec(self) -> PyTree:
        """Return the specs of the elements."""
        return self._dataset.element_spec

    @property
    def output_types(self) -> PyTree:
        """Return the dtypes of the elements."""
        return get_output_types(self)

    @property
    def output_shapes(self) -> PyTree:
        """Return the shapes of the elements."""
        return get_output_shapes(self)

    @property
    def output_classes(self) -> PyTree:
        """Return the classes of the elements."""
        return get_output_classes(self)

    @property
    def initializer(self) -> Operation:
        """Return an operation that starts again at the first element."""
        return self._initializer

    def _start(self) -> None:
        if context.trace is None:
            self._running[self._graph.session] = iter(self._dataset)

    def get_next(self, name: str | None = None) -> PyTree:
        """Return an operation that takes the next element."""
        specs = self.element_spec
        return self._graph.record_source(self._take, specs, name or "IteratorGetNext")

    def _take(self) -> PyTree:
        if self._graph.session not in self._running:
            if not self._is_initialized:
                raise _tf.errors.FailedPreconditionError(
                    None,
                    None,
                    "GetNext() failed because the iterator has not been initialized. Ensure that you have run the "
                    "initializer operation for this iterator before getting the next element.",
                )
            self._start()
        try:
            return next(self._running[self._graph.session])
        except StopIteration:
            raise _tf.errors.OutOfRangeError(None, None, "End of sequence") from None


def make_one_shot_iterator(dataset: Dataset) -> Any:
    """Return an iterator over a dataset."""
    return GraphIterator(dataset, True) if has_explicit_graph() else iter(dataset)


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Any:
    """Return an iterator over a dataset, which needs no initialization in eager execution.

    Args:
      dataset: The dataset.
      shared_name: Ignored.
    """
    return GraphIterator(dataset, False) if has_explicit_graph() else iter(dataset)
