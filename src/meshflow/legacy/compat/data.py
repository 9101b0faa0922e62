"""Names of `tf.compat.v1.data` that TensorFlow 2 does not have."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import abc
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data.dataset import Dataset
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.legacy.graph.operations import Operation
from meshflow.legacy.internal.structures import map_structure_up_to

__all__ = [
    "Iterator",
    "get_output_classes",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]


def _map_element_spec(dataset_or_iterator: Any, function: abc.Callable[[Any], object]) -> PyTree:
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
    """Iterator of a graph with operations as its elements.

    Args:
      element_spec: Specs of the elements.
      dataset: The dataset; None if `make_initializer` sets it, or if the elements are those of other iterators.
      is_initialized: Whether the iterator starts at the first element that a session requests.
      handle: String tensor with the handle of the iterator that supplies the elements, or None.

    Raises:
      RuntimeError: Outside of a graph.
    """

    def __init__(
        self,
        element_spec: PyTree,
        dataset: Dataset | None = None,
        is_initialized: bool = False,
        handle: Tensor | None = None,
    ) -> None:
        if not has_explicit_graph():
            raise RuntimeError(
                "tf.compat.v1.data.Iterator needs a graph. In eager execution, use `for element in dataset:`."
            )
        self.element_spec, self._dataset, self._is_initialized = (
            element_spec,
            dataset,
            is_initialized,
        )
        self._graph, self._source_handle = get_default_graph(), handle
        # The iterators over the elements by the session.
        self._running: weakref.WeakKeyDictionary[PyTree, abc.Iterator[PyTree]] = (
            weakref.WeakKeyDictionary()
        )
        self._initializer = None if dataset is None else self.make_initializer(dataset)
        self._handle = f"iterator-{next(_numbers)}"
        _iterators[self._handle] = self

    @staticmethod
    def from_structure(
        output_types: PyTree,
        output_shapes: PyTree = None,
        shared_name: str | None = None,
        output_classes: PyTree = None,
    ) -> GraphIterator:
        """Return an iterator without a dataset, which several operations of `make_initializer` set.

        Args:
          output_types: Dtypes of the components of an element.
          output_shapes: Their shapes; by default unknown.
          shared_name: Ignored.
          output_classes: `tf.Tensor` or `tf.sparse.SparseTensor` for each component; by default tensors.

        Example:
          >>> v1 = tf.compat.v1
          >>> with tf.Graph().as_default(), v1.Session() as session:
          ...     iterator = v1.data.Iterator.from_structure(tf.int64, [])
          ...     element = iterator.get_next()
          ...     for count in (2, 1):
          ...         session.run(iterator.make_initializer(tf.data.Dataset.range(count)))
          ...         print(session.run(element))
          0
          0
        """
        return GraphIterator(_make_specs(output_types, output_shapes, output_classes))

    @staticmethod
    def from_string_handle(
        string_handle: TensorLike,
        output_types: PyTree,
        output_shapes: PyTree = None,
        output_classes: PyTree = None,
    ) -> GraphIterator:
        """Return an iterator that takes its elements from the one with a handle; see `string_handle`."""
        specs = _make_specs(output_types, output_shapes, output_classes)
        return GraphIterator(specs, handle=_tf.convert_to_tensor(string_handle, _tf.string))

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
        """Return an operation that starts again at the first element.

        Raises:
          ValueError: If the iterator has no dataset of its own.
        """
        if self._initializer is None:
            raise ValueError(
                "The iterator does not have an initializer. It was created by from_structure or from_string_handle: use "
                "make_initializer(dataset)."
            )
        return self._initializer

    def make_initializer(self, dataset: Dataset, name: str | None = None) -> Operation:
        """Return an operation that starts at the first element of a dataset.

        Raises:
          TypeError: If dtypes, shapes or the structure of its elements differ.
        """
        _check_elements(self, dataset)
        start = functools.partial(self._start, dataset)
        operation: Operation = self._graph.record(start, name=name or "MakeIterator")
        return operation

    def _start(self, dataset: Dataset) -> None:
        if context.trace is None:
            self._running[self._graph.session] = iter(dataset)

    def string_handle(self, name: str | None = None) -> Tensor:
        """Return a string that refers to the iterator, for `from_string_handle`."""
        return _tf.constant(self._handle, name=name or "IteratorToStringHandle")

    def get_next(self, name: str | None = None) -> PyTree:
        """Return an operation that takes the next element."""
        inputs: list[Any] = [] if self._source_handle is None else [self._source_handle]
        specs = self.element_spec
        return self._graph.record_source(self._take, specs, name or "IteratorGetNext", inputs)

    def _take(self, handle: Tensor | None = None) -> PyTree:
        if handle is not None:
            key = handle.numpy().decode()
            if key not in _iterators:
                raise _tf.errors.NotFoundError(
                    None, None, f"There is no iterator with the handle {key!r}."
                )
            return _iterators[key]._take()
        if self._graph.session not in self._running:
            if not self._is_initialized or self._dataset is None:
                raise _tf.errors.FailedPreconditionError(
                    None,
                    None,
                    "GetNext() failed because the iterator has not been initialized. Ensure that you have run the "
                    "initializer operation for this iterator before getting the next element.",
                )
            self._start(self._dataset)
        try:
            return next(self._running[self._graph.session])
        except StopIteration:
            raise _tf.errors.OutOfRangeError(None, None, "End of sequence") from None


Iterator = GraphIterator
# The iterators of graphs by their handles.
_iterators: weakref.WeakValueDictionary[str, GraphIterator] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _make_specs(types: PyTree, shapes: PyTree, classes: PyTree) -> PyTree:
    """Return the specs of components with dtypes, shapes and classes."""

    def make_spec(dtype: DTypeLike, shape: ShapeLike, cls: type) -> TypeSpec:
        is_sparse = cls is _tf.sparse.SparseTensor
        return _tf.SparseTensorSpec(shape, dtype) if is_sparse else _tf.TensorSpec(shape, dtype)

    if shapes is None:
        shapes = _tf.nest.map_structure(lambda _: None, types)
    if classes is None:
        classes = _tf.nest.map_structure(lambda _: _tf.Tensor, types)
    return map_structure_up_to(types, make_spec, types, shapes, classes)


def _check_elements(iterator: GraphIterator, dataset: Dataset) -> None:
    """Check that the elements of a dataset fit the specs of an iterator."""
    expected, found = iterator.element_spec, dataset.element_spec
    _tf.nest.assert_same_structure(expected, found)
    for spec, other in zip(_tf.nest.flatten(expected), _tf.nest.flatten(found), strict=True):
        if spec.dtype != other.dtype:
            raise TypeError(
                f"Expected output types {spec.dtype!r} but got dataset with output types {other.dtype!r}."
            )
        if not spec.shape.is_compatible_with(other.shape):
            raise TypeError(
                f"Expected output shapes compatible with {spec.shape} but got dataset with output shapes {other.shape}."
            )


def make_one_shot_iterator(dataset: Dataset) -> Any:
    """Return an iterator over a dataset."""
    return (
        GraphIterator(dataset.element_spec, dataset, True)
        if has_explicit_graph()
        else iter(dataset)
    )


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Any:
    """Return an iterator over a dataset, which needs no initialization in eager execution.

    Args:
      dataset: The dataset.
      shared_name: Ignored.
    """
    return GraphIterator(dataset.element_spec, dataset) if has_explicit_graph() else iter(dataset)
