"""Columns of numbers, and of the buckets that contain them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.io.features import FixedLenFeature
from meshflow.legacy.feature_column.base import (
    CategoricalColumn,
    CategoryIds,
    DenseColumn,
    FeatureBatch,
    ParseSpec,
    check_key,
)
from meshflow.ops import array, math


@dataclasses.dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """Numbers; created by `numeric_column`."""

    key: str
    shape: tuple[int, ...]
    default_value: TensorLike | None
    dtype: dtypes.DType
    normalizer_fn: Callable[[Tensor], Tensor] | None

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def parse_example_spec(self) -> ParseSpec:
        """A fixed-length feature."""
        return {self.key: FixedLenFeature(self.shape, self.dtype, self.default_value)}

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self.shape

    def compute_vectors(self, features: FeatureBatch, state: Variable | None) -> Tensor:
        """Return the normalized numbers as float32."""
        value = features.get_feature(self.key)
        if isinstance(value, SparseTensor):
            raise ValueError(
                "The corresponding Tensor of numerical column must be a Tensor. SparseTensor is not supported. "
                f"key: {self.key}"
            )
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        return math.cast(value, dtypes.float32)


def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: TensorLike = None,
    dtype: DTypeLike = dtypes.float32,
    normalizer_fn: Callable[[Tensor], Tensor] | None = None,
) -> NumericColumn:
    """Create a column of numbers.

    Args:
      key: Key of the feature.
      shape: Shape of a row, or its number of elements.
      default_value: Value for records without the feature: a number, or an array of that shape.
      dtype: Dtype of the feature in records.
      normalizer_fn: Function that is applied to the numbers, such as `lambda x: (x - 3.0) / 4.2`.

    Raises:
      TypeError: If `normalizer_fn` is not callable, or the default has another type.
      ValueError: If the key is not a string, a size is not positive, the dtype is not numeric, or
        the default has another shape.

    Example:
      >>> price = tf.feature_column.numeric_column("price", normalizer_fn=lambda x: x / 10.0)
      >>> tf.keras.layers.DenseFeatures([price])({"price": [5.0, 20.0]}).numpy().tolist()
      [[0.5], [2.0]]
    """
    check_key(key)
    sizes = tuple(int(n) for n in np.atleast_1d(np.asarray(shape, object)).tolist())
    if not sizes or min(sizes) < 1:
        raise ValueError(f"shape dimensions must be greater than 0. shape: {shape}")
    feature_dtype = dtypes.as_dtype(dtype)
    if not (feature_dtype.is_integer or feature_dtype.is_floating):
        raise ValueError(f"dtype must be convertible to float. dtype: {dtype}, key: {key}")
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise TypeError(f"normalizer_fn must be a callable. Given: {normalizer_fn}")
    return NumericColumn(
        key,
        sizes,
        _normalize_default(default_value, sizes, feature_dtype, key),
        feature_dtype,
        normalizer_fn,
    )


def _normalize_default(
    value: TensorLike, shape: tuple[int, ...], dtype: dtypes.DType, key: str
) -> PyTree:
    """Convert the default value to nested tuples of the column's shape."""
    if value is None:
        return None
    values = np.asarray(value)
    if values.dtype.kind not in ("iu" if dtype.is_integer else "iuf"):
        raise TypeError(
            f"default_value must be compatible with dtype. default_value: {value}, dtype: {dtype}, key: {key}"
        )
    if values.shape not in ((), shape):
        raise ValueError(
            f"The shape of default_value must be equal to given shape. default_value: {value}, shape: {shape}, key: {key}"
        )

    def as_tuples(item: Any) -> Any:
        return tuple(map(as_tuples, item)) if isinstance(item, list) else item

    return as_tuples(np.broadcast_to(values.astype(dtype.as_numpy_dtype), shape).tolist())


@dataclasses.dataclass(frozen=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """Buckets of numbers; created by `bucketized_column`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        """The name of the numeric column with a suffix."""
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_example_spec(self) -> ParseSpec:
        """The feature of the numeric column."""
        return self.source_column.parse_example_spec

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of a row: the shape of the numbers, and one element for each bucket."""
        return (*self.source_column.shape, len(self.boundaries) + 1)

    @property
    def num_buckets(self) -> int:
        """Number of buckets of all numbers of a row."""
        return (len(self.boundaries) + 1) * self.source_column.shape[0]

    def _compute_buckets(self, features: FeatureBatch) -> Tensor:
        numbers = self.source_column.compute_vectors(features, None)
        boundaries = np.asarray(self.boundaries, np.float32)
        flat = array.searchsorted(boundaries, array.reshape(numbers, [-1]), side="right")
        return array.reshape(math.cast(flat, dtypes.int64), numbers.shape)

    def compute_vectors(self, features: FeatureBatch, state: Variable | None) -> Tensor:
        """One-hot encode the bucket of each number."""
        return array.one_hot(
            self._compute_buckets(features), len(self.boundaries) + 1, dtype=dtypes.float32
        )

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Return the bucket ids; each number of a row has its own range of ids."""
        offsets = np.arange(self.source_column.shape[0]) * (len(self.boundaries) + 1)
        return CategoryIds(self._compute_buckets(features) + offsets)


def bucketized_column(
    source_column: NumericColumn, boundaries: Sequence[float]
) -> BucketizedColumn:
    """Create a column of the buckets that contain numbers.

    It is a dense column of one-hot vectors, and a categorical column.

    Args:
      source_column: A `numeric_column` of one dimension.
      boundaries: Sorted numbers; `[0, 10]` creates the buckets (-inf, 0), [0, 10) and [10, inf).

    Raises:
      ValueError: If the source is not a one-dimensional numeric column, or the boundaries are not
        sorted.

    Example:
      >>> age = tf.feature_column.numeric_column("age")
      >>> ages = tf.feature_column.bucketized_column(age, boundaries=[18, 65])
      >>> tf.keras.layers.DenseFeatures([ages])({"age": [[18.0], [80.0]]}).numpy().tolist()
      [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if not isinstance(source_column, NumericColumn):
        raise ValueError(
            f"source_column must be a column generated with numeric_column(). Given: {source_column}"
        )
    if len(source_column.shape) > 1:
        raise ValueError(f"source_column must be one-dimensional column. Given: {source_column}")
    sorted_boundaries = (
        tuple(boundaries) if isinstance(boundaries, (list, tuple, np.ndarray)) else ()
    )
    if not sorted_boundaries:
        raise ValueError("boundaries must not be empty.")
    if any(a >= b for a, b in itertools.pairwise(sorted_boundaries)):
        raise ValueError("boundaries must be a sorted list.")
    return BucketizedColumn(source_column, sorted_boundaries)
