"""Columns of categories that need no vocabulary: numbers, hashes, and categories with weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.io.features import VarLenFeature
from meshflow.legacy.feature_column.base import CategoricalColumn, Features, Ids, check_key, padded
from meshflow.ops import array, hashing, math

__all__ = [
    "HashedCategoricalColumn",
    "IdentityCategoricalColumn",
    "WeightedCategoricalColumn",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "weighted_categorical_column",
]


@dataclasses.dataclass(frozen=True)
class IdentityCategoricalColumn(CategoricalColumn):
    """Numbers that are categories; made by `categorical_column_with_identity`."""

    key: str
    number_buckets: int
    default_value: int | None

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """A feature of any number of integers."""
        return {self.key: VarLenFeature(dtypes.int64)}

    @property
    def num_buckets(self) -> int:
        """How many categories there are."""
        return self.number_buckets

    def ids(self, features: Features) -> Ids:
        """The numbers themselves, or the default where they are out of range.

        Raises:
          ValueError: when the feature is not of integers.
        """
        values = features.categories(self.key)
        if not values.dtype.is_integer:
            raise ValueError(f"Invalid input, not integer. key: {self.key} dtype: {values.dtype}")
        numbers = math.cast(values, dtypes.int64)
        if self.default_value is None:
            return Ids(math.maximum(numbers, -1))
        outside = math.logical_or(numbers < -1, numbers >= self.number_buckets)
        return Ids(
            array.where(outside, array.fill(numbers.shape, np.int64(self.default_value)), numbers)
        )


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> IdentityCategoricalColumn:
    """Integers in [0, num_buckets) that are the numbers of categories.

    Args:
      key: the feature's key; -1 is no category.
      num_buckets: how many categories there are.
      default_value: the category of integers out of range; without one, an indicator is zero for them
        and an embedding an error.

    Raises:
      ValueError: when `num_buckets` is not positive or the default is out of range.

    Example:
      >>> import meshflow as tf
      >>> kind = tf.feature_column.categorical_column_with_identity("kind", num_buckets=3)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(kind)])
      >>> layer({"kind": [2, 0]}).numpy().tolist()
      [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    check_key(key)
    if num_buckets < 1:
        raise ValueError(f"num_buckets {num_buckets} < 1, column_name {key}")
    if default_value is not None and not 0 <= default_value < num_buckets:
        raise ValueError(
            f"default_value {default_value} not in range [0, {num_buckets}), column_name {key}"
        )
    return IdentityCategoricalColumn(key, num_buckets, default_value)


class KeyedColumn(CategoricalColumn):
    """Categories of the values of one feature."""

    key: str
    dtype: dtypes.DType

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """A feature of any number of values."""
        return {self.key: VarLenFeature(self.dtype)}


@dataclasses.dataclass(frozen=True)
class HashedCategoricalColumn(KeyedColumn):
    """Hashes that are categories; made by `categorical_column_with_hash_bucket`."""

    key: str
    hash_bucket_size: int
    dtype: dtypes.DType

    @property
    def num_buckets(self) -> int:
        """How many categories there are."""
        return self.hash_bucket_size

    @property
    def on_host(self) -> bool:
        """Always: text is hashed."""
        return True

    def ids(self, features: Features) -> Ids:
        """Hashes of the values' text."""
        tensor = features.categories(self.key)
        check_kind(tensor, self.dtype, self.key)
        values = tensor._concrete("values to be hashed")
        words = values.reshape(-1).tolist()
        text = words if values.dtype == object else [b"%d" % word for word in words]
        prints = [
            -1 if word in (b"", -1) else hashing.farm_fingerprint(letters) % self.hash_bucket_size
            for word, letters in zip(words, text, strict=True)
        ]
        return Ids(convert_to_tensor(np.asarray(prints, np.int64).reshape(values.shape)))


def categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: Any = dtypes.string
) -> HashedCategoricalColumn:
    """Strings or integers whose hashes are the numbers of categories.

    Args:
      key: the feature's key; '' and -1 are no category.
      hash_bucket_size: how many categories there are.
      dtype: string or an integer type.

    Raises:
      ValueError: when `hash_bucket_size` is missing or not positive, or for another dtype.

    Example:
      >>> import meshflow as tf
      >>> word = tf.feature_column.categorical_column_with_hash_bucket("word", 3)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(word)])
      >>> layer({"word": ["A", "B"]}).numpy().tolist()
      [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    check_key(key)
    if hash_bucket_size is None or hash_bucket_size < 1:
        raise ValueError(
            f"hash_bucket_size must be at least 1. hash_bucket_size: {hash_bucket_size}, key: {key}"
        )
    kind = category_dtype(dtype, key)
    return HashedCategoricalColumn(key, hash_bucket_size, kind)


@dataclasses.dataclass(frozen=True)
class WeightedCategoricalColumn(CategoricalColumn):
    """Categories with weights; made by `weighted_categorical_column`."""

    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: dtypes.DType

    @property
    def name(self) -> str:
        """The names of the categories and of the weights."""
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """That of the categories, and a feature of any number of weights."""
        spec = self.categorical_column.parse_example_spec
        if self.weight_feature_key in spec:
            raise ValueError(
                f"Parse config {spec[self.weight_feature_key]} already exists for {self.weight_feature_key}."
            )
        return {**spec, self.weight_feature_key: VarLenFeature(self.dtype)}

    @property
    def num_buckets(self) -> int:
        """How many categories there are."""
        return self.categorical_column.num_buckets

    @property
    def on_host(self) -> bool:
        """As the categories."""
        return self.categorical_column.on_host

    def ids(self, features: Features) -> Ids:
        """The categories, each with its weight."""
        weights = features.raw(self.weight_feature_key)
        if weights.dtype != self.dtype and not weights.dtype.is_floating:
            raise ValueError(f"Bad dtype, expected {self.dtype}, but got {weights.dtype}")
        if isinstance(weights, SparseTensor):
            weights = padded(weights, 0.0)
        numbers = features.ids(self.categorical_column).numbers
        return Ids(numbers, array.reshape(math.cast(weights, dtypes.float32), numbers.shape))


def weighted_categorical_column(
    categorical_column: Any, weight_feature_key: str, dtype: Any = dtypes.float32
) -> WeightedCategoricalColumn:
    """Categories that count by the weights in another feature.

    Args:
      categorical_column: a column of categories.
      weight_feature_key: the key of the weights, as many as there are categories in a row.
      dtype: dtype of the weights.

    Raises:
      ValueError: when the dtype is no number.

    Example:
      >>> import meshflow as tf
      >>> word = tf.feature_column.categorical_column_with_identity("word", 3)
      >>> weighted = tf.feature_column.weighted_categorical_column(word, "count")
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(weighted)])
      >>> layer({"word": [[0, 2]], "count": [[0.5, 2.0]]}).numpy().tolist()
      [[0.5, 0.0, 2.0]]
    """
    kind = dtypes.as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype {dtype} is not convertible to float.")
    return WeightedCategoricalColumn(categorical_column, weight_feature_key, kind)


def category_dtype(dtype: Any, key: str) -> dtypes.DType:
    """The dtype of categories; raises a `ValueError` unless it is string or an integer type."""
    kind = dtypes.as_dtype(dtype)
    if not (kind is dtypes.string or kind.is_integer):
        raise ValueError(f"dtype must be string or integer. dtype: {dtype}, column_name: {key}")
    return kind


def check_kind(tensor: Any, dtype: dtypes.DType, key: str) -> None:
    """Raises a `ValueError` when one of a feature and its column is of strings and the other is not."""
    if tensor.dtype.is_integer != dtype.is_integer:
        raise ValueError(
            f"Column dtype and the feature's dtype must be compatible. key: {key}, column dtype: {dtype}, "
            f"tensor dtype: {tensor.dtype}"
        )
