"""How the arrays of a checkpoint are divided over its data files: what a policy is given, gives back, and may not do."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshflow.checkpoint.slices import Parts
from meshflow.checkpoint.wire import Extents
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.device_to_host import read
from meshflow.core.values import dtypes
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor

__all__ = [
    "Shard",
    "ShardByTaskPolicy",
    "ShardableTensor",
    "ShardingCallback",
    "divided",
    "extents_of_spec",
    "spec_of",
]

Shard = MutableMapping[str, MutableMapping[str, Any]]

# One process writes: several write a file each, whatever a policy says.
_HERE = DeviceSpec(job="localhost", replica=0, task=0, device_type="CPU", device_index=0)


@dataclass(frozen=True)
class ShardableTensor:
    """A tensor of a checkpoint, as a `ShardingCallback` is given it.

    Attributes:
      tensor: the tensor; a part of one where `slice_spec` is not empty.
      dtype: its dtype.
      device: a `tf.DeviceSpec`: which process writes it.
      name: its key.
      shape: the `tf.TensorShape` of `tensor`.
      slice_spec: empty for a whole tensor; of a part the whole shape, and first index and length in each dimension, such as
        "4 3 0,2:0,3".
      checkpoint_key: the key of the whole tensor.
      trackable: the object whose value it is.
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
    """Base class of policies that divide the tensors of a checkpoint over data files.

    Subclasses define `description` and `__call__`, which is given all tensors and returns, for each file, a dictionary
    of dictionaries: tensors by `slice_spec`, by `checkpoint_key`. Each tensor must be in one of them, whole or in parts.

    Example:
      >>> import meshflow as tf
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
        """What the policy does, in a sentence; errors name it."""

    @abc.abstractmethod
    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """The tensors of each file.

        Args:
          shardable_tensors: all tensors of one process.
        """

    def __hash__(self) -> int:
        own = ((name, x if isinstance(x, Hashable) else None) for name, x in vars(self).items())
        return hash((self.description, frozenset(own)))


class ShardByTaskPolicy(ShardingCallback):
    """One data file for each process that writes, which is what happens without a policy."""

    @property
    def description(self) -> str:
        """What the policy does."""
        return "Split tensors into shards based on their device spec task."

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """One shard with all tensors.

        Args:
          shardable_tensors: tensors of one process.
        """
        shard: Shard = {}
        for tensor in shardable_tensors:
            shard.setdefault(tensor.checkpoint_key, {})[tensor.slice_spec] = tensor.tensor
        return [shard]


def spec_of(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> str:
    """How a part of an array is written in a `slice_spec`.

    Args:
      shape: the whole array's.
      offsets: the part's first index in each dimension.
      lengths: its shape.

    Example:
      >>> spec_of([4, 3], [2, 0], [2, 3])
      '4 3 2,2:0,3'
    """
    parts = ":".join(f"{a},{n}" for a, n in zip(offsets, lengths, strict=True))
    return " ".join([*map(str, shape), parts])


def extents_of_spec(spec: str) -> tuple[tuple[int, ...], Extents]:
    """The whole shape, and first index and length in each dimension, of a `slice_spec`.

    Args:
      spec: what `spec_of` gave.

    Raises:
      ValueError: for anything else.

    Example:
      >>> extents_of_spec('4 3 2,2:0,3')
      ((4, 3), ((2, 2), (0, 3)))
    """
    *shape, parts = spec.split()
    pairs = [tuple(int(number) for number in part.split(",")) for part in parts.split(":")]
    if len(pairs) != len(shape) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{spec!r} is no part of an array, such as '4 3 2,2:0,3'.")
    return tuple(map(int, shape)), tuple((a, n) for a, n in pairs)


def divided(
    arrays: Mapping[str, Any], owners: Mapping[str, Any], policy: ShardingCallback
) -> list[dict[str, Any]]:
    """The arrays of each data file, whole or in `Parts`.

    Args:
      arrays: all arrays by key.
      owners: the objects whose they are.
      policy: decides.

    Raises:
      RuntimeError: when the policy leaves out, adds, repeats or changes a tensor, naming it.
    """
    tensors = [
        tensor
        for key, array in arrays.items()
        for tensor in _shardable(key, array, owners.get(key))
    ]
    wanted: dict[str, list[ShardableTensor]] = {}
    for tensor in tensors:
        wanted.setdefault(tensor.checkpoint_key, []).append(tensor)
    files: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for shard in policy(tensors):
        file: dict[str, Any] = {}
        for key, slices in shard.items():
            for spec, value in slices.items():
                part = _checked(policy, key, spec.strip(), value, wanted, seen)
                if isinstance(part, Parts) and key in file:
                    part.parts[:0] = file[key].parts
                file[key] = part
        files.append(file)
    missing = [key for key, of in wanted.items() if seen.get(key, -1) != _size(of)]
    if missing:
        raise _refused(policy, missing[0], "is not whole in them, or is missing")
    return files


def _shardable(key: str, array: Any, trackable: Any) -> Iterable[ShardableTensor]:
    pieces: list[tuple[str, Any]] = [("", array)]
    if isinstance(array, Parts):
        pieces = []
        for extents, part in array.parts:
            offsets = [start for start, _ in extents]
            pieces.append((spec_of(array.shape, offsets, part.shape), part))
    for spec, piece in pieces:
        dtype = dtypes.as_dtype(np.dtype(piece.dtype))
        shape = TensorShape(piece.shape)
        yield ShardableTensor(None, Tensor(piece), dtype, _HERE, key, shape, spec, key, trackable)


def _size(tensors: Sequence[ShardableTensor]) -> int:
    return sum(math.prod(tensor.shape.as_list()) for tensor in tensors)


def _checked(
    policy: ShardingCallback,
    key: str,
    spec: str,
    value: Any,
    wanted: Mapping[str, list[ShardableTensor]],
    seen: dict[str, int],
) -> Any:
    """An array, or `Parts` of one, that a policy has put into a shard; `seen` counts elements."""
    if key not in wanted:
        raise _refused(policy, key, "is a tensor not originally in the object graph")
    first = wanted[key][0]
    array = read(value._value if isinstance(value, Tensor) else value)
    if dtypes.as_dtype(array.dtype) != first.dtype:
        raise _refused(policy, key, f"is a tensor with an altered dtype, {array.dtype}")
    seen[key] = seen.get(key, 0) + array.size
    if seen[key] > _size(wanted[key]):
        raise _refused(policy, key, "is in them several times")
    if not spec:
        if list(array.shape) != first.shape.as_list():
            raise _refused(policy, key, f"is a tensor with an altered shape, {list(array.shape)}")
        return array
    shape, extents = extents_of_spec(spec)
    if [n for _, n in extents] != list(array.shape):
        raise _refused(policy, key, f"has a part {spec!r} of the shape {list(array.shape)}")
    return Parts(shape, [(extents, array)])


def _refused(policy: ShardingCallback, key: str, why: str) -> RuntimeError:
    return RuntimeError(f"The shards of the policy {policy.description!r} are wrong: {key} {why}.")
