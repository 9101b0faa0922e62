"""Partitioners: rules for the number of shards into which a variable is split along each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, as_shape

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
]

# A `Partitioner`, or a function with its arguments.
PartitionFunction: TypeAlias = Callable[..., Sequence[int]]


class Partitioner:
    """Base class of partitioners, which decide how a variable is split.

    A strategy also takes any function with the arguments of `__call__`.

    Example:
      >>> class Halves(tf.distribute.experimental.partitioners.Partitioner):
      ...     def __call__(self, shape, dtype, axis=0):
      ...         return [2] + [1] * (len(shape) - 1)
      >>> Halves()(tf.TensorShape([10, 3]), tf.float32)
      [2, 1]
    """

    def __call__(self, shape: ShapeLike, dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis.

        Args:
          shape: Shape of the variable, fully known.
          dtype: Dtype of the variable.
          axis: The axis that may be split. Strategies request the first one.

        Returns:
          The number of shards along each axis, of which at most one is larger than 1.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__.")


class _SingleAxisPartitioner(Partitioner):
    """Partitioner that splits only the requested axis."""

    def __call__(self, shape: ShapeLike, dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis; see `Partitioner`.

        Args:
          shape: Shape of the variable.
          dtype: Dtype of the variable.
          axis: The axis that may be split.
        """
        sizes = _check_sizes(shape, axis)
        count = self._count_shards(sizes, dtype, sizes[axis])
        return [count if i == axis else 1 for i in range(len(sizes))]

    def _count_shards(self, sizes: list[int], dtype: DTypeLike, rows: int) -> int:
        raise NotImplementedError


class FixedShardsPartitioner(_SingleAxisPartitioner):
    """Partitioner with a fixed number of shards, or one shard per row if there are fewer rows.

    Args:
      num_shards: The number of shards.

    Example:
      >>> partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
      >>> partitioner(tf.TensorShape([10, 3]), tf.float32), partitioner(tf.TensorShape([1, 3]), tf.float32)
      ([2, 1], [1, 1])
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def _count_shards(self, sizes: list[int], dtype: DTypeLike, rows: int) -> int:
        return min(self._num_shards, rows)


class MinSizePartitioner(_SingleAxisPartitioner):
    """Partitioner into as many shards as possible, with a minimum size of each.

    Args:
      min_shard_bytes: Minimum size of a shard in bytes.
      max_shards: Maximum number of shards.
      bytes_per_string: Assumed size of a string element in bytes.

    Raises:
      ValueError: If an argument is not positive.

    Example:
      >>> partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
      ...     min_shard_bytes=4, max_shards=2)
      >>> partitioner(tf.TensorShape([6, 1]), tf.float32)
      [2, 1]
    """

    def __init__(
        self,
        min_shard_bytes: int = 256 << 10,
        max_shards: int = 1,
        bytes_per_string: int = 16,
    ) -> None:
        _check_positive(
            min_shard_bytes=min_shard_bytes,
            max_shards=max_shards,
            bytes_per_string=bytes_per_string,
        )
        self._min_shard_bytes, self._max_shards = min_shard_bytes, max_shards
        self._bytes_per_string = bytes_per_string

    def _count_shards(self, sizes: list[int], dtype: DTypeLike, rows: int) -> int:
        size = math.prod(sizes) * _get_element_bytes(dtype, self._bytes_per_string)
        return max(1, min(int(-(-size // self._min_shard_bytes)), self._max_shards, rows))


class MaxSizePartitioner(_SingleAxisPartitioner):
    """Partitioner into as few shards as possible, with a maximum size of each.

    Args:
      max_shard_bytes: Maximum size of a shard in bytes. A larger row forms a shard of its own.
      max_shards: Maximum number of shards, which takes precedence over the size; None for no limit.
      bytes_per_string: Assumed size of a string element in bytes.

    Raises:
      ValueError: If an argument is not positive.

    Example:
      >>> partitioner = tf.distribute.experimental.partitioners.MaxSizePartitioner(max_shard_bytes=4)
      >>> partitioner(tf.TensorShape([6, 1]), tf.float32)
      [6, 1]
    """

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        _check_positive(
            max_shard_bytes=max_shard_bytes,
            max_shards=1 if max_shards is None else max_shards,
            bytes_per_string=bytes_per_string,
        )
        self._max_shard_bytes, self._max_shards = max_shard_bytes, max_shards
        self._bytes_per_string = bytes_per_string

    def _count_shards(self, sizes: list[int], dtype: DTypeLike, rows: int) -> int:
        row_bytes = (
            math.prod(sizes) // rows * _get_element_bytes(dtype, self._bytes_per_string)
            if rows
            else 0
        )
        rows_per_shard = max(1, self._max_shard_bytes // row_bytes) if row_bytes else max(1, rows)
        count = -(-rows // rows_per_shard)
        return max(1, count if self._max_shards is None else min(count, self._max_shards))


def _check_positive(**arguments: int) -> None:
    for name, value in arguments.items():
        if value < 1:
            raise InvalidValueError(f"Argument `{name}` must be positive. Received: {value}")


def _check_sizes(shape: ShapeLike, axis: int) -> list[int]:
    sizes = as_shape(shape).as_list()
    if None in sizes:
        raise InvalidValueError(f"Cannot partition a variable of the unknown shape {shape}.")
    if axis >= len(sizes):
        raise InvalidValueError(
            f"Cannot partition variable along axis {axis} when shape is only {tuple(sizes)}"
        )
    return sizes


def _get_element_bytes(dtype: DTypeLike, bytes_per_string: int) -> int:
    element_type = dtypes.as_dtype(dtype)
    return bytes_per_string if element_type is dtypes.string else element_type.size
