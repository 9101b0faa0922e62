"""Sharding policy that limits the size of the data files of a checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from meshflow.checkpoint.object_graph_message import GRAPH_KEY
from meshflow.checkpoint.sharding import (
    Shard,
    ShardableTensor,
    ShardingCallback,
    format_slice_spec,
    parse_slice_spec,
)
from meshflow.core.runtime.device_to_host import read_uncached
from meshflow.core.values import dtypes

_log = logging.getLogger("meshflow")


class MaxShardSizePolicy(ShardingCallback):
    """Policy that limits the size of data files.

    Tensors that do not fit are split along the axis with the fewest parts.

    An element that is larger than the limit gets a file of its own. The object graph, which has a
    few bytes for each object,
    does not count.

    Args:
      max_shard_size: Maximum size of a data file in bytes.

    Raises:
      ValueError: If the size is not positive.

    Example:
      >>> import glob, os, tempfile
      >>> policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=400)
      >>> options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(tf.ones([10, 30])))
      ...     path = checkpoint.write(os.path.join(folder, "ckpt"), options)
      ...     _ = checkpoint.read(path).assert_consumed()
      ...     len(glob.glob(path + ".data-*"))
      3
    """

    def __init__(self, max_shard_size: int) -> None:
        if max_shard_size <= 0:
            raise ValueError(f"Expected a positive `max_shard_size`, got {max_shard_size}.")
        self.max_shard_size = max_shard_size

    @property
    def description(self) -> str:
        """Return a description of the policy."""
        return "Split tensors into shards with a max shard size."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """Assign tensors to data files.

        Args:
          shardable_tensors: Tensors of one process.
        """
        filling = _ShardPacker(self.max_shard_size)
        for tensor in shardable_tensors:
            filling.add(tensor)
        return filling.get_shards()


class _ShardPacker:
    """Packer that fills shards one after the other."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._free_bytes = max_bytes
        self._shards: list[Shard] = [{}]
        self._oversized: list[Shard] = []

    def get_shards(self) -> list[Shard]:
        return [shard for shard in self._shards if shard] + self._oversized

    def add(self, tensor: ShardableTensor) -> None:
        array = read_uncached(tensor.tensor.array)
        size, itemsize = array.nbytes, array.dtype.itemsize
        if tensor.checkpoint_key == GRAPH_KEY:
            size = itemsize = 0
        elif tensor.dtype == dtypes.string:
            lengths = [len(text) for text in array.reshape(-1).tolist()]
            size, itemsize = sum(lengths), max(lengths, default=0)
        if array.ndim == 0:
            self._append(tensor, tensor.slice_spec, array, size)
            return
        shape, offsets = tensor.shape.as_list(), [0] * array.ndim
        if tensor.slice_spec:
            full_shape, extents = parse_slice_spec(tensor.slice_spec)
            shape, offsets = list(full_shape), [start for start, _ in extents]
        rest, begin = array, [0] * array.ndim
        while size > self._free_bytes:
            axis, count = self._choose_split(rest, itemsize)
            if not count:
                if self._free_bytes < self._max_bytes:
                    self._start_shard()
                    continue
                # Not even a row fits into an empty shard, so the row is split, down to single
                # elements if necessary.
                axis, count = next((a for a, n in enumerate(rest.shape) if n > 1), 0), 1
            part = rest[(slice(None),) * axis + (slice(count),)]
            self._add_part(tensor, shape, offsets, begin, part, itemsize)
            begin[axis] += count
            rest = rest[(slice(None),) * axis + (slice(count, None),)]
            size = rest.size * itemsize
            if not rest.size:
                return
        spec = format_slice_spec(
            shape, [a + b for a, b in zip(offsets, begin, strict=True)], rest.shape
        )
        self._append(tensor, spec, rest, size)

    def _add_part(
        self,
        tensor: ShardableTensor,
        shape: list[int],
        offsets: list[int],
        begin: list[int],
        part: np.ndarray,
        itemsize: int,
    ) -> None:
        """Add a part of a tensor, which is split again if it is too large."""
        axis = next((a for a, n in enumerate(part.shape) if n > 1), None)
        if part.size * itemsize <= self._free_bytes or axis is None:
            start = [a + b for a, b in zip(offsets, begin, strict=True)]
            self._append(
                tensor, format_slice_spec(shape, start, part.shape), part, part.size * itemsize
            )
            return
        best_axis, count = self._choose_split(part, itemsize)
        axis, count = (best_axis, count) if count else (axis, 1)
        for first in range(0, part.shape[axis], count):
            inner = list(begin)
            inner[axis] += first
            piece = part[(slice(None),) * axis + (slice(first, first + count),)]
            self._add_part(tensor, shape, offsets, inner, piece, itemsize)

    def _choose_split(self, array: np.ndarray, itemsize: int) -> tuple[int, int]:
        """Return the axis with the fewest parts that fit, and the length of a part or 0."""
        best, length = 0, 0
        fewest = math.inf
        for axis, size in enumerate(array.shape):
            num_fitting = self._free_bytes // (array.size // size * itemsize)
            parts = math.ceil(size / num_fitting) if num_fitting else math.inf
            if parts < fewest:
                best, fewest, length = axis, parts, math.ceil(size / parts)
        return best, length

    def _append(self, tensor: ShardableTensor, spec: str, value: np.ndarray, size: int) -> None:
        key = tensor.checkpoint_key
        if size > self._max_bytes:
            _log.warning(
                "%s has a part of %d bytes that cannot be split. It gets its own data file, larger than "
                "the requested %d bytes.",
                *(f"{key} {spec}".strip(), size, self._max_bytes),
            )
            self._oversized.append({key: {spec: value}})
            return
        if size > self._free_bytes:
            self._start_shard()
        self._shards[-1].setdefault(key, {})[spec] = value
        self._free_bytes -= size

    def _start_shard(self) -> None:
        self._shards.append({})
        self._free_bytes = self._max_bytes
