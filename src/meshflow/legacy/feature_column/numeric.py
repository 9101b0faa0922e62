"""Columns of numbers, and of the ranges they lie in."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor
from meshflow.io.features import FixedLenFeature
from meshflow.legacy.feature_column.base import (
    CategoricalColumn,
    DenseColumn,
    Features,
    Ids,
    check_key,
)
from meshflow.ops import array, math

__all__ = ["BucketizedColumn", "NumericColumn", "bucketized_column", "numeric_column"]


@dataclasses.dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """Numbers as they are; made by `numeric_column`."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    dtype: dtypes.DType
    normalizer_fn: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """A feature of fixed length."""
        return {self.key: FixedLenFeature(self.shape, self.dtype, self.default_value)}

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self.shape

    def dense(self, features: Features, state: Any) -> Tensor:
        """The numbers in float32, normalized."""
        value = features.raw(self.key)
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
    shape: Any = (1,),
    default_value: Any = None,
    dtype: Any = dtypes.float32,
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> NumericColumn:
    """Numbers that are inputs as they are.

    Args:
      key: the feature's key.
      shape: shape of a row's numbers, or how many there are.
      default_value: what records without the feature have: a number, or numbers of that shape.
      dtype: dtype of the feature in records.
      normalizer_fn: a function of the numbers, applied first, such as `lambda x: (x - 3.0) / 4.2`.

    Raises:
      TypeError: for a function that cannot be called, or a default of another type.
      ValueError: for a key that is no string, sizes that are not positive, a dtype that is no number, or a
        default of another shape.

    Example:
      >>> import meshflow as tf
      >>> price = tf.feature_column.numeric_column("price", normalizer_fn=lambda x: x / 10.0)
      >>> tf.keras.layers.DenseFeatures([price])({"price": [5.0, 20.0]}).numpy().tolist()
      [[0.5], [2.0]]
    """
    check_key(key)
    sizes = tuple(int(n) for n in np.atleast_1d(np.asarray(shape, object)).tolist())
    if not sizes or min(sizes) < 1:
        raise ValueError(f"shape dimensions must be greater than 0. shape: {shape}")
    kind = dtypes.as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype must be convertible to float. dtype: {dtype}, key: {key}")
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise TypeError(f"normalizer_fn must be a callable. Given: {normalizer_fn}")
    return NumericColumn(key, sizes, _default(default_value, sizes, kind, key), kind, normalizer_fn)


def _default(value: Any, shape: tuple[int, ...], kind: dtypes.DType, key: str) -> Any:
    """The default as nested tuples of the column's shape."""
    if value is None:
        return None
    values = np.asarray(value)
    if values.dtype.kind not in ("iu" if kind.is_integer else "iuf"):
        raise TypeError(
            f"default_value must be compatible with dtype. default_value: {value}, dtype: {kind}, key: {key}"
        )
    if values.shape not in ((), shape):
        raise ValueError(
            f"The shape of default_value must be equal to given shape. default_value: {value}, shape: {shape}, key: {key}"
        )

    def as_tuples(item: Any) -> Any:
        return tuple(map(as_tuples, item)) if isinstance(item, list) else item

    return as_tuples(np.broadcast_to(values.astype(kind.as_numpy_dtype), shape).tolist())


@dataclasses.dataclass(frozen=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """Ranges of numbers; made by `bucketized_column`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        """The key of the numbers, marked."""
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """That of the numbers."""
        return self.source_column.parse_example_spec

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of a row: the numbers' shape and one place for each range."""
        return (*self.source_column.shape, len(self.boundaries) + 1)

    @property
    def num_buckets(self) -> int:
        """How many ranges there are, for all numbers of a row together."""
        return (len(self.boundaries) + 1) * self.source_column.shape[0]

    def _ranges(self, features: Features) -> Tensor:
        numbers = self.source_column.dense(features, None)
        edges = np.asarray(self.boundaries, np.float32)
        flat = array.searchsorted(edges, array.reshape(numbers, [-1]), side="right")
        return array.reshape(math.cast(flat, dtypes.int64), numbers.shape)

    def dense(self, features: Features, state: Any) -> Tensor:
        """A 1 at the place of each number's range."""
        return array.one_hot(self._ranges(features), len(self.boundaries) + 1, dtype=dtypes.float32)

    def ids(self, features: Features) -> Ids:
        """Numbers of the ranges, others for each of a row's numbers."""
        first = np.arange(self.source_column.shape[0]) * (len(self.boundaries) + 1)
        return Ids(self._ranges(features) + first)


def bucketized_column(source_column: Any, boundaries: Sequence[float]) -> BucketizedColumn:
    """The ranges that numbers lie in, as vectors with a 1, or as categories.

    Args:
      source_column: a `numeric_column` of one dimension.
      boundaries: sorted numbers; `[0, 10]` makes the ranges below 0, from 0 to below 10, and from 10 on.

    Raises:
      ValueError: for another column, or boundaries that are not sorted.

    Example:
      >>> import meshflow as tf
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
    edges = tuple(boundaries) if isinstance(boundaries, (list, tuple, np.ndarray)) else ()
    if not edges:
        raise ValueError("boundaries must not be empty.")
    if any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError("boundaries must be a sorted list.")
    return BucketizedColumn(source_column, edges)
