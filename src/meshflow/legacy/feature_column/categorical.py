"""Categorical columns without a vocabulary: integers, hashes, and weighted categories."""

from __future__ import annotations

import dataclasses

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor
from meshflow.io.features import VarLenFeature
from meshflow.legacy.feature_column.base import (
    CategoricalColumn,
    CategoryIds,
    FeatureBatch,
    ParseSpec,
    check_key,
    pad_sparse_rows,
)
from meshflow.ops import array, hashing, math


@dataclasses.dataclass(frozen=True)
class IdentityCategoricalColumn(CategoricalColumn):
    """Integers that are category ids; created by `categorical_column_with_identity`."""

    key: str
    number_buckets: int
    default_value: int | None

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def parse_example_spec(self) -> ParseSpec:
        """A variable-length integer feature."""
        return {self.key: VarLenFeature(dtypes.int64)}

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        return self.number_buckets

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Return the integers, with the default value for integers that are out of range.

        Raises:
          ValueError: If the feature does not hold integers.
        """
        values = features.get_categories(self.key)
        if not values.dtype.is_integer:
            raise ValueError(f"Invalid input, not integer. key: {self.key} dtype: {values.dtype}")
        ids = math.cast(values, dtypes.int64)
        if self.default_value is None:
            return CategoryIds(math.maximum(ids, -1))
        is_out_of_range = math.logical_or(ids < -1, ids >= self.number_buckets)
        return CategoryIds(
            array.where(is_out_of_range, array.fill(ids.shape, np.int64(self.default_value)), ids)
        )


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> IdentityCategoricalColumn:
    """Create a column of integers in [0, num_buckets) that are category ids.

    Args:
      key: Key of the feature; -1 means no category.
      num_buckets: Number of categories.
      default_value: Category of integers that are out of range. Without it, an indicator is zero
        for them, and an embedding raises an error.

    Raises:
      ValueError: If `num_buckets` is not positive or the default is out of range.

    Example:
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
    """Categorical column of the values of one feature."""

    key: str
    dtype: dtypes.DType

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def parse_example_spec(self) -> ParseSpec:
        """A variable-length feature."""
        return {self.key: VarLenFeature(self.dtype)}


@dataclasses.dataclass(frozen=True)
class HashedCategoricalColumn(KeyedColumn):
    """Hashes that are category ids; created by `categorical_column_with_hash_bucket`."""

    key: str
    hash_bucket_size: int
    dtype: dtypes.DType

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        return self.hash_bucket_size

    @property
    def needs_host(self) -> bool:
        """True, because text is hashed on the host."""
        return True

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Hash the text of the values."""
        tensor = features.get_categories(self.key)
        check_dtypes_match(tensor, self.dtype, self.key)
        values = tensor.require_value("values to be hashed")
        items = values.reshape(-1).tolist()
        encoded_items = items if values.dtype == object else [b"%d" % word for word in items]
        ids = [
            -1 if word in (b"", -1) else hashing.fingerprint_word(letters) % self.hash_bucket_size
            for word, letters in zip(items, encoded_items, strict=True)
        ]
        return CategoryIds(convert_to_tensor(np.asarray(ids, np.int64).reshape(values.shape)))


def categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: DTypeLike = dtypes.string
) -> HashedCategoricalColumn:
    """Create a column of strings or integers that are hashed to category ids.

    Args:
      key: Key of the feature; '' and -1 mean no category.
      hash_bucket_size: Number of categories.
      dtype: string or an integer dtype.

    Raises:
      ValueError: If `hash_bucket_size` is missing or not positive, or the dtype is neither string
        nor integer.

    Example:
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
    return HashedCategoricalColumn(key, hash_bucket_size, to_category_dtype(dtype, key))


@dataclasses.dataclass(frozen=True)
class WeightedCategoricalColumn(CategoricalColumn):
    """Categories with weights; created by `weighted_categorical_column`."""

    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: dtypes.DType

    @property
    def name(self) -> str:
        """The names of the categorical column and of the weights."""
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def parse_example_spec(self) -> ParseSpec:
        """The features of the categorical column, and a variable-length feature of weights."""
        spec = self.categorical_column.parse_example_spec
        if self.weight_feature_key in spec:
            raise ValueError(
                f"Parse config {spec[self.weight_feature_key]} already exists for {self.weight_feature_key}."
            )
        return {**spec, self.weight_feature_key: VarLenFeature(self.dtype)}

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        return self.categorical_column.num_buckets

    @property
    def needs_host(self) -> bool:
        """Whether the ids of the categorical column are computed on the host."""
        return self.categorical_column.needs_host

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Return the category ids, each with its weight."""
        weights = features.get_feature(self.weight_feature_key)
        if weights.dtype != self.dtype and not weights.dtype.is_floating:
            raise ValueError(f"Bad dtype, expected {self.dtype}, but got {weights.dtype}")
        if isinstance(weights, SparseTensor):
            weights = pad_sparse_rows(weights, 0.0)
        ids = features.get_ids(self.categorical_column).ids
        return CategoryIds(ids, array.reshape(math.cast(weights, dtypes.float32), ids.shape))


def weighted_categorical_column(
    categorical_column: CategoricalColumn,
    weight_feature_key: str,
    dtype: DTypeLike = dtypes.float32,
) -> WeightedCategoricalColumn:
    """Create a column of categories that are weighted by another feature.

    Args:
      categorical_column: Column of categories.
      weight_feature_key: Key of the weights; each row has as many weights as categories.
      dtype: Dtype of the weights.

    Raises:
      ValueError: If the dtype is not numeric.

    Example:
      >>> word = tf.feature_column.categorical_column_with_identity("word", 3)
      >>> weighted = tf.feature_column.weighted_categorical_column(word, "count")
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(weighted)])
      >>> layer({"word": [[0, 2]], "count": [[0.5, 2.0]]}).numpy().tolist()
      [[0.5, 0.0, 2.0]]
    """
    weight_dtype = dtypes.as_dtype(dtype)
    if not (weight_dtype.is_integer or weight_dtype.is_floating):
        raise ValueError(f"dtype {dtype} is not convertible to float.")
    return WeightedCategoricalColumn(categorical_column, weight_feature_key, weight_dtype)


def to_category_dtype(dtype: DTypeLike, key: str) -> dtypes.DType:
    """Convert a dtype; raise `ValueError` unless it is string or an integer dtype."""
    category_type = dtypes.as_dtype(dtype)
    if not (category_type is dtypes.string or category_type.is_integer):
        raise ValueError(f"dtype must be string or integer. dtype: {dtype}, column_name: {key}")
    return category_type


def check_dtypes_match(tensor: Tensor, dtype: dtypes.DType, key: str) -> None:
    """Raise `ValueError` if either the feature or its column holds strings, but not both."""
    if tensor.dtype.is_integer != dtype.is_integer:
        raise ValueError(
            f"Column dtype and the feature's dtype must be compatible. key: {key}, column dtype: {dtype}, "
            f"tensor dtype: {tensor.dtype}"
        )
