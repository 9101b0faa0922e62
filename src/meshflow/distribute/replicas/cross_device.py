"""`CrossDeviceOps`: how values of several replicas become one, called by hand.

Inside strategies XLA chooses the collectives; these objects reduce values that a program has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.convert import convert_to_tensor
from meshflow.distribute.replicas.collectives import ReduceOp
from meshflow.distribute.replicas.values import PerReplica
from meshflow.ops.array import concat
from meshflow.ops.math import add_n

__all__ = [
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
]


class CrossDeviceOps:
    """Base of the algorithms that combine values of devices; subclasses may override the hooks.

    Given to a strategy it is accepted: there XLA chooses the collectives.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
      >>> value = strategy.run(lambda: tf.constant(2.0))
      >>> float(tf.distribute.ReductionToOneDevice().reduce("sum", value, destinations="CPU:0"))
      2.0
    """

    def reduce(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """The sum or mean of the replicas' values.

        Args:
          reduce_op: `ReduceOp` or its name.
          per_replica_value: a value of replicas; a tensor is one replica's.
          destinations: accepted: a result is on every device that needs it.
          options: accepted.

        Returns:
          A tensor, or `tf.IndexedSlices` for those.

        Raises:
          ValueError: for another `reduce_op`.
        """
        return self.reduce_implementation(
            ReduceOp.parse(reduce_op), per_replica_value, destinations, options
        )

    def batch_reduce(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any = None
    ) -> list[Any]:
        """`reduce` of several values.

        Args:
          reduce_op: `ReduceOp` or its name.
          value_destination_pairs: pairs (value of replicas, destinations).
          options: accepted.

        Returns:
          A list of what `reduce` gives.

        Raises:
          ValueError: when these are no pairs.
        """
        pairs = list(value_destination_pairs)
        if not all(_is_pair(pair) for pair in pairs):
            raise ValueError(
                "`value_destination_pairs` must be a list or a tuple of pairs (value, destinations), "
                f"got {pairs!r}."
            )
        return self.batch_reduce_implementation(ReduceOp.parse(reduce_op), pairs, options)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """A tensor for all destinations.

        Args:
          tensor: the tensor.
          destinations: accepted: a value is on every device that needs it.
        """
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """What `reduce` does; arguments as there, `reduce_op` a `ReduceOp`."""
        return _reduced(reduce_op, per_replica_value, _sum)

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """What `batch_reduce` does; arguments as there, `reduce_op` a `ReduceOp`."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """What `broadcast` does; arguments as there."""
        return convert_to_tensor(tensor)


class _AllReduce(CrossDeviceOps):
    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise ValueError(
                f"{type(self).__name__}: `num_packs` must be greater than or equal to 0, got {num_packs}."
            )
        self.num_packs = num_packs


class NcclAllReduce(_AllReduce):
    """All-reduce by NCCL; on GPUs that is what XLA uses.

    Args:
      num_packs: accepted.

    Raises:
      ValueError: when it is negative.

    Example:
      >>> import meshflow as tf
      >>> reduction = tf.distribute.NcclAllReduce()
      >>> tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction).num_replicas_in_sync
      2
    """


class HierarchicalCopyAllReduce(_AllReduce):
    """All-reduce by copies; accepted, since XLA chooses.

    Args:
      num_packs: accepted.

    Raises:
      ValueError: when it is negative.

    Example:
      >>> import meshflow as tf
      >>> reduction = tf.distribute.HierarchicalCopyAllReduce()
      >>> tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction).num_replicas_in_sync
      2
    """


class ReductionToOneDevice(CrossDeviceOps):
    """Reduction on one device.

    Args:
      reduce_to_device: accepted.
      accumulation_fn: makes one tensor of a list of them; default `tf.add_n`.

    Example:
      >>> import meshflow as tf
      >>> reduction = tf.distribute.ReductionToOneDevice()
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction)
      >>> float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(3.0)), axis=None))
      6.0
    """

    def __init__(
        self,
        reduce_to_device: Any = None,
        accumulation_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """What `reduce` does; arguments as there, `reduce_op` a `ReduceOp`."""
        return _reduced(reduce_op, per_replica_value, self.accumulation_fn or _sum)


def _is_pair(value: Any) -> bool:
    plain = isinstance(value, (tuple, list)) and not isinstance(value, PerReplica)
    return plain and len(value) == 2


def _sum(values: Sequence[Any]) -> Any:
    if not isinstance(values[0], IndexedSlices):
        return add_n(values)
    rows = concat([v.values for v in values], 0)
    return IndexedSlices(rows, concat([v.indices for v in values], 0), values[0].dense_shape)


def _reduced(reduce_op: ReduceOp, value: Any, add: Callable[[list[Any]], Any]) -> Any:
    given = value.values if isinstance(value, PerReplica) else (value,)
    values = [v if isinstance(v, IndexedSlices) else convert_to_tensor(v) for v in given]
    total = add(values)
    if reduce_op is ReduceOp.SUM:
        return total
    count = np.asarray(len(values), total.dtype.dtype)
    if isinstance(total, IndexedSlices):
        return IndexedSlices(total.values / count, total.indices, total.dense_shape)
    return total / count
