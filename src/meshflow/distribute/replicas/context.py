"""What a replica sees: its context, collectives, and variables that replicas share.

All replicas run as one program: the replica function is traced once for one replica and mapped
over the axis `AXIS`, so a collective is one operation over that axis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import philox
from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import SeedStream
from meshflow.distribute.replicas.collectives import (
    AXIS,
    ReduceOp,
    divisible,
    gather,
    gather_uneven,
    gatherable,
    pmax,
    pmean,
    psum,
    replica_index,
    stack,
)
from meshflow.distribute.replicas.shares import current_shares
from meshflow.distribute.replicas.values import Stacked, map_replicas
from meshflow.ops import array

__all__ = ["ReplicaContext"]


class _Stacks(threading.local):
    def __init__(self) -> None:
        # ReplicaContext, or a strategy for its cross-replica context; innermost last.
        self.entries: list[Any] = []
        self.together = False


stacks = _Stacks()


@contextmanager
def entered(entry: Any) -> Iterator[None]:
    """Makes a replica context or a strategy the current one."""
    saved, context.replicas = context.replicas, getattr(entry, "_program", None)
    stacks.entries.append(entry)
    try:
        yield
    finally:
        stacks.entries.pop()
        context.replicas = saved


@contextmanager
def reading_together() -> Iterator[None]:
    """In replicas, lets variables synchronized on read give what they are of all replicas together."""
    saved, stacks.together = stacks.together, True
    try:
        yield
    finally:
        stacks.together = saved


def spanning() -> ReplicaContext | None:
    """The current replica context when it is one of several replicas."""
    entry = stacks.entries[-1] if stacks.entries else None
    several = isinstance(entry, ReplicaContext) and entry._several
    return entry if several else None


class SizeWantedError(Exception):
    """Tracing has come to an `all_gather` whose other sizes are not known yet; `args` has the own one."""


class ReplicaContext:
    """What a function called by `Strategy.run` knows of itself.

    Args:
      strategy: the strategy.
      replica_id_in_sync_group: this replica's number.
      gathered: where replicas have different shapes, the sizes that they give to `all_gather`: for
        each call in turn a tuple of one size for each replica, as far as they are known.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> def step():
      ...     context = tf.distribute.get_replica_context()
      ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)
      >>> [int(total) for total in strategy.experimental_local_results(strategy.run(step))]
      [3, 3]
    """

    def __init__(
        self,
        strategy: Any,
        replica_id_in_sync_group: Any = 0,
        gathered: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        self._strategy = strategy
        self._id = replica_id_in_sync_group
        self._several = strategy.num_replicas_in_sync > 1 and replica_id_in_sync_group is None
        self._program = (id(strategy), gathered) if self._several else None
        self._known_sizes = gathered
        self._gathers = 0

    @property
    def whole_batch(self) -> bool:
        """Whether this is the one step of Keras' loop, which has the batch of all replicas."""
        return not self._several

    @property
    def strategy(self) -> Any:
        """The strategy that runs the replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> Tensor:
        """This replica's number, an int32 scalar."""
        return apply(replica_index, ()) if self._several else convert_to_tensor(self._id or 0)

    @property
    def devices(self) -> tuple[str, ...]:
        """The replica's device; while all replicas run as one program, that of the first."""
        return (self._strategy.extended.worker_devices[0],)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Sum or mean of a value over all replicas, on every replica.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: a tensor or a structure of tensors, of one shape on all replicas.
          options: accepted.

        Returns:
          The same structure. The gradient is the same reduction.
        """
        mean = ReduceOp.parse(reduce_op) is ReduceOp.MEAN
        op = pmean if mean else psum

        def reduced(leaf: Any) -> Any:
            if isinstance(leaf, IndexedSlices):
                return self._all_rows(leaf, mean)
            tensor = convert_to_tensor(leaf)
            if not self._several:
                return tensor
            return apply(op, (divisible(tensor) if mean else tensor,))

        return nest.map_structure(reduced, value)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The values of all replicas joined along an axis, on every replica.

        Args:
          value: a tensor or a structure of tensors, whose sizes along the axis may differ.
          axis: the axis.
          options: accepted.

        Returns:
          The same structure.

        Raises:
          NotImplementedError: for `tf.IndexedSlices`.
        """
        return nest.map_structure(
            lambda leaf: self._joined(gatherable(leaf, "all_gather"), int(axis)), value
        )

    def _joined(self, tensor: Tensor, axis: int) -> Tensor:
        if not self._several:
            return tensor
        axis %= max(len(tensor.shape), 1)
        if self._known_sizes is not None:
            turn, self._gathers = self._gathers, self._gathers + 1
            if turn == len(self._known_sizes):
                raise SizeWantedError(tensor.shape[axis])
            sizes = self._known_sizes[turn]
            if len(set(sizes)) > 1:
                return apply(gather_uneven, (tensor,), (axis, sizes))
        return apply(gather, (tensor,), (axis,))

    def _all_rows(self, slices: IndexedSlices, mean: bool) -> IndexedSlices:
        """The rows of all replicas, which add up."""
        values = slices.values
        if self._several and mean:
            values = values / np.asarray(self.num_replicas_in_sync, values.dtype.dtype)
        rows, indices = self._joined(values, 0), self._joined(slices.indices, 0)
        return IndexedSlices(rows, indices, slices.dense_shape)

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function once for all replicas.

        Args:
          merge_fn: called as `merge_fn(strategy, *args, **kwargs)` with a `PerReplica` for each tensor.
          args: its arguments.
          kwargs: its keyword arguments.

        Returns:
          What it returns, with each replica's own value for a `PerReplica`.
        """

        def gathered(leaf: Any) -> Any:
            if not self._several or not isinstance(leaf, Tensor):
                return leaf
            return Stacked((apply(stack, (leaf,)),))

        args, kwargs = nest.map_structure(gathered, (tuple(args), dict(kwargs or {})))
        with entered(self._strategy):
            result = merge_fn(self._strategy, *args, **kwargs)

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Stacked):
                return leaf
            with entered(self):
                return array.gather(leaf.stacked, self.replica_id_in_sync_group)

        return map_replicas(own, result)


def _fold_replica(operands: Any, static: Any) -> Any:
    return philox.folded(operands[0], jax.lax.axis_index(static[0]))


_own_key = Op("replica_key", _fold_replica, differentiable=False, is_foldable=False)


def _key_of_replica(key: Tensor) -> Tensor:
    if spanning() is not None:
        return apply(_own_key, (key,), (AXIS,))
    shares = current_shares()
    # One device has all rows, and draws what it draws without a strategy.
    if shares is None or shares.row_parts == 1:
        return key
    return apply(_own_key, (key,), (shares.axes,))


SeedStream.per_replica = staticmethod(_key_of_replica)


def max_over_replicas(value: Tensor) -> Tensor:
    """The maximum over the replicas of `Strategy.run`; outside it, the value. Without gradient."""
    return value if spanning() is None else apply(pmax, (value,))


def sum_over_replicas(grads_and_vars: Any) -> Any:
    """Gradients summed over the replicas of `Strategy.run`; as they are outside it."""
    replica = spanning()
    if replica is None:
        return grads_and_vars
    return [
        (None if g is None else replica.all_reduce(ReduceOp.SUM, g), v) for g, v in grads_and_vars
    ]
