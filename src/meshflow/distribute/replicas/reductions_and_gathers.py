"""Reductions and gathers of the values of replicas."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.distribute.replicas.collectives import (
    ReduceOp,
    convert_for_gather,
    convert_for_mean,
    convert_for_reduction,
)
from meshflow.distribute.replicas.context import get_spanning_context
from meshflow.distribute.replicas.cross_device import reduce_values
from meshflow.distribute.replicas.values import PerReplica, Stacked, map_replicas, stack_values
from meshflow.distribute.replicas.variables import MirroredVariable, SyncOnReadVariable
from meshflow.environment.types import PyTree
from meshflow.ops.array import concat
from meshflow.ops.math import add_n, reduce_mean, reduce_sum


class ReductionsAndGathers:
    """Methods of `Strategy` that combine the values of replicas; a base class of `Strategy`."""

    # Indices of this process's replicas.
    local_replicas: Sequence[int]

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas that compute a step together."""
        raise NotImplementedError

    def reduce(self, reduce_op: ReduceOp | str, value: PyTree, axis: Any = None) -> PyTree:
        """Return the sum or mean of the replicas' values.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: Result of `run`.
          axis: Axis, or several axes, to reduce within each replica, too; a mean is then over all
            elements.

        Returns:
          The same structure with one tensor, or `tf.IndexedSlices`, for each `PerReplica`. A mean of
          integers is a float.

        Raises:
          InvalidArgumentError: If `axis` is None and the replicas' shapes differ.
          TypeError: If a value is a ragged tensor, a sparse tensor or an extension type.

        Example:
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
          >>> losses = strategy.run(lambda: tf.constant([1.0, 5.0]))
          >>> strategy.reduce("SUM", losses, axis=None).numpy().tolist()
          [2.0, 10.0]
          >>> float(strategy.reduce("MEAN", losses, axis=0))
          3.0
        """
        check_cross_replica_context("reduce")
        mean = ReduceOp.parse(reduce_op) is ReduceOp.MEAN
        reducer = reduce_mean if mean else reduce_sum

        def reduce_leaf(leaf: PerReplica | TensorLike) -> Tensor | IndexedSlices:
            if not isinstance(leaf, PerReplica):
                tensor = convert_for_reduction(leaf, "Strategy.reduce")
                if axis is not None:
                    tensor = reducer(convert_for_mean(tensor) if mean else tensor, axis)
                # A value that is equal on every replica is added once per replica.
                if self.num_replicas_in_sync > 1 and not mean and axis is None:
                    tensor = tensor * np.asarray(self.num_replicas_in_sync, tensor.dtype.dtype)
                return tensor
            if axis is None and isinstance(leaf[0], IndexedSlices):
                return reduce_values(ReduceOp.parse(reduce_op), leaf)
            if isinstance(leaf, Stacked):
                stacked = convert_for_mean(leaf.stacked) if mean else leaf.stacked
                return reducer(stacked, to_stacked_axes(axis))
            values = [convert_for_reduction(v, "Strategy.reduce") for v in leaf.values]
            if axis is not None:
                # Replicas may have different numbers of elements; every element has the same
                # weight.
                values = [convert_for_mean(v) if mean else v for v in values]
                total = add_n([reduce_sum(v, axis) for v in values])
                count = sum(_count_reduced_elements(v, axis) for v in values)
                return total / np.asarray(count, total.dtype.dtype) if mean else total
            stacked_values = stack_values(values)
            if not isinstance(stacked_values, Stacked):
                raise InvalidArgumentError(
                    f"Strategy.reduce: the replicas' values have different shapes "
                    f"{[tuple(v.shape.as_list()) for v in values]}; pass axis=0 to reduce each first."
                )
            stacked = stacked_values.stacked
            return reducer(convert_for_mean(stacked) if mean else stacked, 0)

        return map_replicas(reduce_leaf, value)

    def gather(self, value: PyTree, axis: int) -> PyTree:
        """Concatenate the replicas' values along an axis.

        Args:
          value: Result of `run`.
          axis: Axis to concatenate along.

        Example:
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
          >>> values = strategy.run(lambda: tf.constant([1, 2]))
          >>> strategy.gather(values, axis=0).numpy().tolist()
          [1, 2, 1, 2]
        """
        check_cross_replica_context("gather")

        def gather_leaf(leaf: PerReplica | TensorLike) -> Tensor:
            if not isinstance(leaf, PerReplica):
                tensor = convert_for_gather(leaf, "gather")
                return concat([tensor] * self.num_replicas_in_sync, axis)
            values = [convert_for_gather(v, "gather") for v in leaf.values]
            _check_gather_shapes(values, axis)
            return concat(values, axis)

        return map_replicas(gather_leaf, value)

    def experimental_local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Return the values of this process's replicas as a tuple; for a structure, one structure for each replica.

        Example:
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
          >>> strategy.experimental_local_results(strategy.run(lambda: tf.constant(1)))[1].numpy().tolist()
          1
        """
        classes = (PerReplica, MirroredVariable, SyncOnReadVariable)
        if isinstance(value, classes):
            return value.values
        if not isinstance(value, (dict, list, tuple)):
            return (value,)

        def select(leaf: PyTree, index: int) -> PyTree:
            results = self.experimental_local_results(leaf)
            # A value that is equal on all replicas has a single result.
            return results[index if len(results) > 1 else 0]

        return tuple(
            map_replicas(functools.partial(select, index=i), value)
            for i in range(len(self.local_replicas))
        )

    unwrap = experimental_local_results


def check_cross_replica_context(method: str) -> None:
    """Raise a RuntimeError that names the method if a replica is running."""
    if get_spanning_context() is not None:
        raise RuntimeError(
            f"Strategy.{method}: Method requires being in cross-replica context, use "
            "get_replica_context().merge_call(), or ReplicaContext.all_reduce and all_gather."
        )


def to_stacked_axes(axis: int | Sequence[int] | None) -> list[int]:
    """Return the axes of stacked values: the replica axis, and those within each replica."""
    inner = [] if axis is None else np.atleast_1d(axis).tolist()
    return [0, *(a + 1 if a >= 0 else a for a in inner)]


def _count_reduced_elements(tensor: Tensor, axis: int | Sequence[int]) -> int:
    """Count the elements that a reduction over some axes combines to one."""
    sizes = tensor.shape.as_list()
    axes = {int(a) % len(sizes) for a in np.atleast_1d(axis)} if sizes else set()
    return int(np.prod([sizes[a] for a in axes], dtype=np.int64))


def _check_gather_shapes(values: Sequence[Tensor], axis: int) -> None:
    shapes = [tuple(v.shape.as_list()) for v in values]
    if len({len(shape) for shape in shapes}) > 1:
        raise InvalidArgumentError(
            f"Strategy.gather: Ranks of all input tensors should match, got replicas' shapes {shapes}."
        )
    rank = len(shapes[0])
    for dim in range(rank):
        if dim != axis % max(rank, 1) and len({shape[dim] for shape in shapes}) > 1:
            raise InvalidArgumentError(
                f"Strategy.gather: Dimension {dim} in both shapes must be equal, but the replicas' shapes "
                f"are {shapes}, joined along axis {axis}."
            )
