"""Descriptions of the features that `tf.io.parse_example` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike


class FixedLenFeature(NamedTuple):
    """A feature with a fixed number of values in every record.

    Attributes:
      shape: Shape of the feature.
      dtype: int64, float32 or string.
      default_value: Value for records that lack the feature; None if it is required.

    Example:
      >>> feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
      >>> features = {"x": tf.io.FixedLenFeature([2], tf.float32)}
      >>> print(tf.io.parse_single_example(record.SerializeToString(), features)["x"].numpy())
      [1. 2.]
    """

    shape: ShapeLike
    dtype: DTypeLike
    default_value: Any = None


class FixedLenSequenceFeature(NamedTuple):
    """A feature with a variable number of rows, padded to the longest in a batch.

    Attributes:
      shape: Shape of a row.
      dtype: int64, float32 or string.
      allow_missing: Must be True: a record without the feature has no rows.
      default_value: Padding value; default 0 or ''.

    Example:
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2, 3, 4]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
      >>> features = {"x": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True)}
      >>> print(tf.io.parse_single_example(record.SerializeToString(), features)["x"].numpy())
      [[1 2]
       [3 4]]
    """

    shape: ShapeLike
    dtype: DTypeLike
    allow_missing: bool = False
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature with a variable number of values, read as a `tf.SparseTensor`.

    `tf.sparse.to_dense` converts the result; `FixedLenSequenceFeature` is read as a dense tensor.

    Attributes:
      dtype: int64, float32 or string.

    Example:
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[4, 5]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
      >>> features = {"x": tf.io.VarLenFeature(tf.int64)}
      >>> parsed = tf.io.parse_single_example(record.SerializeToString(), features)
      >>> print(tf.sparse.to_dense(parsed["x"]).numpy())
      [4 5]
    """

    dtype: DTypeLike


class SparseFeature(NamedTuple):
    """A `tf.SparseTensor` with its indices and its values in separate features.

    Attributes:
      index_key: Name of the feature with the indices; a list of names for several dimensions.
      value_key: Name of the feature with the values.
      dtype: Dtype of the values.
      size: Size of the tensor; a list for several dimensions.
      already_sorted: Whether the indices are sorted, or their order does not matter; then it does not change.

    Example:
      >>> names = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 3]))
      >>> values = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 2.0]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"i": names, "v": values}))
      >>> features = {"x": tf.io.SparseFeature("i", "v", tf.float32, size=4)}
      >>> parsed = tf.io.parse_single_example(record.SerializeToString(), features)
      >>> print(tf.sparse.to_dense(parsed["x"]).numpy())
      [0.  0.5 0.  2. ]
    """

    index_key: str | Sequence[str]
    value_key: str
    dtype: DTypeLike
    size: int | Sequence[int]
    already_sorted: bool = False


class RaggedFeature(NamedTuple):
    """A feature with any number of values, parsed as a row of a `tf.RaggedTensor`.

    Attributes:
      dtype: Dtype of the values.
      value_key: Name of the feature; default its key.
      partitions: Partitions of the values of a record, outermost first: `RaggedFeature.RowLengths(key)`,
        `RowSplits`, `RowLimits`, `RowStarts` or `ValueRowIds` of the feature `key`, or
        `UniformRowLength(length)`.
      row_splits_dtype: Dtype of the row splits, int32 or int64.
      validate: Whether to check the partitions of records.

    Example:
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2]))
      >>> text = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
      >>> tf.io.parse_example([text, text], {"x": tf.io.RaggedFeature(tf.int64)})["x"].to_list()
      [[1, 2], [1, 2]]
    """

    dtype: DTypeLike
    value_key: str | None = None
    partitions: Sequence[Any] = ()
    row_splits_dtype: DTypeLike = "int32"
    validate: bool = False


# Functions of integers and of the number of values of a record, which compute the lengths of its rows.
_LENGTHS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "RowSplits": lambda splits, count: np.diff(splits),
    "RowLengths": lambda lengths, count: lengths,
    "RowStarts": lambda starts, count: np.diff(starts, append=count),
    "RowLimits": lambda limits, count: np.diff(limits, prepend=0),
    "ValueRowIds": lambda ids, count: np.bincount(ids),
}


def _add_partition_types() -> None:
    """Define the kinds of partitions as attributes of `RaggedFeature`."""
    for name, field, field_type in [
        *((name, "key", str) for name in _LENGTHS),
        ("UniformRowLength", "length", int),
    ]:
        kind: Any = NamedTuple(name, [(field, field_type)])  # type: ignore[misc]
        kind.__qualname__ = f"RaggedFeature.{name}"
        if name in _LENGTHS:
            setattr(kind, "compute_lengths", staticmethod(_LENGTHS[name]))
        setattr(RaggedFeature, name, kind)


_add_partition_types()
