"""`tf.data.Dataset`: a graph of transformations, and the methods that build it."""

from __future__ import annotations

import contextvars
import copy
import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.autograph.conversion import resolve
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure, traced_loop
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.epoch import Epoch, OwnedIterator
from meshflow.data.execution import chunks
from meshflow.data.execution.affine import AffineMap
from meshflow.data.execution.batched_gather import Gather
from meshflow.data.execution.resumable import Raising
from meshflow.data.execution.stopwatch import Stopwatch
from meshflow.data.execution.timing import timed
from meshflow.data.methods import Transformations
from meshflow.data.options import Options
from meshflow.data.specs import DatasetSpec, described_by
from meshflow.data.states import function_of_state
from meshflow.data.static_shapes import StaticShapes

# Whether an element may be made to see what elements are like.
_probing: contextvars.ContextVar[bool] = contextvars.ContextVar("probing", default=True)


class _Unknown(Exception):
    """Only an element would tell what elements are like."""


class Vector(NamedTuple):
    """A dataset as a stream of indices and a way to gather their elements at once.

    Attributes:
      gather: from an array of indices to the stacked leaves of their elements.
      blocks: arrays of indices, in order.
      reach: how far indices that are gathered together may lie apart; None for any distance.
      mapped: from a list of affine maps to a function like `gather`, for their results; None where
        none are computed while elements are gathered.
      in_order: whether the indices are 0 to the number of elements - 1.
      extent: indices are below it; None where that is not known.
    """

    gather: Gather
    blocks: Iterator[np.ndarray]
    reach: int | None = None
    mapped: Callable[[list[AffineMap]], Gather] | None = None
    in_order: bool = False
    extent: int | None = None


@described_by(DatasetSpec)
class Dataset(Transformations["Dataset"]):
    """A sequence of elements: nested tuples and dictionaries of tensors.

    Datasets are made by `from_tensor_slices`, `range`, `from_generator` and others, and changed by
    methods that give new datasets. Iterating gives tensors, every time from the start.

    Example:
      >>> import meshflow as tf
      >>> dataset = tf.data.Dataset.range(5).map(lambda x: x * x).batch(2)
      >>> [batch.numpy().tolist() for batch in dataset]
      [[0, 1], [4, 9], [16]]
    """

    _parents: tuple[Dataset, ...] = ()
    # Whether parents make their elements in another thread.
    _apart = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        timed(cls)

    @functools.cached_property
    def _stopwatch(self) -> Stopwatch:
        return Stopwatch()

    def _copied(self) -> Any:
        """A copy that can be changed, and whose time is its own."""
        made = copy.copy(self)
        made.__dict__.pop("_stopwatch", None)
        return made

    # ---- what a transformation defines -----------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """The spec of the elements: `tf.TensorSpec`s in their structure.

        Example:
          >>> import meshflow as tf
          >>> tf.data.Dataset.range(10).batch(4, drop_remainder=True).element_spec
          TensorSpec(shape=(4,), dtype=tf.int64, name=None)
        """
        return self._spec

    @property
    def _type_spec(self) -> DatasetSpec:
        return DatasetSpec(self.element_spec)

    @functools.cached_property
    def _spec(self) -> Any:
        spec = self._known_spec()
        if spec is not None:
            return spec
        if not _probing.get():
            raise _Unknown
        # Only an element tells what an untraceable function returns.
        elements = self._elements(Epoch(self))
        try:
            first = next(elements, None)
        finally:
            elements.close()
        return None if first is None else structure.relaxed(structure.spec_of(first))

    def _spec_untouched(self) -> Any:
        """The spec of the elements as far as it is known without any of them; None when only they tell."""
        token = _probing.set(False)
        try:
            return self._spec
        except _Unknown:
            return None
        finally:
            _probing.reset(token)

    def _known_spec(self) -> Any:
        return self._parents[0].element_spec

    def _count(self) -> int:
        """Number of elements, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return self._parents[0]._count()

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """The elements as host arrays; the default hands out what `_in_chunks` gives."""
        rows = self._rows(epoch)
        assert rows is not None, type(self)
        return rows

    def _rows(self, epoch: Epoch) -> Generator[Any, None, None] | None:
        """The elements of the chunks, None when there are none."""
        stream = self._in_chunks(epoch)
        if stream is None:
            return None
        return Raising(chunks.rows(stream, self.element_spec))

    def _in_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        """The elements many at a time, as in `chunks.py`; None when only single ones can be made."""
        vector = self._vector(epoch)
        if vector is None:
            return self._by_chunks(epoch)
        return chunks.gathered(vector.gather, vector.blocks, chunks.size_for(self.element_spec))

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        """The chunks where `_vector` gives None; None when there are none."""
        return None

    def _vector(self, epoch: Epoch) -> Vector | None:
        """The vectorized form, None when there is none."""
        return None

    def _static_shapes(self) -> StaticShapes | None:
        """What is known of the elements before there are any; None when a compiled loop needs to know more."""
        count, spec = self._count(), self.element_spec
        if count < INFINITE_CARDINALITY or not structure.static(spec):
            return None
        return StaticShapes(spec, count, None)

    def _why_not_vectorized(self) -> str:
        """Why `_vector` gives None, for `explain`."""
        return "it goes by elements"

    # ---- looking at it ---------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return OwnedIterator(self)

    def __autograph_for__(self) -> Any:
        # `for element in dataset` in a function that AutoGraph converts.
        return traced_loop.elements(self)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """An iterator over NumPy arrays and scalars instead of tensors.

        Example:
          >>> import meshflow as tf
          >>> list(tf.data.Dataset.range(3).as_numpy_iterator())
          [np.int64(0), np.int64(1), np.int64(2)]

        Raises:
          TypeError: when elements are datasets.
        """
        for leaf in nest.flatten(self.element_spec):
            if isinstance(leaf, DatasetSpec):
                raise TypeError(
                    f"`as_numpy_iterator()` is not supported for datasets of datasets: {self.element_spec}."
                )
        return OwnedIterator(self, _to_numpy)

    def cardinality(self) -> Tensor:
        """The number of elements, an int64 scalar; -1 for infinitely many, -2 when it is not known.

        Example:
          >>> import meshflow as tf
          >>> int(tf.data.Dataset.range(10).batch(4).cardinality())
          3
        """
        return convert_to_tensor(np.int64(self._count()))

    def __len__(self) -> int:
        count = self._count()
        if count == INFINITE_CARDINALITY:
            raise TypeError("The dataset is infinite.")
        if count == UNKNOWN_CARDINALITY:
            raise TypeError("The dataset length is unknown.")
        return count

    def __bool__(self) -> bool:
        return True

    @property
    def infinite(self) -> bool:
        """Whether it never ends."""
        return self._count() == INFINITE_CARDINALITY

    def get_single_element(self, name: str | None = None) -> Any:
        """The only element.

        Raises:
          InvalidArgumentError: when there is none, or more than one.

        Example:
          >>> import meshflow as tf
          >>> int(tf.data.Dataset.from_tensors(42).get_single_element())
          42
        """
        iterator = OwnedIterator(self)
        found = [element for element, _ in zip(iterator, range(2), strict=False)]
        iterator.close()
        if len(found) != 1:
            raise InvalidArgumentError(
                "Dataset was empty." if not found else "Dataset had more than one element."
            )
        return found[0]

    def __repr__(self) -> str:
        name = type(self).__name__
        name = _TENSORFLOW_NAMES.get(name, name.removesuffix("Dataset") + "Dataset")
        return f"<{name} element_spec={self.element_spec}>"

    @property
    def _options(self) -> Options:
        merged = Options()
        for parent in self._parents:
            merged = merged.merge(parent._options)
        return merged

    def options(self) -> Options:
        """The options set on this dataset and those it is made of, which cannot be changed."""
        return self._options.frozen()

    # ---- reductions ------------------------------------------------------------------------

    def reduce(
        self, initial_state: Any, reduce_func: Callable[..., Any], name: str | None = None
    ) -> Any:
        """Combines all elements.

        Args:
          initial_state: a structure of tensors.
          reduce_func: from (state, element) to the next state.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> int(tf.data.Dataset.range(5).reduce(tf.constant(0, tf.int64), lambda s, x: s + x))
          10
        """
        if context.trace is not None:
            return _reduced_in_trace(self, initial_state, reduce_func)
        state = structure.to_arrays(initial_state)
        epoch = Epoch(self, counts=True)
        elements: Iterator[Any] = self._elements(epoch)
        spec = self._spec_untouched()
        if spec is None:
            # The element that tells the spec is the first one of this pass: no function is called for it twice.
            first = list(itertools.islice(elements, 1))
            if not first:
                return structure.to_tensors(state)
            spec = structure.relaxed(structure.spec_of(first[0]))
            elements = itertools.chain(first, elements)
        function = function_of_state(reduce_func, state, spec, "reduce")
        for element in elements:
            state = function((state, element), epoch.random_states)
        return structure.to_tensors(state)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """A function of this dataset.

        Args:
          transformation_func: from a dataset to a dataset.

        Raises:
          TypeError: when it gives something else.

        Example:
          >>> import meshflow as tf
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


timed(Dataset)


def _reduced_in_trace(dataset: Dataset, state: Any, reduce_func: Callable[..., Any]) -> Any:
    """What `reduce` gives, as a loop of the program that is traced."""
    step = resolve(reduce_func)

    def reduced(state: Any) -> Any:
        for element in dataset:
            state = step(state, element)
        return state

    return resolve(reduced)(structure.to_tensors(state))


def _to_numpy(element: Any) -> Any:
    return structure.normalize(element, _numpy_leaf)


def _numpy_leaf(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    if array.ndim == 0:
        return array[()]
    # Its memory may be a tensor's, or the dataset's.
    array = array.view()
    array.flags.writeable = False
    return array


# What TensorFlow prints for datasets whose classes have other names here.
_TENSORFLOW_NAMES = {
    "Fixed": "_VariantDataset",
    "Generator": "FlatMapDataset",
    "HostMap": "MapDataset",
    "Slice": "TakeDataset",
    "TensorSlices": "TensorSliceDataset",
    "Tensors": "TensorDataset",
    "TextLineDataset": "TextLineDatasetV2",
    "TFRecordDataset": "TFRecordDatasetV2",
    "WithOptions": "OptionsDataset",
}
