"""`tf.data.Dataset`: a graph of transformations, and the methods that build it."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.epoch import OwnedIterator, Run
from meshflow.data.execution import chunks
from meshflow.data.execution.affine import Chain
from meshflow.data.execution.batched_gather import Gather
from meshflow.data.execution.resumable import Raising
from meshflow.data.execution.timing import Spent, timed
from meshflow.data.methods import Transformations
from meshflow.data.options import Options

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
# Stands for the number of workers, and for a worker's own, in `shard`.
SHARD_HINT = -1
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
      chained: from a list of chains to a function like `gather`, for what the chains give; None where
        none are computed while elements are gathered.
      in_order: whether the indices are 0 to the number of elements - 1.
      extent: indices are below it; None where that is not known.
    """

    gather: Gather
    blocks: Iterator[np.ndarray]
    reach: int | None = None
    chained: Callable[[list[Chain]], Gather] | None = None
    in_order: bool = False
    extent: int | None = None


class Dataset(Transformations):
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
    def _spent(self) -> Spent:
        return Spent()

    def _copied(self) -> Any:
        """A copy that can be changed, and whose time is its own."""
        made = copy.copy(self)
        made.__dict__.pop("_spent", None)
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
    def _type_spec(self) -> structure.DatasetSpec:
        return structure.DatasetSpec(self.element_spec)

    @functools.cached_property
    def _spec(self) -> Any:
        spec = self._known_spec()
        if spec is not None:
            return spec
        if not _probing.get():
            raise _Unknown
        # Only an element tells what an untraceable function returns.
        elements = self._elements(Run(self))
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

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        """The elements as host arrays; the default hands out what `_in_chunks` gives."""
        rows = self._rows(run)
        assert rows is not None, type(self)
        return rows

    def _rows(self, run: Run) -> Generator[Any, None, None] | None:
        """The elements of the chunks, None when there are none."""
        stream = self._in_chunks(run)
        if stream is None:
            return None
        return Raising(chunks.rows(stream, self.element_spec))

    def _in_chunks(self, run: Run) -> Iterator[Any] | None:
        """The elements many at a time, as in `chunks.py`; None when only single ones can be made."""
        vector = self._vector(run)
        if vector is None:
            return self._by_chunks(run)
        return chunks.gathered(vector.gather, vector.blocks, chunks.size_for(self.element_spec))

    def _by_chunks(self, run: Run) -> Iterator[Any] | None:
        """The chunks where `_vector` gives None; None when there are none."""
        return None

    def _vector(self, run: Run) -> Vector | None:
        """The vectorized form, None when there is none."""
        return None

    def _why_not_vectorized(self) -> str:
        """Why `_vector` gives None, for `explain`."""
        return "it goes by elements"

    # ---- looking at it ---------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return OwnedIterator(self)

    def __autograph_for__(self) -> Any:
        # `for element in dataset` in a function that AutoGraph converts.
        from meshflow.data import traced_loop

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
        for leaf in structure.nest.flatten(self.element_spec):
            if isinstance(leaf, structure.DatasetSpec):
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
        from meshflow.core.runtime.errors import InvalidArgumentError

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
        from meshflow.data.states import function_of_state

        if context.trace is not None:
            return _reduced_in_trace(self, initial_state, reduce_func)
        state = structure.to_arrays(initial_state)
        run = Run(self, counts=True)
        elements: Iterator[Any] = self._elements(run)
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
            state = function((state, element), run.draws)
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
    from meshflow.core.autograph.conversion import resolve

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


def takes(fn: Callable[..., Any]) -> int:
    """How many positional arguments a function takes; a large number for any number."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 1 << 30
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def integer(value: Any, name: str) -> int:
    """An argument as an integer.

    Raises:
      TypeError: when it is none.
    """
    if isinstance(value, Tensor):
        value = value._concrete(f"`{name}` of a dataset")[()]
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}.") from None


def as_sequence(value: Any) -> Sequence[Any]:
    """A value as a list of one, a list or tuple as it is."""
    return value if isinstance(value, (list, tuple)) else [value]


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
