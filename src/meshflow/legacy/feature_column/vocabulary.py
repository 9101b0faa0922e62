"""Columns of categories that a list or a file names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.values import dtypes
from meshflow.io import gfile
from meshflow.legacy.feature_column.base import Features, Ids, check_key
from meshflow.legacy.feature_column.categorical import KeyedColumn, category_dtype, check_kind
from meshflow.lookup import (
    KeyValueTensorInitializer,
    StaticHashTable,
    StaticVocabularyTable,
    TextFileIndex,
    TextFileInitializer,
)
from meshflow.ops import math

__all__ = [
    "VocabularyFileCategoricalColumn",
    "VocabularyListCategoricalColumn",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
]


class _VocabularyColumn(KeyedColumn):
    """What both columns have in common."""

    default_value: int
    num_oov_buckets: int

    @property
    def on_host(self) -> bool:
        """For strings, and when unknown values are hashed."""
        return self.dtype is dtypes.string or bool(self.num_oov_buckets)

    def _content(self) -> Any:
        raise NotImplementedError

    @functools.cached_property
    def _table(self) -> Any:
        if self.num_oov_buckets:
            return StaticVocabularyTable(self._content(), self.num_oov_buckets)
        return StaticHashTable(self._content(), self.default_value)

    def ids(self, features: Features) -> Ids:
        """Places of the values in the vocabulary."""
        values = features.categories(self.key)
        check_kind(values, self.dtype, self.key)
        missing: Any = ""
        if values.dtype.is_integer:
            values, missing = math.cast(values, dtypes.int64), np.int64(-1)
        present = math.cast(math.not_equal(values, missing), dtypes.int64)
        # A missing value is no category, not an unknown one.
        return Ids((self._table.lookup(values) + 1) * present - 1)


@dataclasses.dataclass(frozen=True)
class VocabularyListCategoricalColumn(_VocabularyColumn):
    """Values of a list; made by `categorical_column_with_vocabulary_list`."""

    key: str
    vocabulary_list: tuple[Any, ...]
    dtype: dtypes.DType
    default_value: int
    num_oov_buckets: int

    @property
    def num_buckets(self) -> int:
        """How many categories there are."""
        return len(self.vocabulary_list) + self.num_oov_buckets

    def _content(self) -> Any:
        kind = dtypes.int64 if self.dtype.is_integer else self.dtype
        places = np.arange(len(self.vocabulary_list), dtype=np.int64)
        return KeyValueTensorInitializer(list(self.vocabulary_list), places, kind, dtypes.int64)


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyListCategoricalColumn:
    """Strings or integers whose places in a list are the numbers of categories.

    Args:
      key: the feature's key; '' and -1 are no category.
      vocabulary_list: the values, each once.
      dtype: string or an integer type; default that of the list.
      default_value: the category of values that are not in the list; -1 for none.
      num_oov_buckets: how many categories the hashes of other values have, which come last.

    Raises:
      ValueError: for an empty list, values that occur twice, a dtype that does not fit, a negative
        `num_oov_buckets`, or one together with a default.

    Example:
      >>> import meshflow as tf
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
    own = (
        dtypes.string
        if isinstance(values[0], (str, bytes))
        else dtypes.as_dtype(np.asarray(values).dtype)
    )
    kind = category_dtype(own if dtype is None else dtype, key)
    category_dtype(own, key)
    if kind.is_integer != own.is_integer:
        raise ValueError(
            f"dtype {kind} and vocabulary dtype {own} do not match, column_name: {key}"
        )
    _check_unknown(key, default_value, num_oov_buckets)
    return VocabularyListCategoricalColumn(key, tuple(values), kind, default_value, num_oov_buckets)


@dataclasses.dataclass(frozen=True)
class VocabularyFileCategoricalColumn(_VocabularyColumn):
    """Lines of a file; made by `categorical_column_with_vocabulary_file`."""

    key: str
    vocabulary_file: str
    vocabulary_size: int
    num_oov_buckets: int
    dtype: dtypes.DType
    default_value: int

    @property
    def num_buckets(self) -> int:
        """How many categories there are."""
        return self.vocabulary_size + self.num_oov_buckets

    def _content(self) -> Any:
        kind = dtypes.int64 if self.dtype.is_integer else self.dtype
        line, number = TextFileIndex.WHOLE_LINE, TextFileIndex.LINE_NUMBER
        return TextFileInitializer(
            self.vocabulary_file, kind, line, dtypes.int64, number, self.vocabulary_size
        )


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str,
    vocabulary_size: int | None = None,
    dtype: Any = dtypes.string,
    default_value: int | None = None,
    num_oov_buckets: int = 0,
    file_format: str | None = None,
) -> VocabularyFileCategoricalColumn:
    """Strings or integers whose lines in a file are the numbers of categories.

    Args:
      key: the feature's key; '' and -1 are no category.
      vocabulary_file: a text file with a value in each line.
      vocabulary_size: how many lines count; default all.
      dtype: string or an integer type.
      default_value: the category of values that are not in the file; default -1, none.
      num_oov_buckets: how many categories the hashes of other values have, which come last.
      file_format: 'text', also by default.

    Raises:
      ValueError: for no file name, a size that is not positive, a negative `num_oov_buckets`, or one
        together with a default, or another format.
      NotFoundError: when there is no such file.

    Example:
      >>> import os, tempfile
      >>> import meshflow as tf
      >>> path = os.path.join(tempfile.mkdtemp(), "colours.txt")
      >>> tf.io.write_file(path, "red\\nblue\\n")
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
    _check_unknown(key, default_value, num_oov_buckets)
    return VocabularyFileCategoricalColumn(
        key,
        vocabulary_file,
        vocabulary_size,
        num_oov_buckets or 0,
        category_dtype(dtype, key),
        -1 if default_value is None else default_value,
    )


def _check_unknown(key: str, default_value: int | None, num_oov_buckets: int) -> None:
    if not num_oov_buckets:
        return
    if default_value not in (None, -1):
        raise ValueError(f"Can't specify both num_oov_buckets and default_value in {key}.")
    if num_oov_buckets < 0:
        raise ValueError(f"Invalid num_oov_buckets {num_oov_buckets} in {key}.")
