"""`tf.data.experimental`: older names as functions to `apply`, and what explains a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from meshflow.core.runtime.errors import OutOfRangeError
from meshflow.core.values.tensor import Tensor
from meshflow.data import options as _options
from meshflow.data import structure, transformations
from meshflow.data.arguments import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    integer,
)
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, OwnedIterator
from meshflow.data.execution import map_function
from meshflow.data.explaining import explain
from meshflow.data.optional import Optional
from meshflow.data.readers.arrow import from_arrow, from_parquet
from meshflow.data.readers.csv_rows import CsvDataset, make_csv_dataset
from meshflow.data.readers.external import from_grain, from_huggingface
from meshflow.data.readers.sql import (
    SqlDataset,
    make_batched_features_dataset,
    parse_example_dataset,
)
from meshflow.data.readers.tar import from_webdataset
from meshflow.data.workers import map_with_workers
from meshflow.io.records import TFRecordWriter as Records

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "AutotuneAlgorithm",
    "AutotuneOptions",
    "Counter",
    "CsvDataset",
    "DistributeOptions",
    "ExternalStatePolicy",
    "OptimizationOptions",
    "Optional",
    "RandomDataset",
    "Reducer",
    "SqlDataset",
    "TFRecordWriter",
    "ThreadingOptions",
    "assert_cardinality",
    "at",
    "bucket_by_sequence_length",
    "cardinality",
    "choose_from_datasets",
    "copy_to_device",
    "dense_to_ragged_batch",
    "dense_to_sparse_batch",
    "enable_debug_mode",
    "enumerate_dataset",
    "explain",
    "from_arrow",
    "from_grain",
    "from_huggingface",
    "from_list",
    "from_parquet",
    "from_webdataset",
    "get_next_as_optional",
    "get_single_element",
    "get_structure",
    "group_by_reducer",
    "group_by_window",
    "ignore_errors",
    "load",
    "make_batched_features_dataset",
    "make_csv_dataset",
    "map_and_batch",
    "map_with_workers",
    "pad_to_cardinality",
    "parallel_interleave",
    "parse_example_dataset",
    "prefetch_to_device",
    "rejection_resample",
    "sample_from_datasets",
    "save",
    "scan",
    "shuffle_and_repeat",
    "snapshot",
    "take_while",
    "unbatch",
    "unique",
]

P = ParamSpec("P")

AutoShardPolicy = _options.AutoShardPolicy
AutotuneAlgorithm = _options.AutotuneAlgorithm
AutotuneOptions = _options.AutotuneOptions
DistributeOptions = _options.DistributeOptions
ExternalStatePolicy = _options.ExternalStatePolicy
OptimizationOptions = _options.OptimizationOptions
ThreadingOptions = _options.ThreadingOptions
choose_from_datasets = Dataset.choose_from_datasets
load = Dataset.load
sample_from_datasets = Dataset.sample_from_datasets
save = Dataset.save


def _applied(
    method: Callable[Concatenate[Dataset, P], Dataset],
) -> Callable[P, Callable[[Dataset], Dataset]]:
    """A function of a method's arguments that gives a function to `apply`."""
    name = method.__name__

    def made(*args: P.args, **kwargs: P.kwargs) -> Callable[[Dataset], Dataset]:
        return lambda dataset: getattr(dataset, name)(*args, **kwargs)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"A function to `apply` that does what `Dataset.{name}` does."
    return made


bucket_by_sequence_length = _applied(Dataset.bucket_by_sequence_length)
dense_to_ragged_batch = _applied(Dataset.ragged_batch)
dense_to_sparse_batch = _applied(Dataset.sparse_batch)
enumerate_dataset = _applied(Dataset.enumerate)
group_by_window = _applied(Dataset.group_by_window)
ignore_errors = _applied(Dataset.ignore_errors)
rejection_resample = _applied(Dataset.rejection_resample)
scan = _applied(Dataset.scan)
snapshot = _applied(Dataset.snapshot)
take_while = _applied(Dataset.take_while)
unbatch = _applied(Dataset.unbatch)
unique = _applied(Dataset.unique)


def cardinality(dataset: Dataset) -> Tensor:
    """`dataset.cardinality()`.

    Example:
      >>> import meshflow as tf
      >>> int(tf.data.experimental.cardinality(tf.data.Dataset.range(10).batch(4)))
      3
    """
    return dataset.cardinality()


def assert_cardinality(expected_cardinality: Any) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that states, and checks, the number of elements.

    Args:
      expected_cardinality: the number.

    Raises:
      FailedPreconditionError: while iterating, when there are more or fewer.

    Example:
      >>> import meshflow as tf
      >>> evens = tf.data.Dataset.range(10).filter(lambda x: x % 2 == 0)
      >>> int(evens.cardinality()) == tf.data.UNKNOWN_CARDINALITY
      True
      >>> int(evens.apply(tf.data.experimental.assert_cardinality(5)).cardinality())
      5
    """
    return lambda dataset: transformations.AssertCardinality(dataset, expected_cardinality)


def parallel_interleave(
    map_func: Callable[..., Dataset],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool | None = False,
    buffer_output_elements: Any = None,
    prefetch_input_elements: Any = None,
) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that does what `Dataset.interleave` does.

    Args:
      map_func: as for `interleave`.
      cycle_length: as for `interleave`.
      block_length: as for `interleave`.
      sloppy: accepted; the order is always the same.
      buffer_output_elements: accepted.
      prefetch_input_elements: accepted.

    Example:
      >>> import meshflow as tf
      >>> twice = lambda x: tf.data.Dataset.from_tensors(x).repeat(2)
      >>> make = tf.data.experimental.parallel_interleave(twice, cycle_length=2)
      >>> [int(x) for x in tf.data.Dataset.range(3).apply(make)]
      [0, 1, 0, 1, 2, 2]
    """
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def shuffle_and_repeat(
    buffer_size: Any, count: Any = None, seed: int | None = None
) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that shuffles, then repeats.

    Args:
      buffer_size: as for `shuffle`.
      count: as for `repeat`.
      seed: as for `shuffle`.

    Example:
      >>> import meshflow as tf
      >>> data = tf.data.Dataset.range(3).apply(tf.data.experimental.shuffle_and_repeat(3, count=2))
      >>> sorted(int(x) for x in data)
      [0, 0, 1, 1, 2, 2]
    """
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: bool = False,
    num_parallel_calls: Any = None,
) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that maps, then batches.

    Args:
      map_func: as for `map`.
      batch_size: as for `batch`.
      num_parallel_batches: accepted.
      drop_remainder: as for `batch`.
      num_parallel_calls: as for `map`.

    Raises:
      ValueError: when both of `num_parallel_batches` and `num_parallel_calls` are given.

    Example:
      >>> import meshflow as tf
      >>> data = tf.data.Dataset.range(4).apply(tf.data.experimental.map_and_batch(lambda x: x * x, 2))
      >>> [batch.tolist() for batch in data.as_numpy_iterator()]
      [[0, 1], [4, 9]]
    """
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError(
            "`map_and_batch` allows only one of `num_parallel_batches` and `num_parallel_calls` to be set."
        )
    return lambda dataset: dataset.map(map_func, num_parallel_calls).batch(
        batch_size, drop_remainder
    )


def prefetch_to_device(device: Any, buffer_size: Any = None) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that makes elements ahead.

    Args:
      device: accepted; elements go to a device when they are used.
      buffer_size: as for `prefetch`.

    Example:
      >>> import meshflow as tf
      >>> data = tf.data.Dataset.range(2).apply(tf.data.experimental.prefetch_to_device("/gpu:0"))
      >>> [int(x) for x in data]
      [0, 1]
    """
    return lambda dataset: dataset.prefetch(AUTOTUNE if buffer_size is None else buffer_size)


def copy_to_device(
    target_device: Any, source_device: Any = "/cpu:0"
) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that changes nothing: elements go to a device when they are used.

    Args:
      target_device: accepted.
      source_device: accepted.

    Example:
      >>> import meshflow as tf
      >>> data = tf.data.Dataset.range(2).apply(tf.data.experimental.copy_to_device("/gpu:0"))
      >>> [int(x) for x in data]
      [0, 1]
    """
    return lambda dataset: dataset


def get_single_element(dataset: Dataset) -> Any:
    """`dataset.get_single_element()`.

    Example:
      >>> import meshflow as tf
      >>> tf.data.experimental.get_single_element(tf.data.Dataset.range(3).batch(3)).numpy().tolist()
      [0, 1, 2]
    """
    return dataset.get_single_element()


def at(dataset: Dataset, index: Any) -> Any:
    """The element of a number; those before it are made too, unless elements are reached by number.

    Args:
      dataset: the dataset.
      index: the number, from 0.

    Raises:
      OutOfRangeError: when there is no such element.

    Example:
      >>> import meshflow as tf
      >>> tf.data.experimental.at(tf.data.Dataset.range(6).batch(2), 1).numpy().tolist()
      [2, 3]
    """
    number = integer(index, "index")
    iterator = OwnedIterator(dataset.skip(number)) if number >= 0 else None
    try:
        if iterator is None:
            raise StopIteration
        return next(iterator)
    except StopIteration:
        raise OutOfRangeError(f"The dataset has no element {number}.") from None
    finally:
        if iterator is not None:
            iterator.close()


def get_next_as_optional(iterator: OwnedIterator) -> Optional:
    """`iterator.get_next_as_optional()`.

    Example:
      >>> import meshflow as tf
      >>> iterator = iter(tf.data.Dataset.range(1))
      >>> bool(tf.data.experimental.get_next_as_optional(iterator).has_value())
      True
      >>> bool(tf.data.experimental.get_next_as_optional(iterator).has_value())
      False
    """
    return iterator.get_next_as_optional()


def get_structure(dataset_or_iterator: Any) -> Any:
    """The spec of the elements.

    Example:
      >>> import meshflow as tf
      >>> tf.data.experimental.get_structure(tf.data.Dataset.range(3).batch(2, drop_remainder=True))
      TensorSpec(shape=(2,), dtype=tf.int64, name=None)
    """
    return dataset_or_iterator.element_spec


def from_list(elements: list[Any], name: str | None = None) -> Dataset:
    """A dataset of the elements of a list.

    Args:
      elements: structures alike.
      name: ignored.

    Raises:
      ValueError: for an empty list.

    Example:
      >>> import meshflow as tf
      >>> [int(x) for x in tf.data.experimental.from_list([4, 5, 6])]
      [4, 5, 6]
    """
    if not isinstance(elements, list) or not elements:
        raise ValueError("`elements` must be a list that is not empty.")
    arrays = [structure.to_arrays(e) for e in elements]
    spec = structure.spec_of(arrays[0])
    for other in arrays[1:]:
        spec = structure.merged(spec, structure.spec_of(other))
    return transformations.Fixed(arrays, spec)


def Counter(start: int = 0, step: int = 1, dtype: Any = "int64") -> Dataset:
    """Numbers without end.

    Args:
      start: the first.
      step: their distance.
      dtype: their dtype.

    Example:
      >>> import meshflow as tf
      >>> [int(x) for x in tf.data.experimental.Counter(start=5, step=10).take(3)]
      [5, 15, 25]
    """
    return Dataset.counter(start, step, dtype)


def RandomDataset(seed: int | None = None, **kwargs: Any) -> Dataset:
    """`Dataset.random`.

    Args:
      seed: of the numbers.
      **kwargs: further arguments of `Dataset.random`.

    Example:
      >>> import meshflow as tf
      >>> tf.data.experimental.RandomDataset(seed=1).element_spec.dtype
      tf.int64
    """
    return Dataset.random(seed, **kwargs)


class Reducer:
    """What `group_by_reducer` does with the elements of a group.

    Args:
      init_func: from the key to the first state.
      reduce_func: from (state, element) to the next state.
      finalize_func: from the last state to the result.

    Example:
      >>> import meshflow as tf
      >>> count = tf.data.experimental.Reducer(lambda key: 0, lambda n, x: n + 1, lambda n: n)
      >>> data = tf.data.Dataset.range(10)
      >>> grouped = data.apply(tf.data.experimental.group_by_reducer(lambda x: x % 3, count))
      >>> [int(n) for n in grouped]
      [4, 3, 3]
    """

    def __init__(
        self,
        init_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        finalize_func: Callable[..., Any],
    ) -> None:
        self.init_func, self.reduce_func = init_func, reduce_func
        self.finalize_func = finalize_func


def group_by_reducer(
    key_func: Callable[..., Any], reducer: Reducer
) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that reduces the elements of each group to one, in the keys' order.

    Args:
      key_func: from an element to an int64 scalar.
      reducer: what is done with the elements of a group.

    Example:
      >>> import meshflow as tf
      >>> total = tf.data.experimental.Reducer(
      ...     lambda key: tf.constant(0, tf.int64), lambda state, x: state + x, lambda state: state)
      >>> groups = tf.data.Dataset.range(6).apply(
      ...     tf.data.experimental.group_by_reducer(lambda x: x % 2, total))
      >>> [int(x) for x in groups]
      [6, 9]
    """

    return lambda dataset: transformations.GroupByReducer(dataset, key_func, reducer)


def pad_to_cardinality(cardinality: int, mask_key: str = "valid") -> Callable[[Dataset], Dataset]:
    """A function to `apply` that fills a dataset of dictionaries up with zeros.

    Args:
      cardinality: how many elements there are to be.
      mask_key: the name of a new part that is True for the elements that were there.

    Raises:
      TypeError: for elements that are not dictionaries.
      ValueError: when there are more elements, or `mask_key` is taken.

    Example:
      >>> import meshflow as tf
      >>> data = tf.data.Dataset.from_tensor_slices({"x": [7, 8]})
      >>> padded = data.apply(tf.data.experimental.pad_to_cardinality(3))
      >>> [(int(e["x"]), bool(e["valid"])) for e in padded]
      [(7, True), (8, True), (0, False)]
    """

    def padded(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        if not isinstance(spec, dict):
            raise TypeError(f"The elements must be dictionaries, got {spec}.")
        if mask_key in spec:
            raise ValueError(f"Elements have a part {mask_key!r} already: {list(spec)}.")
        missing = cardinality - len(dataset)
        if missing < 0:
            raise ValueError(f"The dataset has more than {cardinality} elements: {len(dataset)}.")
        zeros = structure.map_specs(structure.zeros, spec)
        there = dataset.map(lambda element: {**element, mask_key: True})
        more = Dataset.from_tensors({**zeros, mask_key: False}).repeat(missing)
        return there.concatenate(more)

    return padded


def enable_debug_mode() -> None:
    """Lets functions of datasets that are made from now on run eagerly, one element at a time."""
    map_function.DEBUG["eager"] = True


class TFRecordWriter:
    """Writes the strings of a dataset to a record file.

    Args:
      filename: the file, which is made anew.
      compression_type: '', 'GZIP' or 'ZLIB'.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "records")
      ...     letters = tf.data.Dataset.from_tensor_slices(["a", "b"])
      ...     _ = tf.data.experimental.TFRecordWriter(path).write(letters)
      ...     list(tf.data.TFRecordDataset(path).as_numpy_iterator())
      [b'a', b'b']
    """

    def __init__(self, filename: Any, compression_type: Any = None) -> None:
        self._path, self._compression = filename, compression_type

    def write(self, dataset: Dataset) -> None:
        """Writes all elements.

        Args:
          dataset: a dataset of string scalars.

        Raises:
          TypeError: for something else.
        """
        if not isinstance(dataset, Dataset):
            raise TypeError(f"Expected a `tf.data.Dataset`, got {type(dataset).__name__}.")
        spec = dataset.element_spec
        if not structure.is_strings(spec):
            raise TypeError(f"The dataset must hold `tf.string` scalars, got {spec}.")
        with Records(self._path, self._compression) as writer:
            for element in dataset._elements(Epoch(dataset)):
                writer.write(element[()])
