"""Partitioning of the arrays of a checkpoint over its data files, by policies."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshflow.checkpoint.bundle_messages import Extents
from meshflow.checkpoint.object_graph import Trackable
from meshflow.checkpoint.slices import ArrayParts
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.device_to_host import read_uncached
from meshflow.core.values import dtypes
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array
from meshflow.placement.file_store import FileArray

# The tensors of a data file: by `slice_spec`, by `checkpoint_key`.

Shard = MutableMapping[str, MutableMapping[str, Any]]

# A policy is only used if one process writes. If several do, each of them writes one file.
_LOCAL_DEVICE = DeviceSpec(job="localhost", replica=0, task=0, device_type="CPU", device_index=0)


@dataclass(frozen=True)
class ShardableTensor:
    """Tensor of a checkpoint, as passed to a `ShardingCallback`.

    Attributes:
      tensor: The tensor, or a part of one if `slice_spec` is not empty.
      dtype: Its dtype.
      device: A `tf.DeviceSpec` of the process that writes it.
      name: Its key.
      shape: The `tf.TensorShape` of `tensor`.
      slice_spec: Empty for a full tensor. For a part the full shape, and start and length in each
        dimension, such as
        "4 3 0,2:0,3".
      checkpoint_key: Key of the full tensor.
      trackable: Object that owns the value.
    """

    _tensor_save_spec: Any
    tensor: Any
    dtype: dtypes.DType
    device: DeviceSpec
    name: str
    shape: TensorShape
    slice_spec: str
    checkpoint_key: str
    trackable: Any

    def __hash__(self) -> int:
        return hash((self.name, self.dtype, str(self.device), self.checkpoint_key))


class ShardingCallback(abc.ABC):
    """Base class of policies that partition the tensors of a checkpoint over data files.

    Subclasses define `description` and `__call__`, which gets all tensors and returns a dictionary
    of dictionaries for each file:
    tensors by `slice_spec`, by `checkpoint_key`. Each tensor must be in one of them, complete or in
    parts.

    Example:
      >>> import glob, os, tempfile
      >>> class OneEach(tf.train.experimental.ShardingCallback):
      ...     @property
      ...     def description(self):
      ...         return "A file for each tensor."
      ...     def __call__(self, shardable_tensors):
      ...         return [{t.checkpoint_key: {t.slice_spec: t.tensor}} for t in shardable_tensors]
      >>> options = tf.train.CheckpointOptions(experimental_sharding_callback=OneEach())
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     checkpoint = tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable(2.0))
      ...     path = checkpoint.write(os.path.join(folder, "ckpt"), options)
      ...     len(glob.glob(path + ".data-*"))  # two variables and the graph of objects
      3
    """

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """Return a description of the policy in one sentence, used in error messages."""

    @abc.abstractmethod
    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """Assign tensors to data files.

        Args:
          shardable_tensors: All tensors of one process.

        Returns:
          The tensors of each file.
        """

    def __hash__(self) -> int:
        own = ((name, x if isinstance(x, Hashable) else None) for name, x in vars(self).items())
        return hash((self.description, frozenset(own)))


class ShardByTaskPolicy(ShardingCallback):
    """Policy with one data file for each writing process, as without a policy."""

    @property
    def description(self) -> str:
        """Return a description of the policy."""
        return "Split tensors into shards based on their device spec task."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """Return one shard with all tensors.

        Args:
          shardable_tensors: Tensors of one process.
        """
        shard: Shard = {}
        for tensor in shardable_tensors:
            shard.setdefault(tensor.checkpoint_key, {})[tensor.slice_spec] = tensor.tensor
        return [shard]


def format_slice_spec(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> str:
    """Format the `slice_spec` of a part of an array.

    Args:
      shape: Shape of the full array.
      offsets: Start of the part in each dimension.
      lengths: Shape of the part.

    Example:
      >>> format_slice_spec([4, 3], [2, 0], [2, 3])
      '4 3 2,2:0,3'
    """
    parts = ":".join(f"{a},{n}" for a, n in zip(offsets, lengths, strict=True))
    return " ".join([*map(str, shape), parts])


def parse_slice_spec(spec: str) -> tuple[tuple[int, ...], Extents]:
    """Parse a `slice_spec`.

    Args:
      spec: Text that `format_slice_spec` returned.

    Returns:
      The shape of the full array, and start and length of the part in each dimension.

    Raises:
      ValueError: If the text has another form.

    Example:
      >>> parse_slice_spec('4 3 2,2:0,3')
      ((4, 3), ((2, 2), (0, 3)))
    """
    *shape, parts = spec.split()
    pairs = [tuple(int(number) for number in part.split(",")) for part in parts.split(":")]
    if len(pairs) != len(shape) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"Expected a part of an array such as '4 3 2,2:0,3' for the slice_spec, got {spec!r}."
        )
    return tuple(map(int, shape)), tuple((a, n) for a, n in pairs)


def partition_arrays(
    arrays: Mapping[str, Any], owners: Mapping[str, Any], policy: ShardingCallback
) -> list[dict[str, Any]]:
    """Partition arrays over data files by a policy.

    Args:
      arrays: All arrays by key.
      owners: Object of each key.
      policy: The policy.

    Returns:
      The arrays of each data file by key, complete or as `ArrayParts`.

    Raises:
      RuntimeError: If the policy omits, adds, repeats or changes a tensor. The message names the
        tensor.
    """
    tensors = [
        tensor
        for key, array in arrays.items()
        for tensor in _make_shardable_tensors(key, array, owners.get(key))
    ]
    tensors_by_key: dict[str, list[ShardableTensor]] = {}
    for tensor in tensors:
        tensors_by_key.setdefault(tensor.checkpoint_key, []).append(tensor)
    files: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for shard in policy(tensors):
        file: dict[str, Any] = {}
        for key, slices in shard.items():
            for spec, value in slices.items():
                part = _check_value(policy, key, spec.strip(), value, tensors_by_key, counts)
                if isinstance(part, ArrayParts) and key in file:
                    part.parts[:0] = file[key].parts
                file[key] = part
        files.append(file)
    missing = [
        key
        for key, parts in tensors_by_key.items()
        if counts.get(key, -1) != _count_elements(parts)
    ]
    if missing:
        raise _make_policy_error(policy, missing[0], "is not complete in them, or is missing")
    return files


def _make_shardable_tensors(
    key: str, array: Array | FileArray | ArrayParts, trackable: Trackable
) -> Iterable[ShardableTensor]:
    pieces: list[tuple[str, Any]] = [("", array)]
    if isinstance(array, ArrayParts):
        pieces = []
        for extents, part in array.parts:
            offsets = [start for start, _ in extents]
            pieces.append((format_slice_spec(array.shape, offsets, part.shape), part))
    for spec, piece in pieces:
        dtype = dtypes.as_dtype(np.dtype(piece.dtype))
        shape = TensorShape(piece.shape)
        yield ShardableTensor(
            None, Tensor(piece), dtype, _LOCAL_DEVICE, key, shape, spec, key, trackable
        )


def _count_elements(tensors: Sequence[ShardableTensor]) -> int:
    return sum(math.prod(tensor.shape.as_list()) for tensor in tensors)


def _check_value(
    policy: ShardingCallback,
    key: str,
    spec: str,
    value: TensorLike,
    tensors_by_key: Mapping[str, list[ShardableTensor]],
    counts: dict[str, int],
) -> np.ndarray | ArrayParts:
    """Check an array that a policy has put into a shard, and count its elements in `counts`.

    Returns:
      The array, or `ArrayParts` with it if it is a part.
    """
    if key not in tensors_by_key:
        raise _make_policy_error(policy, key, "is a tensor not originally in the object graph")
    first = tensors_by_key[key][0]
    array = read_uncached(value.array if isinstance(value, Tensor) else value)
    if dtypes.as_dtype(array.dtype) != first.dtype:
        raise _make_policy_error(policy, key, f"is a tensor with an altered dtype, {array.dtype}")
    counts[key] = counts.get(key, 0) + array.size
    if counts[key] > _count_elements(tensors_by_key[key]):
        raise _make_policy_error(policy, key, "is in them several times")
    if not spec:
        if list(array.shape) != first.shape.as_list():
            raise _make_policy_error(
                policy, key, f"is a tensor with an altered shape, {list(array.shape)}"
            )
        return array
    shape, extents = parse_slice_spec(spec)
    if [n for _, n in extents] != list(array.shape):
        raise _make_policy_error(
            policy, key, f"has a part {spec!r} of the shape {list(array.shape)}"
        )
    return ArrayParts(shape, [(extents, array)])


def _make_policy_error(policy: ShardingCallback, key: str, problem: str) -> RuntimeError:
    return RuntimeError(
        f"The shards of the policy {policy.description!r} are wrong: {key} {problem}."
    )
