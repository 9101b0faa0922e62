"""Rules by which parameter servers share a variable: into how many parts each of its axes is cut."""

from __future__ import annotations

import math
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.shapes import as_shape

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
]


def __dir__() -> list[str]:
    return __all__


class Partitioner:
    """The base of partitioners; a subclass, or any function with these arguments, says how a variable is cut.

    Example:
      >>> import meshflow as tf
      >>> class Halves(tf.distribute.experimental.partitioners.Partitioner):
      ...     def __call__(self, shape, dtype, axis=0):
      ...         return [2] + [1] * (len(shape) - 1)
      >>> Halves()(tf.TensorShape([10, 3]), tf.float32)
      [2, 1]
    """

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """How many parts each axis is cut into.

        Args:
          shape: the variable's shape, fully known.
          dtype: its dtype.
          axis: the axis that may be cut; strategies ask for the first.

        Returns:
          A number for each axis, of which at most one is larger than 1.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__.")


class _OneAxis(Partitioner):
    """Cuts the axis that is asked for."""

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """How many parts each axis is cut into; see `Partitioner`.

        Args:
          shape: the variable's shape.
          dtype: its dtype.
          axis: the axis that may be cut.
        """
        sizes = _sizes(shape, axis)
        parts = self._parts(sizes, dtype, sizes[axis])
        return [parts if i == axis else 1 for i in range(len(sizes))]

    def _parts(self, sizes: list[int], dtype: Any, rows: int) -> int:
        raise NotImplementedError


class FixedShardsPartitioner(_OneAxis):
    """The same number of parts for every variable, or as many as it has rows.

    Args:
      num_shards: the number of parts.

    Example:
      >>> import meshflow as tf
      >>> partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
      >>> partitioner(tf.TensorShape([10, 3]), tf.float32), partitioner(tf.TensorShape([1, 3]), tf.float32)
      ([2, 1], [1, 1])
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def _parts(self, sizes: list[int], dtype: Any, rows: int) -> int:
        return min(self._num_shards, rows)


class MinSizePartitioner(_OneAxis):
    """As many parts as possible, up to a number, of at least some size each.

    Args:
      min_shard_bytes: the smallest size of a part.
      max_shards: the largest number of parts.
      bytes_per_string: what an element of strings counts for.

    Raises:
      ValueError: for arguments that are not positive.

    Example:
      >>> import meshflow as tf
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

    def _parts(self, sizes: list[int], dtype: Any, rows: int) -> int:
        size = math.prod(sizes) * _bytes(dtype, self._bytes_per_string)
        return max(1, min(int(-(-size // self._min_shard_bytes)), self._max_shards, rows))


class MaxSizePartitioner(_OneAxis):
    """As few parts as possible of at most some size each.

    Args:
      max_shard_bytes: the largest size of a part; a row that is larger makes a part of its own.
      max_shards: the largest number of parts, which comes first; None for any number.
      bytes_per_string: what an element of strings counts for.

    Raises:
      ValueError: for arguments that are not positive.

    Example:
      >>> import meshflow as tf
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

    def _parts(self, sizes: list[int], dtype: Any, rows: int) -> int:
        row = math.prod(sizes) // rows * _bytes(dtype, self._bytes_per_string) if rows else 0
        rows_each = max(1, self._max_shard_bytes // row) if row else max(1, rows)
        parts = -(-rows // rows_each)
        return max(1, parts if self._max_shards is None else min(parts, self._max_shards))


def _check_positive(**given: int) -> None:
    for name, value in given.items():
        if value < 1:
            raise InvalidValueError(f"Argument `{name}` must be positive. Received: {value}")


def _sizes(shape: Any, axis: int) -> list[int]:
    sizes = as_shape(shape).as_list()
    if None in sizes:
        raise InvalidValueError(f"Cannot partition a variable of the unknown shape {shape}.")
    if axis >= len(sizes):
        raise InvalidValueError(
            f"Cannot partition variable along axis {axis} when shape is only {tuple(sizes)}"
        )
    return sizes


def _bytes(dtype: Any, bytes_per_string: int) -> int:
    kind = dtypes.as_dtype(dtype)
    return bytes_per_string if kind is dtypes.string else kind.size
