"""`tf.data.experimental`: functions for `Dataset.apply`, readers, and the explanation of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from meshflow.core.runtime.errors import (
    FailedPreconditionError,
    InvalidValueError,
    OutOfRangeError,
)
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor
from meshflow.data import options as _options
from meshflow.data import structure, transformations
from meshflow.data.arguments import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    IntLike,
    to_int,
)
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import DatasetIterator, Epoch
from meshflow.data.execution import map_function
from meshflow.data.explanation import explain
from meshflow.data.iterator_states import make_saveable_from_iterator
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
from meshflow.data.tables import (
    DatasetInitializer,
    from_variant,
    index_table_from_dataset,
    table_from_dataset,
    to_variant,
)
from meshflow.data.workers import map_with_workers
from meshflow.environment.types import PyTree, StrPath
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
    "DatasetInitializer",
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
    "from_variant",
    "from_webdataset",
    "get_next_as_optional",
    "get_single_element",
    "get_structure",
    "group_by_reducer",
    "group_by_window",
    "ignore_errors",
    "index_table_from_dataset",
    "load",
    "make_batched_features_dataset",
    "make_csv_dataset",
    "make_saveable_from_iterator",
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
    "table_from_dataset",
    "take_while",
    "to_variant",
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


def _make_apply_function(
    method: Callable[Concatenate[Dataset, P], Dataset],
) -> Callable[P, Callable[[Dataset], Dataset]]:
    """Turn a method of `Dataset` into a function that returns a function for `apply`."""
    name = method.__name__

    def make_transformation(*args: P.args, **kwargs: P.kwargs) -> Callable[[Dataset], Dataset]:
        return lambda dataset: getattr(dataset, name)(*args, **kwargs)

    make_transformation.__name__ = make_transformation.__qualname__ = name
    make_transformation.__doc__ = (
        f"Return a function for `Dataset.apply` that calls `Dataset.{name}`."
    )
    return make_transformation


bucket_by_sequence_length = _make_apply_function(Dataset.bucket_by_sequence_length)
dense_to_ragged_batch = _make_apply_function(Dataset.ragged_batch)
dense_to_sparse_batch = _make_apply_function(Dataset.sparse_batch)
enumerate_dataset = _make_apply_function(Dataset.enumerate)
group_by_window = _make_apply_function(Dataset.group_by_window)
ignore_errors = _make_apply_function(Dataset.ignore_errors)
rejection_resample = _make_apply_function(Dataset.rejection_resample)
scan = _make_apply_function(Dataset.scan)
snapshot = _make_apply_function(Dataset.snapshot)
take_while = _make_apply_function(Dataset.take_while)
unbatch = _make_apply_function(Dataset.unbatch)
unique = _make_apply_function(Dataset.unique)


def cardinality(dataset: Dataset) -> Tensor:
    """Return `dataset.cardinality()`.

    Example:
      >>> int(tf.data.experimental.cardinality(tf.data.Dataset.range(10).batch(4)))
      3
    """
    return dataset.cardinality()


def assert_cardinality(expected_cardinality: IntLike) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that sets the number of elements.

    Every pass checks the number.

    Args:
      expected_cardinality: The number of elements.

    Raises:
      FailedPreconditionError: While iterating, if there are more or fewer elements.

    Example:
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
    buffer_output_elements: IntLike | None = None,
    prefetch_input_elements: IntLike | None = None,
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that calls `Dataset.interleave`.

    Args:
      map_func: As for `interleave`.
      cycle_length: As for `interleave`.
      block_length: As for `interleave`.
      sloppy: Ignored; the order is always the same.
      buffer_output_elements: Ignored.
      prefetch_input_elements: Ignored.

    Example:
      >>> twice = lambda x: tf.data.Dataset.from_tensors(x).repeat(2)
      >>> interleave = tf.data.experimental.parallel_interleave(twice, cycle_length=2)
      >>> [int(x) for x in tf.data.Dataset.range(3).apply(interleave)]
      [0, 1, 0, 1, 2, 2]
    """
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def shuffle_and_repeat(
    buffer_size: IntLike, count: IntLike | None = None, seed: int | None = None
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that shuffles the elements and then repeats them.

    Args:
      buffer_size: As for `shuffle`.
      count: As for `repeat`.
      seed: As for `shuffle`.

    Example:
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
    """Return a function for `Dataset.apply` that maps the elements and then batches them.

    Args:
      map_func: As for `map`.
      batch_size: As for `batch`.
      num_parallel_batches: Ignored.
      drop_remainder: As for `batch`.
      num_parallel_calls: As for `map`.

    Raises:
      ValueError: If both `num_parallel_batches` and `num_parallel_calls` are passed.

    Example:
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


def prefetch_to_device(
    device: str, buffer_size: IntLike | None = None
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that prefetches elements.

    Args:
      device: Ignored; elements are transferred to a device when they are used.
      buffer_size: As for `prefetch`.

    Example:
      >>> data = tf.data.Dataset.range(2).apply(tf.data.experimental.prefetch_to_device("/gpu:0"))
      >>> [int(x) for x in data]
      [0, 1]
    """
    return lambda dataset: dataset.prefetch(AUTOTUNE if buffer_size is None else buffer_size)


def copy_to_device(
    target_device: str, source_device: str = "/cpu:0"
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that does nothing.

    Elements are transferred to a device when they are used.

    Args:
      target_device: Ignored.
      source_device: Ignored.

    Example:
      >>> data = tf.data.Dataset.range(2).apply(tf.data.experimental.copy_to_device("/gpu:0"))
      >>> [int(x) for x in data]
      [0, 1]
    """
    return lambda dataset: dataset


def get_single_element(dataset: Dataset) -> PyTree:
    """Return `dataset.get_single_element()`.

    Example:
      >>> tf.data.experimental.get_single_element(tf.data.Dataset.range(3).batch(3)).numpy().tolist()
      [0, 1, 2]
    """
    return dataset.get_single_element()


def at(dataset: Dataset, index: IntLike) -> PyTree:
    """Return the element at an index.

    The elements before it are computed, too, unless the dataset supports access by index.

    Args:
      dataset: The dataset.
      index: Index of the element, from 0.

    Raises:
      OutOfRangeError: If there is no such element.
      FailedPreconditionError: If the dataset is infinite.

    Example:
      >>> tf.data.experimental.at(tf.data.Dataset.range(6).batch(2), 1).numpy().tolist()
      [2, 3]
    """
    position = to_int(index, "index")
    if dataset.infinite:
        raise FailedPreconditionError(
            "Datasets with infinite cardinality do not support random access."
        )
    iterator = iter(dataset.skip(position)) if position >= 0 else None
    try:
        if iterator is None:
            raise StopIteration
        return next(iterator)
    except StopIteration:
        raise OutOfRangeError(f"The dataset has no element {position}.") from None
    finally:
        if iterator is not None:
            iterator.close()


def get_next_as_optional(iterator: DatasetIterator) -> Optional:
    """Return `iterator.get_next_as_optional()`.

    Example:
      >>> iterator = iter(tf.data.Dataset.range(1))
      >>> bool(tf.data.experimental.get_next_as_optional(iterator).has_value())
      True
      >>> bool(tf.data.experimental.get_next_as_optional(iterator).has_value())
      False
    """
    return iterator.get_next_as_optional()


def get_structure(dataset_or_iterator: Dataset | DatasetIterator) -> PyTree:
    """Return the spec of the elements of a dataset or iterator.

    Example:
      >>> tf.data.experimental.get_structure(tf.data.Dataset.range(3).batch(2, drop_remainder=True))
      TensorSpec(shape=(2,), dtype=tf.int64, name=None)
    """
    return dataset_or_iterator.element_spec


def from_list(elements: list[Any], name: str | None = None) -> Dataset:
    """Create a dataset of the elements of a list.

    Args:
      elements: Elements of the same structure and dtypes.
      name: Ignored.

    Raises:
      ValueError: If the list is empty.

    Example:
      >>> [int(x) for x in tf.data.experimental.from_list([4, 5, 6])]
      [4, 5, 6]
    """
    if not isinstance(elements, list) or not elements:
        raise ValueError("`elements` must be a list that is not empty.")
    arrays = [structure.to_arrays(e) for e in elements]
    spec = structure.infer_spec(arrays[0])
    for array in arrays[1:]:
        spec = structure.merge_specs(spec, structure.infer_spec(array))
    return transformations.ElementList(arrays, spec)


def Counter(start: int = 0, step: int = 1, dtype: DTypeLike = "int64") -> Dataset:
    """Create an infinite dataset of equally spaced integers, like `Dataset.counter`.

    Args:
      start: The first element.
      step: Difference between consecutive elements.
      dtype: Dtype of the elements.

    Example:
      >>> [int(x) for x in tf.data.experimental.Counter(start=5, step=10).take(3)]
      [5, 15, 25]
    """
    return Dataset.counter(start, step, dtype)


def RandomDataset(seed: int | None = None, **kwargs: Any) -> Dataset:
    """Create an infinite dataset of random integers, like `Dataset.random`.

    Args:
      seed: Seed.
      **kwargs: Further arguments of `Dataset.random`.

    Example:
      >>> tf.data.experimental.RandomDataset(seed=1).element_spec.dtype
      tf.int64
    """
    return Dataset.random(seed, **kwargs)


class Reducer:
    """The functions that `group_by_reducer` applies to a group of elements.

    Args:
      init_func: Function from the key to the first state.
      reduce_func: Function from (state, element) to the next state.
      finalize_func: Function from the last state to the result.

    Example:
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
    """Return a function for `Dataset.apply` that reduces each group of elements to one.

    The results are in the order of the keys.

    Args:
      key_func: Function from an element to an int64 scalar.
      reducer: The functions that are applied to a group.

    Example:
      >>> total = tf.data.experimental.Reducer(
      ...     lambda key: tf.constant(0, tf.int64), lambda state, x: state + x, lambda state: state)
      >>> groups = tf.data.Dataset.range(6).apply(
      ...     tf.data.experimental.group_by_reducer(lambda x: x % 2, total))
      >>> [int(x) for x in groups]
      [6, 9]
    """
    return lambda dataset: transformations.GroupByReducer(dataset, key_func, reducer)


def pad_to_cardinality(cardinality: int, mask_key: str = "valid") -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that pads a dataset of dictionaries with zeros.

    Args:
      cardinality: Number of elements after padding.
      mask_key: Key of a new bool component, which is True for the elements that are not padding.

    Raises:
      ValueError: If the elements are not dictionaries, their number is unknown, there are more than `cardinality` elements, or the elements contain `mask_key`.

    Example:
      >>> data = tf.data.Dataset.from_tensor_slices({"x": [7, 8]})
      >>> padded = data.apply(tf.data.experimental.pad_to_cardinality(3))
      >>> [(int(e["x"]), bool(e["valid"])) for e in padded]
      [(7, True), (8, True), (0, False)]
    """

    def pad(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        if not isinstance(spec, dict):
            raise InvalidValueError(
                f"`pad_to_cardinality` requires its input dataset to be a dictionary. Its elements are {spec}."
            )
        if mask_key in spec:
            raise ValueError(f"The elements already contain the key {mask_key!r}: {list(spec)}.")
        count = dataset.count_elements()
        if count < 0:
            raise ValueError(
                "The dataset passed into `pad_to_cardinality` must have a known cardinalty, but has cardinality "
                f"{count}. Use `assert_cardinality` first."
            )
        missing = cardinality - count
        if missing < 0:
            raise ValueError(
                "The dataset passed into `pad_to_cardinality` must have a cardinalty less than the target cardinality "
                f"({cardinality}), but has cardinality {count}."
            )
        zeros = structure.map_specs(structure.make_zeros, spec)
        masked = dataset.map(lambda element: {**element, mask_key: True})
        padding = Dataset.from_tensors({**zeros, mask_key: False}).repeat(missing)
        return masked.concatenate(padding)

    return pad


def enable_debug_mode() -> None:
    """Run functions of datasets that are created from now on eagerly, one element at a time."""
    map_function.DEBUG["eager"] = True


class TFRecordWriter:
    """Writes the strings of a dataset to a TFRecord file.

    Args:
      filename: The file, which is overwritten.
      compression_type: '', 'GZIP' or 'ZLIB'.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "records")
      ...     letters = tf.data.Dataset.from_tensor_slices(["a", "b"])
      ...     _ = tf.data.experimental.TFRecordWriter(path).write(letters)
      ...     list(tf.data.TFRecordDataset(path).as_numpy_iterator())
      [b'a', b'b']
    """

    def __init__(self, filename: StrPath, compression_type: str | None = None) -> None:
        self._path, self._compression = filename, compression_type

    def write(self, dataset: Dataset) -> None:
        """Write all elements.

        Args:
          dataset: A dataset of scalar strings.

        Raises:
          TypeError: If the argument is something else.
        """
        if not isinstance(dataset, Dataset):
            raise TypeError(f"Expected a `tf.data.Dataset`, got {type(dataset).__name__}.")
        spec = dataset.element_spec
        if not structure.is_string_scalar(spec):
            raise TypeError(f"The dataset must hold `tf.string` scalars, got {spec}.")
        with Records(self._path, self._compression) as writer:
            for element in dataset.iter_elements(Epoch(dataset)):
                writer.write(element[()])


_hide_frames(globals())

__getattr__ = _explain_names("tf.data.experimental")
