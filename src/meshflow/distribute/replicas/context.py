"""The context of a replica, its collectives, and the current context of a thread.

All replicas run as one program: the replica function is traced once for one replica and mapped over
the axis `REPLICA_AXIS`, so a collective is one operation over that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import philox
from meshflow.core.runtime.context import ThreadState, context
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import SeedStream
from meshflow.distribute.replicas.collectives import (
    REPLICA_AXIS,
    ReduceOp,
    convert_for_gather,
    convert_for_mean,
    convert_for_reduction,
    gather,
    gather_uneven,
    pmax,
    pmean,
    psum,
    replica_index,
    stack,
)
from meshflow.distribute.replicas.shares import current_shares
from meshflow.distribute.replicas.values import Stacked, map_replicas
from meshflow.environment.types import PyTree
from meshflow.ops import array

_Variable = TypeVar("_Variable")


class ReplicaStrategy(Protocol):
    """Interface of the strategy of a replica context."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas."""

    @property
    def extended(self) -> Any:
        """Return the less used methods of the strategy."""

    @property
    def local_replicas(self) -> Sequence[int]:
        """Return the indices of this process's replicas."""

    def share_values(self, values: list[Any]) -> list[Any]:
        """Return the values of all replicas, given those of this process's replicas."""

    def stack_rows(self, rows: list[Tensor]) -> Tensor:
        """Return a tensor with a row for each replica, given those of this process's replicas."""

    @property
    def runners(self) -> IdentityWeakDict:
        """Return functions that run functions with sizes that depend on values for all replicas."""

    def get_program(
        self, fn: Callable[..., PyTree], template: PyTree, make: Callable[[], Any]
    ) -> Any:
        """Return the program of a function; see `Strategy.get_program`."""


class _ContextStack(ThreadState):
    def __init__(self) -> None:
        # A `ReplicaContext`, or a strategy for its cross-replica context; the innermost entry is last.
        self.entries: list[Any] = []
        # Whether replicas read the merged value of variables that are synchronized on read.
        self.reads_merged = False


context_stack = _ContextStack()


@contextmanager
def context_scope(entry: ReplicaContext | ReplicaStrategy) -> Iterator[None]:
    """Enter a replica context, or the cross-replica context of a strategy."""
    # Functions are traced separately for each strategy and, in replicas, for the gathered sizes.
    key = entry.program_key if isinstance(entry, ReplicaContext) else entry
    saved, context.replica_program = context.replica_program, key
    context_stack.entries.append(entry)
    try:
        yield
    finally:
        context_stack.entries.pop()
        context.replica_program = saved


@contextmanager
def merged_reads_scope() -> Iterator[None]:
    """Let replicas read the merged value of variables that are synchronized on read."""
    saved, context_stack.reads_merged = context_stack.reads_merged, True
    try:
        yield
    finally:
        context_stack.reads_merged = saved


def get_spanning_context() -> ReplicaContext | None:
    """Return the current replica context if it belongs to several replicas, else None."""
    entry = context_stack.entries[-1] if context_stack.entries else None
    return entry if isinstance(entry, ReplicaContext) and entry.spans_replicas else None


class SizeRequiredError(Exception):
    """Error for an `all_gather` in a trace that needs the sizes of other replicas.

    `args` contains the size of this replica.
    """


class ReplicaContext:
    """Context of a function that `Strategy.run` calls on a replica.

    Args:
      strategy: Strategy that runs the replica.
      replica_id_in_sync_group: Index of the replica; None while one trace represents several
        replicas.
      gathered: If replicas have different shapes, the sizes that they pass to `all_gather`: for
        each known call, a tuple with one size per replica.

    Attributes:
      spans_replicas: Whether the context represents several replicas.
      program_key: Cache key of functions that are traced in the context.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> def step():
      ...     context = tf.distribute.get_replica_context()
      ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)
      >>> [int(total) for total in strategy.experimental_local_results(strategy.run(step))]
      [3, 3]
    """

    def __init__(
        self,
        strategy: ReplicaStrategy,
        replica_id_in_sync_group: int | None = 0,
        gathered: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        self._strategy = strategy
        self._id = replica_id_in_sync_group
        self.spans_replicas = strategy.num_replicas_in_sync > 1 and replica_id_in_sync_group is None
        self.program_key = (id(strategy), gathered) if self.spans_replicas else None
        self._gathered_sizes = gathered
        self._num_gathers = 0

    @property
    def has_global_batch(self) -> bool:
        """Check whether this is the single step of Keras' training loop, with the global batch."""
        return not self.spans_replicas

    @property
    def strategy(self) -> ReplicaStrategy:
        """Return the strategy that runs the replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> Tensor:
        """Return the index of this replica as an int32 scalar."""
        if self.spans_replicas:
            return apply(replica_index, ())
        return convert_to_tensor(self._id or 0)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device of the replica; that of the first while all replicas run as one program."""
        return (self._strategy.extended.worker_devices[0],)

    def all_reduce(
        self, reduce_op: ReduceOp | str, value: PyTree, options: object = None
    ) -> PyTree:
        """Reduce a value over all replicas; every replica receives the result.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: Tensor or structure of tensors, with equal shapes on all replicas.
          options: Ignored.

        Returns:
          The same structure. The gradient is the same reduction.

        Raises:
          TypeError: If the value contains a ragged tensor, a sparse tensor or an extension type.
        """
        mean = ReduceOp.parse(reduce_op) is ReduceOp.MEAN
        op = pmean if mean else psum

        def reduce_leaf(leaf: IndexedSlices | TensorLike) -> IndexedSlices | Tensor:
            if isinstance(leaf, IndexedSlices):
                return self.gather_slices(leaf, mean)
            tensor = convert_for_reduction(leaf, "all_reduce")
            if not self.spans_replicas:
                return tensor
            return self.collect(op, convert_for_mean(tensor) if mean else tensor)

        return nest.map_structure(reduce_leaf, value)

    def collect(self, op: Op, value: Tensor, static: tuple[Any, ...] = ()) -> Tensor:
        """Compute a collective of `collectives.py` over several replicas."""
        return apply(op, (value,), static)

    def fold_key(self, key: Tensor) -> Tensor:
        """Return a random key for this replica."""
        return apply(_replica_key, (key,), (REPLICA_AXIS,))

    def run_once(self, function: Callable[[], None]) -> None:
        """Call a function that changes variables in the same way for all replicas."""
        function()

    def agree_on(self, variable: Any, value: Tensor) -> Tensor:
        """Return the value that all replicas write to a variable; the program checks that they are equal."""
        return value

    def all_gather(self, value: PyTree, axis: int, options: object = None) -> PyTree:
        """Concatenate the values of all replicas along an axis; every replica receives the result.

        Args:
          value: Tensor or structure of tensors; sizes along the axis may differ between replicas.
          axis: Axis to concatenate along.
          options: Ignored.

        Raises:
          NotImplementedError: If the value contains a `tf.IndexedSlices`.
          TypeError: If it contains another composite tensor.
        """
        return nest.map_structure(
            lambda leaf: self._gather(convert_for_gather(leaf, "all_gather"), int(axis)), value
        )

    def _gather(self, tensor: Tensor, axis: int) -> Tensor:
        if not self.spans_replicas:
            return tensor
        axis %= max(len(tensor.shape), 1)
        if self._gathered_sizes is not None:
            index, self._num_gathers = self._num_gathers, self._num_gathers + 1
            if index == len(self._gathered_sizes):
                raise SizeRequiredError(tensor.shape[axis])
            sizes = self._gathered_sizes[index]
            if len(set(sizes)) > 1:
                return self.collect(gather_uneven, tensor, (axis, sizes))
        return self.collect(gather, tensor, (axis,))

    def gather_slices(self, slices: IndexedSlices, mean: bool) -> IndexedSlices:
        """Gather the rows of all replicas; duplicate rows are added up when the slices are used."""
        values = slices.values
        if self.spans_replicas and mean:
            values = values / np.asarray(self.num_replicas_in_sync, values.dtype.dtype)
        rows, indices = self._gather(values, 0), self._gather(slices.indices, 0)
        return IndexedSlices(rows, indices, slices.dense_shape)

    def merge_call(
        self, merge_fn: Callable[..., PyTree], args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        """Call a function once for all replicas.

        Args:
          merge_fn: Function that is called as `merge_fn(strategy, *args, **kwargs)`, with a
            `PerReplica` for each tensor.
          args: Arguments of the function.
          kwargs: Keyword arguments of the function.

        Returns:
          The results of the function, with the value of this replica for each `PerReplica`.

        Raises:
          ValueNeededError: If an argument is a ragged tensor, a sparse tensor or an extension type, and there are
            several replicas. These then run as Python.
        """

        def stack_leaf(leaf: object) -> object:
            if self.spans_replicas and isinstance(leaf, CompositeTensor):
                raise ValueNeededError(
                    f"ReplicaContext.merge_call of values of type {type(leaf).__name__} runs as Python."
                )
            if not self.spans_replicas or not isinstance(leaf, Tensor):
                return leaf
            return Stacked((apply(stack, (leaf,)),))

        args, kwargs = nest.map_structure(stack_leaf, (tuple(args), dict(kwargs or {})))
        with context_scope(self._strategy):
            result = merge_fn(self._strategy, *args, **kwargs)

        def select_own(leaf: object) -> object:
            if not isinstance(leaf, Stacked):
                return leaf
            with context_scope(self):
                return array.gather(leaf.stacked, self.replica_id_in_sync_group)

        return map_replicas(select_own, result)


def _compute_replica_key(operands: Sequence[jax.Array], static: tuple[Any]) -> jax.Array:
    return philox.fold_in(operands[0], jax.lax.axis_index(static[0]))


_replica_key = Op("replica_key", _compute_replica_key, differentiable=False, is_foldable=False)


def _fold_key_for_replica(key: Tensor) -> Tensor:
    replica = get_spanning_context()
    if replica is not None:
        return replica.fold_key(key)
    shares = current_shares()
    # If one device has all rows, it draws the same random numbers as without a strategy.
    if shares is None or shares.num_row_parts == 1 or shares.splits_draws:
        return key
    return apply(_replica_key, (key,), (shares.axes,))


SeedStream.derive_replica_key = staticmethod(_fold_key_for_replica)


def max_over_replicas(value: Tensor) -> Tensor:
    """Return the maximum over the replicas of `Strategy.run`, without a gradient."""
    replica = get_spanning_context()
    return value if replica is None else replica.collect(pmax, value)


def run_once(function: Callable[[], None]) -> None:
    """Call a function once for all replicas that run as Python; a program of all replicas calls it directly."""
    replica = get_spanning_context()
    if replica is None:
        function()
    else:
        replica.run_once(function)


def sum_over_replicas(
    grads_and_vars: Sequence[tuple[TensorLike | IndexedSlices | None, _Variable]],
) -> Sequence[tuple[TensorLike | IndexedSlices | None, _Variable]]:
    """Sum gradients over the replicas of `Strategy.run`; outside of it, return them unchanged."""
    replica = get_spanning_context()
    if replica is None:
        return grads_and_vars
    return [
        (None if g is None else replica.all_reduce(ReduceOp.SUM, g), v) for g, v in grads_and_vars
    ]
