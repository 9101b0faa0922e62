"""What `tf.io.parse_example` is told about each feature."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshflow.core.dispatch.composite import RAGGED_HELP

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "SparseFeature",
    "VarLenFeature",
]


class FixedLenFeature(NamedTuple):
    """A feature that every record has, always as many numbers.

    Attributes:
      shape: its shape.
      dtype: int64, float32 or string.
      default_value: what a record without it has; None when it must be there.

    Example:
      >>> import meshflow as tf
      >>> feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
      >>> features = {"x": tf.io.FixedLenFeature([2], tf.float32)}
      >>> print(tf.io.parse_single_example(record.SerializeToString(), features)["x"].numpy())
      [1. 2.]
    """

    shape: Any
    dtype: Any
    default_value: Any = None


class FixedLenSequenceFeature(NamedTuple):
    """A feature of some number of rows; in a batch it is padded to the longest.

    Attributes:
      shape: shape of a row.
      dtype: int64, float32 or string.
      allow_missing: whether a record may lack it, which then has no rows.
      default_value: what batches are padded with; default 0 or ''.

    Example:
      >>> import meshflow as tf
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2, 3, 4]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
      >>> features = {"x": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True)}
      >>> print(tf.io.parse_single_example(record.SerializeToString(), features)["x"].numpy())
      [[1 2]
       [3 4]]
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature of any number of values, read as a `tf.SparseTensor`.

    `tf.sparse.to_dense` makes a dense tensor of it; `FixedLenSequenceFeature` is read as one.

    Attributes:
      dtype: int64, float32 or string.

    Example:
      >>> import meshflow as tf
      >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[4, 5]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
      >>> features = {"x": tf.io.VarLenFeature(tf.int64)}
      >>> parsed = tf.io.parse_single_example(record.SerializeToString(), features)
      >>> print(tf.sparse.to_dense(parsed["x"]).numpy())
      [4 5]
    """

    dtype: Any


class SparseFeature(NamedTuple):
    """A `tf.SparseTensor` of which one feature holds the indices and another the values.

    Attributes:
      index_key: name of the feature with the indices; a list of names for several dimensions.
      value_key: name of the feature with the values.
      dtype: of the values.
      size: size of the tensor; a list for several dimensions.
      already_sorted: accepted.

    Example:
      >>> import meshflow as tf
      >>> names = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 3]))
      >>> values = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 2.0]))
      >>> record = tf.train.Example(features=tf.train.Features(feature={"i": names, "v": values}))
      >>> features = {"x": tf.io.SparseFeature("i", "v", tf.float32, size=4)}
      >>> parsed = tf.io.parse_single_example(record.SerializeToString(), features)
      >>> print(tf.sparse.to_dense(parsed["x"]).numpy())
      [0.  0.5 0.  2. ]
    """

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False


class RaggedFeature:
    """Rows of different lengths, which XLA does not have.

    Raises:
      NotImplementedError: when one is made, saying what to use instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{RAGGED_HELP} tf.io.FixedLenSequenceFeature pads batches.")
