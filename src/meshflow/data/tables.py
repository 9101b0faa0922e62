"""Variants of datasets, and lookup tables of the elements of datasets."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, int64, string, variant
from meshflow.core.values.shapes import TensorShape
from meshflow.data.dataset import Dataset
from meshflow.environment.types import PyTree
from meshflow.lookup import KeyValueTensorInitializer, StaticHashTable, StaticVocabularyTable


class DatasetVariant:
    """A dataset as a value without elements, which only `from_variant` accepts.

    Args:
      dataset: The dataset.
    """

    dtype, shape = variant, TensorShape([])

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset


def to_variant(dataset: Dataset) -> DatasetVariant:
    """Return a dataset as a variant.

    Example:
      >>> dataset = tf.data.Dataset.range(2)
      >>> variant = tf.data.experimental.to_variant(dataset)
      >>> [int(x) for x in tf.data.experimental.from_variant(variant, dataset.element_spec)]
      [0, 1]
    """
    return DatasetVariant(dataset)


def from_variant(variant: DatasetVariant, structure: PyTree) -> Dataset:
    """Return the dataset of a variant.

    Args:
      variant: Result of `to_variant`.
      structure: Spec of the elements.

    Raises:
      InvalidArgumentError: If the first argument is no variant.
    """
    if not isinstance(variant, DatasetVariant):
        raise InvalidArgumentError(
            f"from_variant: expected a result of to_variant, got {variant!r}."
        )
    return variant.dataset


class DatasetInitializer(KeyValueTensorInitializer):
    """Keys and values of a table, from a dataset of pairs.

    Args:
      dataset: Finite dataset of pairs of scalars.

    Example:
      >>> pairs = tf.data.Dataset.from_tensor_slices((["a", "b"], [1, 2]))
      >>> table = tf.lookup.StaticHashTable(tf.data.experimental.DatasetInitializer(pairs), -1)
      >>> table.lookup(tf.constant(["b", "z"])).numpy()
      array([ 2, -1], dtype=int32)
    """

    def __init__(self, dataset: Dataset) -> None:
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) != 2:
            raise ValueError(
                f"DatasetInitializer: expected a dataset of pairs, got elements {spec}."
            )
        if any(not part.shape.is_compatible_with([]) for part in spec):
            raise ValueError(
                f"DatasetInitializer: keys and values of a dataset must be scalars, got elements {spec}."
            )
        pairs = list(dataset.as_numpy_iterator())
        columns = []
        for index, part in enumerate(spec):
            dtype = object if part.dtype is string else part.dtype.as_numpy_dtype
            columns.append(np.array([pair[index] for pair in pairs], dtype))
        super().__init__(columns[0], columns[1], spec[0].dtype, spec[1].dtype)


def table_from_dataset(
    dataset: Dataset | None = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: Any = None,
    hasher_spec: object = None,
    key_dtype: DTypeLike = string,
    name: str | None = None,
) -> StaticHashTable | StaticVocabularyTable:
    """Return a lookup table of the pairs of a dataset.

    Args:
      dataset: Dataset of keys and values.
      num_oov_buckets: Number of values for unknown keys.
      vocab_size: Number of pairs that are used. Default: all.
      default_value: Value of unknown keys, if `num_oov_buckets` is 0.
      hasher_spec: Ignored: unknown keys are hashed by FarmHash.
      key_dtype: Dtype of the keys.
      name: Ignored.

    Raises:
      ValueError: If an argument is invalid.
    """
    if dataset is None:
        raise ValueError("`dataset` must be specified.")
    if num_oov_buckets < 0:
        raise ValueError(f"`num_oov_buckets` must be >= 0, got {num_oov_buckets}.")
    if num_oov_buckets and default_value is not None:
        raise ValueError("`default_value` and `num_oov_buckets` can not both be passed.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"`vocab_size` must be > 0, got {vocab_size}.")
    initializer = DatasetInitializer(dataset if vocab_size is None else dataset.take(vocab_size))
    key: DType = as_dtype(key_dtype)
    if not (key.is_integer or key == string):
        raise TypeError(f"Only integer and string keys are supported, got key_dtype={key}.")
    if num_oov_buckets:
        return StaticVocabularyTable(initializer, num_oov_buckets, key)
    return StaticHashTable(initializer, -1 if default_value is None else default_value)


def index_table_from_dataset(
    dataset: Dataset | None = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: object = None,
    key_dtype: DTypeLike = string,
    name: str | None = None,
) -> StaticHashTable | StaticVocabularyTable:
    """Return a lookup table of the indices of the elements of a dataset; see `table_from_dataset`."""
    if dataset is None:
        raise ValueError("`dataset` must be specified.")
    pairs = dataset.enumerate().map(lambda index, key: (key, index))
    default: Any = None if num_oov_buckets else np.array(default_value, int64.as_numpy_dtype)
    return table_from_dataset(pairs, num_oov_buckets, vocab_size, default, hasher_spec, key_dtype)
