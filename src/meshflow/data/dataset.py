"""`tf.data.Dataset`: the public class of datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, overload

import jax
import numpy as np

from meshflow.core.autograph.conversion import convert_callable
from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.iterators.iterator_captures import Element
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.staging.loops import LoopElements
from meshflow.core.values import nest
from meshflow.core.values.composite import is_extension
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data import sparse_leaves, structure, traced_loop
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.epoch import DatasetIterator, Epoch
from meshflow.data.methods.elementwise import ElementwiseMethods
from meshflow.data.methods.groups import GroupingMethods
from meshflow.data.methods.order import OrderMethods
from meshflow.data.methods.sources import SourceMethods
from meshflow.data.node import DatasetNode
from meshflow.data.options import Options
from meshflow.data.specs import DatasetSpec, register_value_type
from meshflow.data.states import make_state_function
from meshflow.environment.html_tables import format_table
from meshflow.environment.types import NumpyValue, PyTree
from meshflow.ops.ragged import RaggedRow, RaggedTensor

Result = TypeVar("Result")


@register_value_type(DatasetSpec)
@hide_frames_of_methods
class Dataset(
    SourceMethods, ElementwiseMethods[Element], GroupingMethods[Element], OrderMethods[Element]
):
    """A sequence of elements, each a nested structure of tensors.

    Create a dataset with `from_tensor_slices`, `range`, `from_generator` or a similar constructor,
    and transform it with methods such as `map`, `shuffle` and `batch`, which return new datasets.
    Iterating over a dataset yields its elements, from the first one every time.

    Example:
      >>> dataset = tf.data.Dataset.range(5).map(lambda x: x * x).batch(2)
      >>> [batch.numpy().tolist() for batch in dataset]
      [[0, 1], [4, 9], [16]]
    """

    # The name that TensorFlow prints for a dataset of this class, if it is not the name of the class + "Dataset".
    _tensorflow_name: ClassVar[str | None] = None

    # Set by the functions of `keras.utils` that read folders.
    class_names: list[str]
    file_paths: list[str]

    def __iter__(self) -> DatasetIterator[Element]:
        return DatasetIterator(self)

    def __autograph_for__(self) -> LoopElements | None:
        # AutoGraph calls this method for `for element in dataset` in a function that it converts.
        return traced_loop.make_loop_elements(self)

    @overload
    def as_numpy_iterator(self: Dataset[Tensor]) -> Iterator[NumpyValue]: ...
    @overload
    def as_numpy_iterator(self) -> Iterator[PyTree]: ...
    def as_numpy_iterator(self) -> Iterator[PyTree]:
        """Return an iterator over elements of NumPy arrays and scalars instead of tensors.

        Sparse tensors become dense arrays, and ragged tensors what `tf.RaggedTensor.numpy` returns.

        Raises:
          TypeError: If the elements contain datasets, extension types, tensor arrays or optionals.

        Example:
          >>> list(tf.data.Dataset.range(3).as_numpy_iterator())
          [np.int64(0), np.int64(1), np.int64(2)]
        """
        for leaf in nest.flatten(self.element_spec):
            if isinstance(leaf, DatasetSpec):
                raise TypeError(
                    "`as_numpy_iterator()` is not supported for datasets that produce values of type "
                    f"{leaf.value_type} (datasets of datasets): {self.element_spec}."
                )
            value_type = getattr(leaf, "value_type", Tensor)
            if is_extension(value_type) or issubclass(value_type, structure.ElementLeaf):
                raise TypeError(
                    f"`as_numpy_iterator()` is not supported for datasets that produce values of type {value_type}."
                )
        return NumpyIterator(self)

    def iter_host_values(self) -> Iterator[PyTree]:
        """Return an iterator over elements of NumPy arrays, scalars and composite tensors."""
        return DatasetIterator(self, _to_host_values)

    def cardinality(self) -> Tensor:
        """Return the number of elements as an int64 scalar.

        The result is `tf.data.INFINITE_CARDINALITY` (-1) for an infinite dataset, and
        `tf.data.UNKNOWN_CARDINALITY` (-2) if only a pass determines the number.

        Example:
          >>> int(tf.data.Dataset.range(10).batch(4).cardinality())
          3
        """
        return convert_to_tensor(np.int64(self.count_elements()))

    def __len__(self) -> int:
        count = self.count_elements()
        if count == INFINITE_CARDINALITY:
            raise TypeError("The dataset is infinite.")
        if count == UNKNOWN_CARDINALITY:
            raise TypeError("The dataset length is unknown.")
        return count

    def __bool__(self) -> bool:
        return True

    def get_single_element(self, name: str | None = None) -> Element:
        """Return the only element.

        Args:
          name: Ignored.

        Raises:
          InvalidArgumentError: If the dataset has no element, or more than one.

        Example:
          >>> int(tf.data.Dataset.from_tensors(42).get_single_element())
          42
        """
        iterator: DatasetIterator[Element] = DatasetIterator(self)
        elements = [element for element, _ in zip(iterator, range(2), strict=False)]
        iterator.close()
        if len(elements) != 1:
            raise InvalidArgumentError(
                "Dataset was empty." if not elements else "Dataset had more than one element."
            )
        return elements[0]

    def _inputs(self) -> list[DatasetNode]:
        # Libraries walk pipelines by this name of TensorFlow.
        return list(self.parents)

    def __repr__(self) -> str:
        name = type(self).__name__.removesuffix("Dataset") + "Dataset"
        name = vars(type(self)).get("_tensorflow_name") or name
        # TensorFlow 2.15 shows the names of private classes.
        is_public = name.startswith("_") or name.endswith("V2") or name == "CacheDataset"
        name = name if is_public else f"_{name}"
        return f"<{name} element_spec={self.element_spec}>"

    def _repr_html_(self) -> str:
        count = self.count_elements()
        cardinality = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}
        leaves = jax.tree_util.tree_leaves_with_path(
            self.element_spec, is_leaf=lambda leaf: leaf is None or isinstance(leaf, TypeSpec)
        )
        rows = [
            [f"element{jax.tree_util.keystr(path)}", *_describe_leaf(leaf)] for path, leaf in leaves
        ]
        caption = repr(self).partition(" ")[0].removeprefix("<")
        notes = [f"Number of elements: {cardinality.get(count, f'{count:,}')}"]
        return format_table(["component", "shape", "dtype"], rows, caption, notes)

    def options(self) -> Options:
        """Return a read-only copy of the options that are in effect for this dataset.

        They combine the options of `with_options` of this dataset and of all datasets that it is
        derived from.
        """
        return self.merged_options.freeze()

    @overload
    def reduce(
        self,
        initial_state: Tensor | np.ndarray | np.generic | float,
        reduce_func: Callable[..., Any],
        name: str | None = None,
    ) -> Tensor: ...
    @overload
    def reduce(
        self, initial_state: PyTree, reduce_func: Callable[..., Any], name: str | None = None
    ) -> PyTree: ...
    def reduce(
        self, initial_state: PyTree, reduce_func: Callable[..., Any], name: str | None = None
    ) -> PyTree:
        """Combine all elements into one structure of tensors.

        Args:
          initial_state: Nested structure of tensors.
          reduce_func: Function from (state, element) to the next state, of the same structure and
            dtypes.
          name: Ignored.

        Returns:
          The state after the last element.

        Example:
          >>> int(tf.data.Dataset.range(5).reduce(tf.constant(0, tf.int64), lambda s, x: s + x))
          10
        """
        if context.trace is not None:
            return _reduce_in_trace(self, initial_state, reduce_func)
        state = structure.to_arrays(initial_state)
        epoch = Epoch(self, measures_time=True)
        elements: Iterator[Any] = self.iter_elements(epoch)
        spec = self._infer_spec_without_elements()
        if spec is None:
            # Only an element determines the spec. Taking the first element of this pass makes sure that no
            # function of the pipeline is called twice for it.
            first = list(itertools.islice(elements, 1))
            if not first:
                return structure.to_tensors(state)
            spec = structure.relax_spec(structure.infer_spec(first[0]))
            elements = itertools.chain(first, elements)
        function = make_state_function(reduce_func, state, spec, "reduce")
        for element in elements:
            state = function((state, element), epoch.random_states)
        return structure.to_tensors(state)

    def apply(
        self, transformation_func: Callable[[Dataset[Element]], Dataset[Result]]
    ) -> Dataset[Result]:
        """Apply a function to this dataset.

        Args:
          transformation_func: Function from a dataset to a dataset.

        Raises:
          TypeError: If the function does not return a dataset.

        Example:
          >>> evens = lambda dataset: dataset.filter(lambda x: x % 2 == 0)
          >>> [int(x) for x in tf.data.Dataset.range(6).apply(evens)]
          [0, 2, 4]
        """
        dataset = transformation_func(self)
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"`transformation_func` must return a `tf.data.Dataset` object. Got {type(dataset)}."
            )
        return dataset


def _reduce_in_trace(
    dataset: Dataset, initial_state: PyTree, reduce_func: Callable[..., Any]
) -> PyTree:
    """Reduce a dataset by a loop of the program that is being traced."""
    step = convert_callable(reduce_func)

    def reduce_elements(state: PyTree) -> PyTree:
        for element in dataset:
            state = step(state, element)
        return state

    return convert_callable(reduce_elements)(structure.to_tensors(initial_state))


def _describe_leaf(leaf: Any) -> tuple[str, str]:
    """Return the shape and the dtype as text, or the type without a shape."""
    if not isinstance(leaf, TensorSpec):
        return "", str(leaf)
    return str(leaf.shape), leaf.dtype.name


def _to_numpy(element: PyTree) -> PyTree:
    return structure.map_leaves(element, _leaf_to_numpy)


def _leaf_to_numpy(leaf: Any) -> Any:
    if isinstance(leaf, SparseTensor):
        return sparse_leaves.to_dense_array(leaf)
    return leaf.numpy() if isinstance(leaf, (Tensor, RaggedTensor)) else _to_host_value(leaf)


def _to_host_values(element: PyTree) -> PyTree:
    return structure.map_leaves(element, _to_host_value)


def _to_host_value(leaf: Any) -> Any:
    """Return a read-only view of an array, a NumPy scalar for an array of rank 0, other leaves as they are."""
    if isinstance(leaf, RaggedRow):
        leaf = leaf.array
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.ndim == 0:
        return leaf[()]
    # The view is read-only because the memory may belong to a tensor or to the dataset.
    view = leaf.view()
    view.flags.writeable = False
    return view


class NumpyIterator(DatasetIterator):
    """Iterator over the elements of a dataset as NumPy arrays.

    Args:
      dataset: The dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, _to_numpy)
