"""What a replica sees: its context, collectives, and variables that replicas share.

All replicas run as one program: the replica function is traced once for one replica and mapped
over the axis `AXIS`, so a collective is one operation over that axis.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from meshflow.core import nest
from meshflow.core.composite import IndexedSlices
from meshflow.core.context import context
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import Op, apply
from meshflow.core.errors import InvalidValueError
from meshflow.core.random import SeedStream
from meshflow.core.tensor import Tensor
from meshflow.core.variable import Variable, VariableAggregation

__all__ = ["MirroredVariable", "ReduceOp", "ReplicaContext", "SyncOnReadVariable"]

AXIS = "replica"


class ReduceOp(enum.Enum):
    """How values of several replicas become one: `SUM` or `MEAN`."""

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def parse(value: Any) -> ReduceOp:
        """The member that a member or its name (in any case) stands for.

        Args:
          value: `ReduceOp.SUM`, "sum", ...

        Raises:
          ValueError: for anything else.
        """
        name = value.name if isinstance(value, enum.Enum) else str(value).upper()
        if name not in ReduceOp.__members__:
            raise InvalidValueError(
                f"reduce_op must be ReduceOp.SUM or ReduceOp.MEAN, got {value!r}."
            )
        return ReduceOp[name]


_psum = Op("all_reduce_sum", lambda operands, _: jax.lax.psum(operands[0], AXIS))
_pmean = Op("all_reduce_mean", lambda operands, _: jax.lax.pmean(operands[0], AXIS))
_pmax = Op("all_reduce_max", lambda operands, _: jax.lax.pmax(operands[0], AXIS))
_index = Op("replica_id", lambda operands, _: jax.lax.axis_index(AXIS).astype(np.int32))
_gather = Op(
    "all_gather",
    lambda operands, static: jax.lax.all_gather(operands[0], AXIS, axis=static[0], tiled=True),
)
_stack = Op("all_stack", lambda operands, _: jax.lax.all_gather(operands[0], AXIS))


class _Stacks(threading.local):
    def __init__(self) -> None:
        # ReplicaContext, or a strategy for its cross-replica context; innermost last.
        self.entries: list[Any] = []


stacks = _Stacks()


@contextmanager
def entered(entry: Any) -> Iterator[None]:
    """Makes a replica context or a strategy the current one."""
    stacks.entries.append(entry)
    try:
        yield
    finally:
        stacks.entries.pop()


def spanning() -> ReplicaContext | None:
    """The current replica context when it is one of several replicas."""
    entry = stacks.entries[-1] if stacks.entries else None
    several = isinstance(entry, ReplicaContext) and entry._several
    return entry if several else None


class ReplicaContext:
    """What a function called by `Strategy.run` knows of itself.

    Args:
      strategy: the strategy.
      replica_id_in_sync_group: this replica's number.
    """

    def __init__(self, strategy: Any, replica_id_in_sync_group: Any = 0) -> None:
        self._strategy = strategy
        self._id = replica_id_in_sync_group
        self._several = strategy.num_replicas_in_sync > 1 and replica_id_in_sync_group is None

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
        return apply(_index, ()) if self._several else convert_to_tensor(self._id or 0)

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
        op = _psum if ReduceOp.parse(reduce_op) is ReduceOp.SUM else _pmean

        def reduced(leaf: Any) -> Any:
            if isinstance(leaf, IndexedSlices):
                leaf = convert_to_tensor(leaf)
            tensor = convert_to_tensor(leaf)
            return apply(op, (tensor,)) if self._several else tensor

        return nest.map_structure(reduced, value)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The values of all replicas joined along an axis, on every replica.

        Args:
          value: a tensor or a structure of tensors.
          axis: the axis.
          options: accepted.

        Returns:
          The same structure.
        """

        def joined(leaf: Any) -> Any:
            tensor = convert_to_tensor(leaf)
            return apply(_gather, (tensor,), (int(axis),)) if self._several else tensor

        return nest.map_structure(joined, value)

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function once for all replicas.

        Args:
          merge_fn: called as `merge_fn(strategy, *args, **kwargs)` with a `PerReplica` for each tensor.
          args: its arguments.
          kwargs: its keyword arguments.

        Returns:
          What it returns, with each replica's own value for a `PerReplica`.
        """
        from meshflow.distribute.values import Stacked, map_replicas

        def gathered(leaf: Any) -> Any:
            if not self._several or not isinstance(leaf, Tensor):
                return leaf
            return Stacked((apply(_stack, (leaf,)),))

        args, kwargs = nest.map_structure(gathered, (tuple(args), dict(kwargs or {})))
        with entered(self._strategy):
            result = merge_fn(self._strategy, *args, **kwargs)

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Stacked):
                return leaf
            from meshflow.ops.array import gather

            with entered(self):
                return gather(leaf.stacked, self.replica_id_in_sync_group)

        return map_replicas(own, result)


def _fold_replica(operands: Any, _: Any) -> Any:
    key = jax.random.wrap_key_data(operands[0], impl="threefry2x32")
    return jax.random.key_data(jax.random.fold_in(key, jax.lax.axis_index(AXIS)))


_own_key = Op("replica_key", _fold_replica, differentiable=False)


def _key_of_replica(key: Tensor) -> Tensor:
    return key if spanning() is None else apply(_own_key, (key,))


SeedStream.per_replica = staticmethod(_key_of_replica)


def aggregated(variable: Variable, value: Tensor) -> Tensor:
    """The one value that replicas write to a variable they share."""
    how = variable.aggregation
    if how is VariableAggregation.SUM:
        return apply(_psum, (value,))
    if how is VariableAggregation.MEAN:
        return apply(_pmean, (value,))
    if how is VariableAggregation.ONLY_FIRST_REPLICA:
        return apply(_stack, (value,))[0]
    return value


class MirroredVariable(Variable):
    """A variable with an equal copy on every device of the strategy.

    Inside `Strategy.run`, what replicas assign or add is first combined by the variable's
    `aggregation`; with `NONE` all replicas must write the same value. Made by creating a `tf.Variable`
    in a strategy's scope.
    """

    def _checked(self, value: Any, method: str) -> Tensor:
        tensor = super()._checked(value, method)
        return tensor if spanning() is None else aggregated(self, tensor)


class SyncOnReadVariable(Variable):
    """A variable of which every replica has its own value; reading it outside `run` aggregates.

    Made by `tf.Variable(..., synchronization=tf.VariableSynchronization.ON_READ)` in a strategy's scope.
    """

    def __init__(self, *args: Any, replicas: int = 1, layout: Any = None, **kwargs: Any) -> None:
        if "_stacked" in self.__dict__:
            return
        super().__init__(*args, **kwargs)
        first = self.__dict__.pop("_first")
        kind = self.dtype
        # What one replica sees; `Strategy.run` puts each replica's part of `_stacked` in its place.
        self._cell = Variable(Tensor(first), trainable=False, dtype=kind, name=self._name)
        self._cell._parts = self  # type: ignore[attr-defined]
        self._stacked = Variable(
            self._spread(Tensor(first), replicas), trainable=False, dtype=kind, name=self._name
        )
        if layout is not None:
            self._stacked._layout = layout(self._stacked.ndim)

    @property
    def _value(self) -> Any:
        if "_stacked" not in self.__dict__:
            return self.__dict__["_first"]
        return self._merged(Tensor(self._stacked._value))._value

    @_value.setter
    def _value(self, value: Any) -> None:
        if "_stacked" in self.__dict__:
            self._stacked._write(self._spread(Tensor(value), self._stacked._shape[0]))
        else:
            self.__dict__["_first"] = value

    def _spread(self, value: Tensor, replicas: int) -> Tensor:
        """Parts that aggregate to `value`."""
        from meshflow.ops.array import concat, expand_dims, tile, zeros_like

        row = expand_dims(value, 0)
        if self.aggregation is VariableAggregation.SUM:
            return concat([row, *[zeros_like(row)] * (replicas - 1)], 0)
        return tile(row, [replicas] + [1] * len(value.shape))

    def _merged(self, stacked: Tensor) -> Tensor:
        from meshflow.ops.math import reduce_mean, reduce_sum

        if self.aggregation is VariableAggregation.SUM:
            return reduce_sum(stacked, 0)
        if self.aggregation is VariableAggregation.MEAN:
            return reduce_mean(stacked, 0)
        return stacked[0]

    @property
    def _shape(self) -> tuple[int, ...]:
        return self._cell._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._cell.ndim

    def _as_tensor(self) -> Tensor:
        if spanning() is not None:
            return self._cell._as_tensor()
        stacked = self._stacked._as_tensor()
        parts, merged = self._written().get(id(self), (None, None))
        return merged if parts is stacked._value else self._merged(stacked)

    def _write(self, value: Tensor) -> None:
        if spanning() is not None:
            self._cell._write(value)
            return
        self._stacked._write(self._spread(value, self._stacked._shape[0]))
        self._written()[id(self)] = self._stacked._as_tensor()._value, value

    def _written(self) -> dict[int, Any]:
        """Values written in this trace: reading one does not sum over the replicas again."""
        trace = context.trace
        return {} if trace is None else trace.__dict__.setdefault("_merged_values", {})


def max_over_replicas(value: Tensor) -> Tensor:
    """The maximum over the replicas of `Strategy.run`; outside it, the value. Without gradient."""
    return value if spanning() is None else apply(_pmax, (value,))


def sum_over_replicas(grads_and_vars: Any) -> Any:
    """Gradients summed over the replicas of `Strategy.run`; as they are outside it."""
    replica = spanning()
    if replica is None:
        return grads_and_vars
    return [
        (None if g is None else replica.all_reduce(ReduceOp.SUM, g), v) for g, v in grads_and_vars
    ]
