"""Variables that replicas share: mirrored ones, and ones with a value for each replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, VariableAggregation
from meshflow.distribute.replicas.collectives import divisible, pmean, psum, stack
from meshflow.distribute.replicas.context import spanning, stacks
from meshflow.ops.array import concat, expand_dims, tile
from meshflow.ops.math import cast, reduce_mean, reduce_sum

__all__ = ["MirroredVariable", "SyncOnReadVariable"]


def aggregated(variable: Variable, value: Tensor) -> Tensor:
    """The one value that replicas write to a variable they share."""
    how = variable.aggregation
    if how is VariableAggregation.SUM:
        return apply(psum, (value,))
    if how is VariableAggregation.MEAN:
        return cast(apply(pmean, (divisible(value),)), value.dtype)
    if how is VariableAggregation.ONLY_FIRST_REPLICA:
        return apply(stack, (value,))[0]
    return value


def _of_first_replica(value: Tensor) -> Tensor:
    """The first replica's value on all of them: what variables begin with."""
    return value if spanning() is None else apply(stack, (value,))[0]


class MirroredVariable(Variable):
    """A variable with an equal copy on every device of the strategy.

    Inside `Strategy.run`, what replicas assign or add is first combined by the variable's
    `aggregation`; with `NONE` all replicas must write the same value. Made by creating a `tf.Variable`
    in a strategy's scope.
    """

    def _initialize(self, value: Tensor) -> None:
        super()._initialize(_of_first_replica(value))

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
            rows = IndexedSlices(apply(stack, (values,))[0], apply(stack, (rows.indices,))[0])
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
        first, computed = self.__dict__.pop("_first"), self.__dict__.pop("_computed", None)
        kind = self.dtype
        # What one replica sees; `Strategy.run` puts each replica's part of `_stacked` in its place.
        self._cell = Variable(Tensor(first), trainable=False, dtype=kind, name=self._name)
        self._cell._parts = self  # type: ignore[attr-defined]
        # Every replica starts with the whole initial value, also where values are summed.
        copies = jax.numpy.stack([first] * replicas)
        self._stacked = Variable(Tensor(copies), trainable=False, dtype=kind, name=self._name)
        if layout is not None:
            self._stacked._layout = layout(self._stacked.ndim)
        if computed is None:
            return
        if spanning() is None:
            self._stacked._write(self._tiled(computed, replicas))
        else:
            self._cell._write(_of_first_replica(computed))

    def _initialize(self, value: Tensor) -> None:
        self.__dict__["_computed"] = value

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
        if self.aggregation is VariableAggregation.SUM:
            count = np.asarray(replicas, value.dtype.dtype)
            if value.dtype.is_integer:
                share = value // count
                rest = value - share * (count - 1)
                rows = self._tiled(share, replicas - 1)
                return concat([expand_dims(rest, 0), rows], 0)
            value = value / count
        return self._tiled(value, replicas)

    @staticmethod
    def _tiled(value: Tensor, replicas: int) -> Tensor:
        return tile(expand_dims(value, 0), [replicas] + [1] * len(value.shape))

    def _merged(self, stacked: Tensor) -> Tensor:
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
