"""What a replica sees: its context, collectives, and variables that replicas share.

All replicas run as one program: the replica function is traced once for one replica and mapped
over the axis `AXIS`, so a collective is one operation over that axis.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import jax
import numpy as np

from meshflow.core import nest
from meshflow.core.composite import IndexedSlices
from meshflow.core.context import context
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import apply
from meshflow.core.errors import InvalidValueError
from meshflow.core.operation import Op
from meshflow.core.random import SeedStream, random_key
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


def _collective(name: str, call: Callable[..., Any]) -> Op:
    def run(operands: Any, static: Any) -> Any:
        # JAX gives a NumPy scalar for the sum of one.
        return jax.numpy.asarray(call(operands[0], AXIS, *static))

    return Op(name, run, constant=False)


_psum = _collective("all_reduce_sum", jax.lax.psum)
_pmean = _collective("all_reduce_mean", jax.lax.pmean)
_pmax = _collective("all_reduce_max", jax.lax.pmax)
_index = Op("replica_id", lambda operands, _: jax.lax.axis_index(AXIS).astype(np.int32))
_gather = _collective(
    "all_gather", lambda value, over, axis: jax.lax.all_gather(value, over, axis=axis, tiled=True)
)
_stack = _collective("all_stack", jax.lax.all_gather)


def _joined_uneven(value: Any, over: str, axis: int, sizes: tuple[int, ...]) -> Any:
    """Each replica puts its part into the whole; the sum of those is the join."""
    shape = [sum(sizes) if i == axis else n for i, n in enumerate(value.shape)]
    starts = np.cumsum([0, *sizes[:-1]])
    start = jax.numpy.asarray(starts)[jax.lax.axis_index(over)]
    whole = jax.numpy.zeros(shape, value.dtype)
    whole = jax.lax.dynamic_update_slice_in_dim(whole, value, start, axis)
    if value.dtype == bool:
        return jax.lax.psum(whole.astype(np.int8), over).astype(bool)
    return jax.lax.psum(whole, over)


_gather_uneven = _collective("all_gather_uneven", _joined_uneven)


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
        mean = ReduceOp.parse(reduce_op) is ReduceOp.MEAN
        op = _pmean if mean else _psum

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
                return apply(_gather_uneven, (tensor,), (axis, sizes))
        return apply(_gather, (tensor,), (axis,))

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


def divisible(tensor: Tensor) -> Tensor:
    """A tensor whose mean has fractions: integers become floats, as where TensorFlow divides them."""
    from meshflow.ops.math import cast

    if not tensor.dtype.is_integer:
        return tensor
    return cast(tensor, "float32" if tensor.dtype.size < 4 else "float64")


def gatherable(value: Any, method: str) -> Tensor:
    """A value of a replica as a tensor that can be joined with the others'.

    Raises:
      NotImplementedError: for `tf.IndexedSlices`.
    """
    if isinstance(value, IndexedSlices):
        raise NotImplementedError(
            f"{method} does not support IndexedSlices: gather its values and indices, or pass "
            "tf.convert_to_tensor(slices)."
        )
    return convert_to_tensor(value)


def _fold_replica(operands: Any, _: Any) -> Any:
    key = random_key(operands[0])
    return jax.random.key_data(jax.random.fold_in(key, jax.lax.axis_index(AXIS)))


_own_key = Op("replica_key", _fold_replica, differentiable=False, constant=False)


def _key_of_replica(key: Tensor) -> Tensor:
    return key if spanning() is None else apply(_own_key, (key,))


SeedStream.per_replica = staticmethod(_key_of_replica)


def aggregated(variable: Variable, value: Tensor) -> Tensor:
    """The one value that replicas write to a variable they share."""
    how = variable.aggregation
    if how is VariableAggregation.SUM:
        return apply(_psum, (value,))
    if how is VariableAggregation.MEAN:
        from meshflow.ops.math import cast

        return cast(apply(_pmean, (divisible(value),)), value.dtype)
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

    def _scatter(self, op: Op, sparse_delta: Any) -> Self:
        replica, how = spanning(), self.aggregation
        if replica is None or how is VariableAggregation.NONE:
            return super()._scatter(op, sparse_delta)
        values = super()._checked(sparse_delta.values, "scatter")
        rows = IndexedSlices(values, sparse_delta.indices)
        if how is VariableAggregation.ONLY_FIRST_REPLICA:
            rows = IndexedSlices(apply(_stack, (values,))[0], apply(_stack, (rows.indices,))[0])
        elif op.name in _FIRST_OR_NONE:
            raise NotImplementedError(
                f"{_FIRST_OR_NONE[op.name]} of a mirrored variable needs the aggregation NONE or "
                f"ONLY_FIRST_REPLICA in a replica, but {self.name} has {how}."
            )
        else:
            rows = replica._all_rows(rows, how is VariableAggregation.MEAN)
        self._write(apply(op, (self._as_tensor(), rows.indices, rows.values)))
        return self

    @property
    def values(self) -> tuple[Any, ...]:
        """The variable of each replica of this process: all copies are equal, so each time this one."""
        return (self,) * len(_own_replicas(self))

    def __repr__(self) -> str:
        return _described(self, [super().__repr__()] * len(_own_replicas(self)))


# Scatters that cannot be the sum of what replicas do, by the names of their ops.
_FIRST_OR_NONE = {
    "scatter_min": "scatter_min",
    "scatter_max": "scatter_max",
    "scatter_set": "scatter_update",
}


def _own_replicas(variable: Variable) -> Sequence[int]:
    """The numbers of this process's replicas."""
    strategy = getattr(variable, "_distribute_strategy", None)
    if strategy is None:
        return range(1)
    return getattr(strategy, "local_replicas", range(strategy._replicas))


def _described(variable: Variable, copies: list[str]) -> str:
    if len(copies) == 1:
        return copies[0]
    own, other = f"'{variable.name}'", f"'{variable._shared_name}/replica_%d:0'"
    lines = [f"  {i}: {t.replace(own, other % i) if i else t}" for i, t in enumerate(copies)]
    return "\n".join([f"{type(variable).__name__}:{{", ",\n".join(lines), "}"])


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
        # Every replica starts with the whole initial value, also where values are summed.
        copies = jax.numpy.stack([first] * replicas)
        self._stacked = Variable(Tensor(copies), trainable=False, dtype=kind, name=self._name)
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
        """Parts that aggregate to `value`: of a sum each has its share."""
        from meshflow.ops.array import concat, expand_dims, tile

        row = expand_dims(value, 0)
        if self.aggregation is VariableAggregation.SUM:
            count = np.asarray(replicas, value.dtype.dtype)
            if not value.dtype.is_integer:
                row = row / count
            else:
                share = row // count
                rest = row - share * (count - 1)
                return concat([rest, *[share] * (replicas - 1)], 0)
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
            own = self._cell._as_tensor()
            return aggregated(self, own) if stacks.together else own
        stacked = self._stacked._as_tensor()
        parts, merged = self._written().get(id(self), (None, None))
        return merged if parts is stacked._value else self._merged(stacked)

    def _write(self, value: Tensor) -> None:
        if spanning() is not None:
            self._cell._write(value)
            return
        self._stacked._write(self._spread(value, self._stacked._shape[0]))
        self._written()[id(self)] = self._stacked._as_tensor()._value, value

    @property
    def values(self) -> tuple[Any, ...]:
        """The variable of each replica of this process."""
        return tuple(ReplicaPart(self, i) for i in _own_replicas(self))

    def __repr__(self) -> str:
        return _described(self, [repr(part) for part in self.values])

    def _written(self) -> dict[int, Any]:
        """Values written in this trace: reading one does not sum over the replicas again."""
        trace = context.trace
        return {} if trace is None else trace.__dict__.setdefault("_merged_values", {})


class ReplicaPart(Variable):
    """What one replica has of a `SyncOnReadVariable`, seen from outside `Strategy.run`.

    Args:
      whole: the variable.
      index: the replica's number.
    """

    def __init__(self, whole: SyncOnReadVariable, index: int) -> None:
        self._whole, self._index = whole, index
        for name in ("_static_shape", "_dtype", "_name", "_synchronization", "_aggregation"):
            setattr(self, name, getattr(whole, name))
        self._trainable = self._autocast = False
        self._constraint = None

    @property
    def _value(self) -> Any:
        whole: Any = self._whole._stacked._value
        if isinstance(whole, jax.core.Tracer) or whole.is_fully_addressable:
            return whole[self._index]
        # Other processes have the rest; this row is here.
        starts = ((shard.index[0].start or 0, shard.data) for shard in whole.addressable_shards)
        start, rows = next((i, d) for i, d in starts if i <= self._index < i + d.shape[0])
        return rows[self._index - start]

    def _as_tensor(self) -> Tensor:
        return self._whole._stacked._as_tensor()[self._index]

    def _write(self, value: Tensor) -> None:
        self._whole._stacked[self._index].assign(value)


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
