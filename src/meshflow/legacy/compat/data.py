"""Names of `tf.compat.v1.data` that TensorFlow 2 does not have."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator as PythonIterator
from typing import Any

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data.dataset import Dataset
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.legacy.graph.datasets import GraphDataset
from meshflow.legacy.graph.execution import Find, Run
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
    """Iterator of a graph; operations take its elements.

    Args:
      dataset: The dataset; None for an iterator that initializers of several datasets start, or a string that a
        session computes: the handle of another iterator.
      is_initialized: Whether the iterator starts at the first element that a session requests.
      element_spec: The spec of the elements. Default: that of the dataset.
    """

    def __init__(self, dataset: Any, is_initialized: bool, element_spec: PyTree = None) -> None:
        self._dataset, self._is_initialized = dataset, is_initialized
        self._graph = get_default_graph()
        self._spec = dataset.element_spec if element_spec is None else element_spec
        # The iterators over the elements by the session.
        self._running: weakref.WeakKeyDictionary[Any, PythonIterator[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._handle: Tensor | None = None
        self.name = self._graph.name_operation("Iterator")
        # Several threads may run a session.
        self._lock = threading.Lock()
        if isinstance(dataset, (Dataset, GraphDataset)):
            self._initializer: Operation = self.make_initializer(dataset)

    def make_initializer(self, dataset: Any, name: str | None = None) -> Operation:
        """Return an operation that starts at the first element of a dataset.

        Args:
          dataset: Dataset with elements of the same structure and dtypes.
          name: Name of the operation.

        Raises:
          TypeError: If dtypes, shapes or the structure of the elements differ.
        """
        _check_elements(self, dataset)

        def start(run: Run) -> list[Any]:
            self._start(dataset, run.find)
            return []

        graph = self._graph
        name = graph.name_operation(name or "MakeIterator")
        inputs = dataset.inputs if isinstance(dataset, GraphDataset) else []
        return Operation(graph, name, "MakeIterator", start, inputs)

    def string_handle(self, name: str | None = None) -> Tensor:
        """Return a string that represents the iterator in `from_string_handle`."""
        if self._handle is None:
            self._handle = _tf.constant(
                f"iterator{id(self)}", name=name or "IteratorToStringHandle"
            )
            _by_handle[f"iterator{id(self)}".encode()] = self
        return self._handle

    @staticmethod
    def from_structure(
        output_types: PyTree,
        output_shapes: PyTree = None,
        shared_name: str | None = None,
        output_classes: PyTree = None,
    ) -> GraphIterator:
        """Create an iterator for the elements of any dataset of a structure; see `make_initializer`.

        Args:
          output_types: Dtypes of the elements.
          output_shapes: Shapes of the elements. Default: unknown.
          shared_name: Ignored.
          output_classes: `tf.Tensor` or `tf.sparse.SparseTensor` for each component. Default: tensors.
        """
        return GraphIterator(None, False, _make_specs(output_types, output_shapes, output_classes))

    @staticmethod
    def from_string_handle(
        string_handle: Any,
        output_types: PyTree,
        output_shapes: PyTree = None,
        output_classes: PyTree = None,
    ) -> GraphIterator:
        """Create an iterator that takes the elements of another one, which a session selects by its handle.

        Args:
          string_handle: String tensor: the value of `string_handle` of an iterator.
          output_types: Dtypes of the elements.
          output_shapes: Shapes of the elements. Default: unknown.
          output_classes: `tf.Tensor` or `tf.sparse.SparseTensor` for each component. Default: tensors.
        """
        return GraphIterator(
            string_handle, True, _make_specs(output_types, output_shapes, output_classes)
        )

    @property
    def element_spec(self) -> PyTree:
        """Return the specs of the elements."""
        return self._spec

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
          ValueError: If the iterator has no dataset, or starts without initialization.
        """
        if self._is_initialized or self._dataset is None:
            raise ValueError(
                "The iterator does not have an initializer. Use make_initializer(dataset)."
            )
        return self._initializer

    def _start(self, dataset: Any, find: Find) -> None:
        if isinstance(dataset, GraphDataset):
            dataset = dataset.build(find)
        self._running[self._graph.session] = iter(dataset)

    def get_next(self, name: str | None = None) -> PyTree:
        """Return an operation that takes the next element."""
        name, specs = name or "IteratorGetNext", self._spec
        if isinstance(self._dataset, (Dataset, GraphDataset, type(None))):
            return self._graph.record_source(self.take, specs, name)
        handle = _tf.convert_to_tensor(self._dataset)
        return self._graph.record_source(
            lambda value: _find_iterator(value).take(), specs, name, [handle]
        )

    def take(self) -> PyTree:
        """Return the next element of the iterator in the session that runs.

        Raises:
          OutOfRangeError: If there is none.
        """
        iterator = self.find_running()
        try:
            with self._lock:
                return next(iterator)
        except StopIteration:
            raise _tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def find_running(self) -> Any:
        """Return the iterator over the elements in the session that runs."""
        if self._graph.session not in self._running:
            if not self._is_initialized or self._dataset is None:
                raise _tf.errors.FailedPreconditionError(
                    None,
                    None,
                    "GetNext() failed because the iterator has not been initialized. Ensure that you have run the "
                    "initializer operation for this iterator before getting the next element.",
                )
            self._start(self._dataset, Run({}).find)
        return self._running[self._graph.session]


# Iterators by their handles.
_by_handle: weakref.WeakValueDictionary[bytes, GraphIterator] = weakref.WeakValueDictionary()


def _find_iterator(handle: Tensor) -> GraphIterator:
    key: Any = handle.numpy()
    if key not in _by_handle:
        raise _tf.errors.NotFoundError(None, None, f"There is no iterator with the handle {key!r}.")
    return _by_handle[key]


def _make_specs(types: PyTree, shapes: PyTree, classes: PyTree) -> PyTree:
    """Return the specs of components with dtypes, shapes and classes; None for unknown shapes and for tensors."""

    def make_spec(dtype: DTypeLike, shape: ShapeLike, cls: type) -> TypeSpec:
        is_sparse = cls is _tf.sparse.SparseTensor
        return _tf.SparseTensorSpec(shape, dtype) if is_sparse else _tf.TensorSpec(shape, dtype)

    if shapes is None:
        shapes = _tf.nest.map_structure(lambda _: None, types)
    if classes is None:
        classes = _tf.nest.map_structure(lambda _: _tf.Tensor, types)
    return map_structure_up_to(types, make_spec, types, shapes, classes)


def _check_elements(iterator: GraphIterator, dataset: Any) -> None:
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
    return GraphIterator(dataset, True) if has_explicit_graph() else iter(dataset)


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Any:
    """Return an iterator over a dataset, which needs no initialization in eager execution.

    Args:
      dataset: The dataset.
      shared_name: Ignored.
    """
    return GraphIterator(dataset, False) if has_explicit_graph() else iter(dataset)


class _IteratorType(type):
    """Type of `GraphIterators`; iterators of graphs and of eager execution are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (GraphIterator, _tf.data.Iterator))


class GraphIterators(metaclass=_IteratorType):
    """Iterators over datasets in graphs; see `make_initializable_iterator`."""

    from_structure = staticmethod(GraphIterator.from_structure)
    from_string_handle = staticmethod(GraphIterator.from_string_handle)


Iterator = GraphIterators

# Datasets of version 1 have these methods and attributes.
for _class in (Dataset, GraphDataset):
    for _create in (make_one_shot_iterator, make_initializable_iterator):
        setattr(_class, _create.__name__, _create)
    for _get in (get_output_types, get_output_shapes, get_output_classes):
        setattr(_class, _get.__name__.removeprefix("get_"), property(_get))
