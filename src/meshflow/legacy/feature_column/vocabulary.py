"""Categorical columns with a vocabulary in a list or a file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.io import gfile
from meshflow.legacy.feature_column.base import CategoryIds, FeatureBatch, check_key
from meshflow.legacy.feature_column.categorical import (
    KeyedColumn,
    check_dtypes_match,
    to_category_dtype,
)
from meshflow.lookup import (
    KeyValueTensorInitializer,
    StaticHashTable,
    StaticVocabularyTable,
    TextFileIndex,
    TextFileInitializer,
)
from meshflow.ops import math


class _VocabularyColumn(KeyedColumn):
    """Base class of columns with a vocabulary."""

    default_value: int
    num_oov_buckets: int

    @property
    def needs_host(self) -> bool:
        """Whether the column holds strings, or hashes values that are not in the vocabulary."""
        return self.dtype is dtypes.string or bool(self.num_oov_buckets)

    def _create_initializer(self) -> KeyValueTensorInitializer | TextFileInitializer:
        raise NotImplementedError

    @functools.cached_property
    def _table(self) -> StaticHashTable | StaticVocabularyTable:
        if self.num_oov_buckets:
            return StaticVocabularyTable(self._create_initializer(), self.num_oov_buckets)
        return StaticHashTable(self._create_initializer(), self.default_value)

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Look up the values in the vocabulary."""
        values = features.get_categories(self.key)
        check_dtypes_match(values, self.dtype, self.key)
        missing: str | np.int64 = ""
        if values.dtype.is_integer:
            values, missing = math.cast(values, dtypes.int64), np.int64(-1)
        present = math.cast(math.not_equal(values, missing), dtypes.int64)
        # A missing value has no category, and thus must not get the default category.
        return CategoryIds((self._table.lookup(values) + 1) * present - 1)


@dataclasses.dataclass(frozen=True)
class VocabularyListCategoricalColumn(_VocabularyColumn):
    """Values of a list; created by `categorical_column_with_vocabulary_list`."""

    key: str
    vocabulary_list: tuple[str | bytes | int, ...]
    dtype: dtypes.DType
    default_value: int
    num_oov_buckets: int

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        return len(self.vocabulary_list) + self.num_oov_buckets

    def _create_initializer(self) -> KeyValueTensorInitializer:
        key_dtype = dtypes.int64 if self.dtype.is_integer else self.dtype
        indices = np.arange(len(self.vocabulary_list), dtype=np.int64)
        return KeyValueTensorInitializer(
            list(self.vocabulary_list), indices, key_dtype, dtypes.int64
        )


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[str | bytes | int],
    dtype: DTypeLike | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyListCategoricalColumn:
    """Create a column of categories that a list of strings or integers defines.

    Args:
      key: Key of the feature; '' and -1 mean no category.
      vocabulary_list: Values, without duplicates.
      dtype: string or an integer dtype; default that of the list.
      default_value: Category of values that are not in the list; -1 for none.
      num_oov_buckets: Number of additional categories, to which other values are hashed.

    Raises:
      ValueError: If the list is empty or has duplicates, a dtype does not match, `num_oov_buckets`
        is negative, or both it and a default are passed.

    Example:
      >>> colour = tf.feature_column.categorical_column_with_vocabulary_list("colour", ["red", "blue"])
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(colour)])
      >>> layer({"colour": ["blue", "grey"]}).numpy().tolist()
      [[0.0, 1.0], [0.0, 0.0]]
    """
    check_key(key)
    values = (
        [] if vocabulary_list is None else list(np.asarray(vocabulary_list).reshape(-1).tolist())
    )
    if not values:
        raise ValueError(f"vocabulary_list {vocabulary_list} must be non-empty, column_name: {key}")
    if len(set(values)) != len(values):
        raise ValueError(f"Duplicate keys in vocabulary_list {vocabulary_list}, column_name: {key}")
    list_dtype = (
        dtypes.string
        if isinstance(values[0], (str, bytes))
        else dtypes.as_dtype(np.asarray(values).dtype)
    )
    column_dtype = to_category_dtype(list_dtype if dtype is None else dtype, key)
    to_category_dtype(list_dtype, key)
    if column_dtype.is_integer != list_dtype.is_integer:
        raise ValueError(
            f"dtype {column_dtype} and vocabulary dtype {list_dtype} do not match, column_name: {key}"
        )
    _check_oov_arguments(key, default_value, num_oov_buckets)
    return VocabularyListCategoricalColumn(
        key, tuple(values), column_dtype, default_value, num_oov_buckets
    )


@dataclasses.dataclass(frozen=True)
class VocabularyFileCategoricalColumn(_VocabularyColumn):
    """Lines of a file; created by `categorical_column_with_vocabulary_file`."""

    key: str
    vocabulary_file: str
    vocabulary_size: int
    num_oov_buckets: int
    dtype: dtypes.DType
    default_value: int

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        return self.vocabulary_size + self.num_oov_buckets

    def _create_initializer(self) -> TextFileInitializer:
        return TextFileInitializer(
            self.vocabulary_file,
            dtypes.int64 if self.dtype.is_integer else self.dtype,
            TextFileIndex.WHOLE_LINE,
            dtypes.int64,
            TextFileIndex.LINE_NUMBER,
            self.vocabulary_size,
        )


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str,
    vocabulary_size: int | None = None,
    dtype: DTypeLike = dtypes.string,
    default_value: int | None = None,
    num_oov_buckets: int = 0,
    file_format: str | None = None,
) -> VocabularyFileCategoricalColumn:
    r"""Create a column of categories that the lines of a file define.

    Args:
      key: Key of the feature; '' and -1 mean no category.
      vocabulary_file: Path of a text file with one value in each line.
      vocabulary_size: Number of lines to use; default all.
      dtype: string or an integer dtype.
      default_value: Category of values that are not in the file; default -1, none.
      num_oov_buckets: Number of additional categories, to which other values are hashed.
      file_format: 'text', or None for the same.

    Raises:
      ValueError: If the file name is missing, the size is not positive, `num_oov_buckets` is
        negative, both it and a default are passed, or the format is unknown.
      NotFoundError: If the file does not exist.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "colours.txt")
      >>> tf.io.write_file(path, "red\nblue\n")
      >>> colour = tf.feature_column.categorical_column_with_vocabulary_file("colour", path)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(colour)])
      >>> layer({"colour": ["blue", "grey"]}).numpy().tolist()
      [[0.0, 1.0], [0.0, 0.0]]
    """
    check_key(key)
    if not vocabulary_file:
        raise ValueError(f"Missing vocabulary_file in {key}.")
    if file_format not in (None, "text"):
        raise ValueError(f"file_format must be 'text' or None, got {file_format!r}.")
    if vocabulary_size is None:
        with gfile.GFile(vocabulary_file, "rb") as file:
            vocabulary_size = sum(1 for _ in file)
    if vocabulary_size < 1:
        raise ValueError(f"Invalid vocabulary_size in {key}.")
    _check_oov_arguments(key, default_value, num_oov_buckets)
    return VocabularyFileCategoricalColumn(
        key,
        vocabulary_file,
        vocabulary_size,
        num_oov_buckets or 0,
        to_category_dtype(dtype, key),
        -1 if default_value is None else default_value,
    )


def _check_oov_arguments(key: str, default_value: int | None, num_oov_buckets: int) -> None:
    if not num_oov_buckets:
        return
    if default_value not in (None, -1):
        raise ValueError(f"Can't specify both num_oov_buckets and default_value in {key}.")
    if num_oov_buckets < 0:
        raise ValueError(f"Invalid num_oov_buckets {num_oov_buckets} in {key}.")
