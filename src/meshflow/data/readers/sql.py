"""Datasets of the rows of SQL databases, and of parsed `tf.train.Example` records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError, UnknownError
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import TensorLike
from meshflow.data.arguments import AUTOTUNE, UNKNOWN_CARDINALITY, IntLike
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.readers.records import TFRecordDataset
from meshflow.data.transformations.base import Rearrange
from meshflow.data.transformations.elementwise import Map
from meshflow.environment.types import PyTree
from meshflow.io.parsing import make_feature_specs, parse_example


class SqlDataset(Dataset):
    """The rows that a query of an SQLite database returns, each a tuple of scalars.

    Args:
      driver_name: 'sqlite'.
      data_source_name: File of the database.
      query: A SELECT statement.
      output_types: A dtype for each column: an integer dtype, float64, bool or string.

    Raises:
      InvalidArgumentError: If the driver is not supported; while iterating, if the number of
        columns differs from that of the dtypes.

    Example:
      >>> import os, sqlite3, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "a.db")
      >>> with sqlite3.connect(path) as database:
      ...     _ = database.execute("CREATE TABLE people (name TEXT, age INTEGER)")
      ...     _ = database.execute("INSERT INTO people VALUES ('Ann', 40), ('Bob', 30)")
      >>> database.close()
      >>> rows = tf.data.experimental.SqlDataset(
      ...     "sqlite", path, "SELECT name, age FROM people ORDER BY age", (tf.string, tf.int32))
      >>> [(name.numpy(), int(age)) for name, age in rows]
      [(b'Bob', 30), (b'Ann', 40)]
    """

    def __init__(
        self,
        driver_name: TensorLike,
        data_source_name: TensorLike,
        query: TensorLike,
        output_types: DTypeLike | Sequence[DTypeLike],
    ) -> None:
        driver, self._path, self._query = map(_to_str, (driver_name, data_source_name, query))
        if driver != "sqlite":
            raise InvalidArgumentError(f"driver_name must be 'sqlite', got {driver!r}.")
        types = output_types if isinstance(output_types, (tuple, list)) else (output_types,)
        self._dtypes = [dtypes.as_dtype(t) for t in types]
        for kind in self._dtypes:
            if kind.is_complex or kind.name in ("float32", "float16", "bfloat16"):
                raise InvalidValueError(
                    f"output_types: SQLite columns have no type {kind.name}. Read float64 and use tf.cast."
                )

    def _infer_spec(self) -> PyTree:
        return tuple(TensorSpec([], kind) for kind in self._dtypes)

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because only a pass runs the query."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Run the query, and convert each row to a tuple of scalar arrays."""
        # The connection may be closed by another thread, if the dataset is prefetched.
        connection = sqlite3.connect(self._path, check_same_thread=False)
        try:
            for row in connection.execute(self._query):
                if len(row) != len(self._dtypes):
                    raise InvalidArgumentError(
                        f"The query returns {len(row)} columns, but output_types has {len(self._dtypes)}: {self._query}"
                    )
                yield tuple(_convert_value(v, k) for v, k in zip(row, self._dtypes, strict=True))
        except sqlite3.Error as error:
            raise UnknownError(f"{self._path}: {error}: {self._query}") from None
        finally:
            connection.close()


def _to_str(value: TensorLike) -> str:
    if hasattr(value, "numpy"):
        value = value.numpy()
    return value.decode() if isinstance(value, bytes) else str(value)


def _convert_value(value: Any, dtype: dtypes.DType) -> np.ndarray:
    """Convert a value of a column to an array; NULL becomes 0 or an empty string."""
    if dtype is dtypes.string:
        text = b"" if value is None else value if isinstance(value, bytes) else str(value).encode()
        return np.array(text, object)
    return np.asarray(0 if value is None else value).astype(dtype.as_numpy_dtype)


def parse_example_dataset(
    features: Mapping[str, Any],
    num_parallel_calls: IntLike | None = 1,
    deterministic: bool | None = None,
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that parses batches of serialized `tf.train.Example`s.

    Args:
      features: As for `tf.io.parse_example`.
      num_parallel_calls: As for `Dataset.map`.
      deterministic: Ignored.

    Raises:
      ValueError: If there are no features.

    Example:
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
      >>> parse = tf.data.experimental.parse_example_dataset({"x": tf.io.FixedLenFeature([], tf.int64)})
      >>> parsed = tf.data.Dataset.from_tensor_slices([record, record]).batch(2).apply(parse)
      >>> next(iter(parsed))["x"].numpy().tolist()
      [7, 7]
    """
    if not features:
        raise ValueError("Missing: `features` was None or empty.")

    def parse(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        is_strings = isinstance(spec, TensorSpec) and spec.dtype is dtypes.string
        if not is_strings or spec.shape.rank != 1:
            raise TypeError(
                f"Input dataset should be a dataset of vectors of strings. Instead it is {spec}."
            )
        infer_spec = lambda spec: make_feature_specs(features, spec.shape.as_list())
        return Map(dataset, lambda x: parse_example(x, features), num_parallel_calls, infer_spec)

    return parse


def make_batched_features_dataset(
    file_pattern: TensorLike,
    batch_size: IntLike,
    features: Mapping[str, Any],
    reader: Callable[..., Dataset] | None = None,
    label_key: str | None = None,
    reader_args: Sequence[Any] | None = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: IntLike | None = None,
    reader_num_threads: int | None = None,
    parser_num_threads: int | None = None,
    sloppy_ordering: bool = False,
    drop_final_batch: bool = False,
) -> Dataset:
    """Create a dataset of batches of parsed features from files of `tf.train.Example`s.

    Args:
      file_pattern: Files or patterns with wildcards.
      batch_size: Number of records in a batch.
      features: As for `tf.io.parse_example`; every record must contain all features that are not
        sparse.
      reader: Function from a file name to a dataset of strings, by default
        `tf.data.TFRecordDataset`.
      label_key: Feature that is returned separately as the label.
      reader_args: Further arguments of the reader.
      num_epochs: Number of repetitions, by default indefinitely.
      shuffle: Whether to read files and records in random order.
      shuffle_buffer_size: As for `Dataset.shuffle`.
      shuffle_seed: As for `Dataset.shuffle`.
      prefetch_buffer_size: Number of batches to prefetch.
      reader_num_threads: Number of files that are interleaved.
      parser_num_threads: As `num_parallel_calls` of `Dataset.map`.
      sloppy_ordering: Ignored; the order is always preserved.
      drop_final_batch: Whether to drop a smaller last batch.

    Raises:
      ValueError: If `label_key` is not a feature.

    Example:
      >>> import os, tempfile
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "records")
      ...     with tf.io.TFRecordWriter(path) as writer:
      ...         writer.write(record)
      ...     spec = {"x": tf.io.FixedLenFeature([], tf.int64)}
      ...     data = tf.data.experimental.make_batched_features_dataset(path, 2, spec, num_epochs=2)
      ...     next(iter(data))["x"].numpy().tolist()
      [7, 7]
    """
    if label_key is not None and label_key not in features:
        raise ValueError(f"The `label_key` {label_key!r} must be one of the `features`.")
    read, arguments = reader or TFRecordDataset, reader_args or []
    dataset = Dataset.list_files(file_pattern, shuffle=shuffle, seed=shuffle_seed)
    dataset = dataset.interleave(lambda name: read(name, *arguments), reader_num_threads or 1, 1)
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    if num_epochs != 1:
        dataset = dataset.repeat(num_epochs)
    dataset = dataset.batch(batch_size, drop_final_batch or num_epochs is None)
    dataset = dataset.apply(parse_example_dataset(features, parser_num_threads or 2))
    if label_key is not None:

        def split_label(parsed: dict[str, Any]) -> PyTree:
            return {k: v for k, v in parsed.items() if k != label_key}, parsed[label_key]

        dataset = Rearrange(dataset, split_label)
    return dataset.prefetch(AUTOTUNE if prefetch_buffer_size is None else prefetch_buffer_size)
