"""`CrossDeviceOps`: reductions of the values of several replicas, for explicit calls.

Inside strategies, XLA chooses the collectives; these objects reduce values of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.distribute.replicas.collectives import ReduceOp
from meshflow.distribute.replicas.values import PerReplica
from meshflow.ops.array import concat
from meshflow.ops.math import add_n

# A value of one or several replicas, and the result of a reduction.
_Value: TypeAlias = PerReplica | IndexedSlices | TensorLike
_Total: TypeAlias = Tensor | IndexedSlices


class CrossDeviceOps:
    """Base class of reductions over devices; subclasses may override the methods `*_implementation`.

    A strategy accepts such an object but ignores it, because XLA chooses the collectives.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
      >>> value = strategy.run(lambda: tf.constant(2.0))
      >>> float(tf.distribute.ReductionToOneDevice().reduce("sum", value, destinations="CPU:0"))
      2.0
    """

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: _Value,
        destinations: object,
        options: object = None,
    ) -> _Total:
        """Return the sum or mean of the replicas' values.

        Args:
          reduce_op: `ReduceOp` or its name.
          per_replica_value: Per-replica value; a tensor is the value of one replica.
          destinations: Ignored; a result is on every device that needs it.
          options: Ignored.

        Returns:
          A tensor, or a `tf.IndexedSlices` if the values are of this type.

        Raises:
          ValueError: If `reduce_op` is unknown.
        """
        return self.reduce_implementation(
            ReduceOp.parse(reduce_op), per_replica_value, destinations, options
        )

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Iterable[tuple[_Value, object]],
        options: object = None,
    ) -> list[_Total]:
        """Reduce several values.

        Args:
          reduce_op: `ReduceOp` or its name.
          value_destination_pairs: Pairs (per-replica value, destinations).
          options: Ignored.

        Raises:
          ValueError: If an element is no pair.
        """
        pairs = list(value_destination_pairs)
        if not all(_is_pair(pair) for pair in pairs):
            raise ValueError(
                "`value_destination_pairs` must be a list or a tuple of pairs (value, destinations), "
                f"got {pairs!r}."
            )
        return self.batch_reduce_implementation(ReduceOp.parse(reduce_op), pairs, options)

    def broadcast(self, tensor: TensorLike, destinations: object) -> Tensor:
        """Return a tensor for all destinations."""
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: _Value, destinations: object, options: object
    ) -> _Total:
        """Implement `reduce`, with the same arguments; `reduce_op` is a `ReduceOp`."""
        return reduce_values(reduce_op, per_replica_value)

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Iterable[tuple[_Value, object]],
        options: object,
    ) -> list[_Total]:
        """Implement `batch_reduce`, with the same arguments; `reduce_op` is a `ReduceOp`."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: TensorLike, destinations: object) -> Tensor:
        """Implement `broadcast`, with the same arguments."""
        return convert_to_tensor(tensor)


class _AllReduce(CrossDeviceOps):
    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise ValueError(
                f"{type(self).__name__}: `num_packs` must be greater than or equal to 0, got {num_packs}."
            )
        self.num_packs = num_packs


class NcclAllReduce(_AllReduce):
    """All-reduce by NCCL, which XLA uses on GPUs.

    Args:
      num_packs: Ignored.

    Raises:
      ValueError: If `num_packs` is negative.

    Example:
      >>> reduction = tf.distribute.NcclAllReduce()
      >>> tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction).num_replicas_in_sync
      2
    """


class HierarchicalCopyAllReduce(_AllReduce):
    """All-reduce by copies; it has no effect, because XLA chooses the collectives.

    Args:
      num_packs: Ignored.

    Raises:
      ValueError: If `num_packs` is negative.

    Example:
      >>> reduction = tf.distribute.HierarchicalCopyAllReduce()
      >>> tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction).num_replicas_in_sync
      2
    """


class ReductionToOneDevice(CrossDeviceOps):
    """Reduction on one device.

    Args:
      reduce_to_device: Ignored.
      accumulation_fn: Function that adds a list of tensors; default `tf.add_n`.

    Example:
      >>> reduction = tf.distribute.ReductionToOneDevice()
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction)
      >>> float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(3.0)), axis=None))
      6.0
    """

    def __init__(
        self,
        reduce_to_device: object = None,
        accumulation_fn: Callable[[list[_Total]], _Total] | None = None,
    ) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: _Value, destinations: object, options: object
    ) -> _Total:
        """Implement `reduce`, with the same arguments; `reduce_op` is a `ReduceOp`."""
        return reduce_values(reduce_op, per_replica_value, self.accumulation_fn)


def _is_pair(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or isinstance(value, PerReplica):
        return False
    return len(value) == 2


def _add_values(values: Sequence[_Total]) -> _Total:
    if not isinstance(values[0], IndexedSlices):
        return add_n(values)
    slices = cast("Sequence[IndexedSlices]", values)
    rows = concat([v.values for v in slices], 0)
    return IndexedSlices(rows, concat([v.indices for v in slices], 0), values[0].dense_shape)


def reduce_values(
    reduce_op: ReduceOp, value: _Value, add: Callable[[list[_Total]], _Total] | None = None
) -> _Total:
    """Return the sum or mean of the replicas' values.

    Args:
      reduce_op: The reduction.
      value: Per-replica value, or the value of one replica.
      add: Function that adds a list of values, by default the sum of tensors, or all rows of `tf.IndexedSlices`.
    """
    parts = value.values if isinstance(value, PerReplica) else (value,)
    values = [v if isinstance(v, IndexedSlices) else convert_to_tensor(v) for v in parts]
    total = (add or _add_values)(values)
    if reduce_op is ReduceOp.SUM:
        return total
    count = np.asarray(len(values), total.dtype.dtype)
    if isinstance(total, IndexedSlices):
        return IndexedSlices(total.values / count, total.indices, total.dense_shape)
    return total / count
