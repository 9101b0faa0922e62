"""Variables of replicas: mirrored ones, and ones with a value for each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    get_full_name,
    get_value_shape,
)
from meshflow.distribute.replicas.collectives import convert_for_mean, pmean, psum, stack
from meshflow.distribute.replicas.context import (
    ReplicaContext,
    context_stack,
    get_spanning_context,
)
from meshflow.distribute.replicas.python_replicas import PythonReplica
from meshflow.environment.types import Array
from meshflow.ops.array import concat, expand_dims, tile
from meshflow.ops.math import cast, reduce_mean, reduce_sum
from meshflow.placement.layout import Layout


def aggregate_value(replica: ReplicaContext, variable: Variable, value: Tensor) -> Tensor:
    """Combine the values that replicas write to a mirrored variable."""
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.SUM:
        return replica.collect(psum, value)
    if aggregation is VariableAggregation.MEAN:
        return cast(replica.collect(pmean, convert_for_mean(value)), value.dtype)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return replica.collect(stack, value)[0]
    return replica.agree_on(variable, value)


def _broadcast_from_first(value: Tensor) -> Tensor:
    """Return the first replica's value on all replicas, which is the initial value of variables."""
    replica = get_spanning_context()
    return value if replica is None else replica.collect(stack, value)[0]


class DistributedVariable(Variable):
    """Variable with a value for each replica."""

    @property
    def distribute_strategy(self) -> Any:
        """Return the strategy in whose scope the variable was created."""
        return self._distribute_strategy  # type: ignore[attr-defined]


class MirroredVariable(DistributedVariable):
    """Variable with an equal copy on every device of the strategy.

    Inside `Strategy.run`, the values that replicas assign or add are first combined by the
    variable's `aggregation`; with `NONE`, all replicas must write the same value. A `tf.Variable`
    that is created in a strategy's scope is a `MirroredVariable`.
    """

    def _initialize(self, value: Tensor) -> None:
        super()._initialize(_broadcast_from_first(value))

    def _read_on_device(self) -> Array:
        value: Any = super()._read_on_device()
        is_copied = isinstance(value, jax.Array) and value.is_fully_replicated
        # The ops of a replica that runs as Python involve no other device, and no other process.
        is_python = is_copied and isinstance(get_spanning_context(), PythonReplica)
        return value.addressable_data(0) if is_python else value

    def _check_value(self, value: TensorLike, method: str) -> Tensor:
        tensor = super()._check_value(value, method)
        replica = get_spanning_context()
        return tensor if replica is None else aggregate_value(replica, self, tensor)

    def _write(self, value: Tensor) -> None:
        replica = get_spanning_context()
        # Replicas that run as Python have computed the same value, so only the first one writes it.
        if not isinstance(replica, PythonReplica) or replica.is_first:
            super()._write(value)

    def _scatter(self, op: Op, sparse_delta: IndexedSlices) -> Self:
        replica, aggregation = get_spanning_context(), self.aggregation
        if replica is None or aggregation is VariableAggregation.NONE:
            return super()._scatter(op, sparse_delta)
        values = super()._check_value(sparse_delta.values, "scatter")
        rows = IndexedSlices(values, sparse_delta.indices)
        if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            first = [replica.collect(stack, part)[0] for part in (values, rows.indices)]
            rows = IndexedSlices(*first)
        elif op.name in _UNCOMBINABLE_SCATTERS:
            raise NotImplementedError(
                f"{_UNCOMBINABLE_SCATTERS[op.name]} of a mirrored variable needs the aggregation NONE or "
                f"ONLY_FIRST_REPLICA in a replica, but {self.name} has {aggregation}."
            )
        else:
            rows = replica.gather_slices(rows, aggregation is VariableAggregation.MEAN)
        self._write(apply(op, (self._as_tensor(), rows.indices, rows.values)))
        return self

    @property
    def values(self) -> tuple[Variable, ...]:
        """Return this variable for each replica of this process, because all copies are equal."""
        return (self,) * len(_list_local_replicas(self))

    def __repr__(self) -> str:
        return _format_copies(self, [super().__repr__()] * len(_list_local_replicas(self)))


# Scatters that cannot be combined from the updates of all replicas: methods by op name.
_UNCOMBINABLE_SCATTERS = {
    "scatter_min": "scatter_min",
    "scatter_max": "scatter_max",
    "scatter_set": "scatter_update",
}


def get_ruled_layout(variable: Variable) -> Layout:
    """Return the layout by the rules of a strategy, without the splits of ZeRO and of pipelines."""
    layout: Layout = getattr(variable, "_ruled_layout", None) or variable.layout
    return layout


def _list_local_replicas(variable: Variable) -> Sequence[int]:
    """Return the indices of this process's replicas."""
    strategy = getattr(variable, "_distribute_strategy", None)
    if strategy is None:
        return range(1)
    return getattr(strategy, "local_replicas", range(strategy._num_replicas))


def _format_copies(variable: Variable, copies: list[str]) -> str:
    if len(copies) == 1:
        return copies[0]
    first, template = f"'{variable.name}'", f"'{get_full_name(variable)}/replica_%d:0'"
    lines = [f"  {i}: {t.replace(first, template % i) if i else t}" for i, t in enumerate(copies)]
    return "\n".join([f"{type(variable).__name__}:{{", ",\n".join(lines), "}"])


class SyncOnReadVariable(DistributedVariable):
    """Variable with one value for each replica; reads outside of `run` aggregate the values.

    It is created by `tf.Variable(..., synchronization=tf.VariableSynchronization.ON_READ)` in a
    strategy's scope.
    """

    def __init__(
        self,
        *args: Any,
        replicas: int = 1,
        layout: Callable[[int], Layout] | None = None,
        **kwargs: Any,
    ) -> None:
        if "stacked_variable" in self.__dict__:
            return
        super().__init__(*args, **kwargs)
        first, computed = self.__dict__.pop("_first"), self.__dict__.pop("_computed", None)
        dtype = self.dtype
        # A replica reads and writes `_replica_variable`; `Strategy.run` replaces it by the
        # replica's row of the stacked variable.
        self._replica_variable = Variable(
            Tensor(first), trainable=False, dtype=dtype, name=self._name
        )
        self._replica_variable.sync_on_read_variable = self  # type: ignore[attr-defined]
        # Every replica starts with the full initial value, even if values are summed.
        copies = jax.numpy.stack([first] * replicas)
        self.stacked_variable = Variable(
            Tensor(copies), trainable=False, dtype=dtype, name=self._name
        )
        if layout is not None:
            self.stacked_variable.layout = layout(self.stacked_variable.ndim)
        if computed is None:
            return
        if get_spanning_context() is None:
            self.stacked_variable._write(self._tile_value(computed, replicas))
        else:
            self._replica_variable._write(_broadcast_from_first(computed))

    def _initialize(self, value: Tensor) -> None:
        self.__dict__["_computed"] = value

    @property
    def _value(self) -> Any:
        if "stacked_variable" not in self.__dict__:
            return self.__dict__["_first"]
        return self._merge_values(Tensor(self.stacked_variable._value)).array

    @_value.setter
    def _value(self, value: Any) -> None:
        if "stacked_variable" in self.__dict__:
            self.stacked_variable._write(
                self._split_value(Tensor(value), get_value_shape(self.stacked_variable)[0])
            )
        else:
            self.__dict__["_first"] = value

    def _split_value(self, value: Tensor, replicas: int) -> Tensor:
        """Split a value into parts that aggregate to it; of a sum, each replica has an equal part."""
        if self.aggregation is VariableAggregation.SUM:
            count = np.asarray(replicas, value.dtype.dtype)
            if value.dtype.is_integer:
                quotient = value // count
                remainder = value - quotient * (count - 1)
                rows = self._tile_value(quotient, replicas - 1)
                return concat([expand_dims(remainder, 0), rows], 0)
            value = value / count
        return self._tile_value(value, replicas)

    @staticmethod
    def _tile_value(value: Tensor, replicas: int) -> Tensor:
        return tile(expand_dims(value, 0), [replicas] + [1] * len(value.shape))

    def _merge_values(self, stacked: Tensor) -> Tensor:
        if self.aggregation is VariableAggregation.SUM:
            return reduce_sum(stacked, 0)
        if self.aggregation is VariableAggregation.MEAN:
            return reduce_mean(stacked, 0)
        return stacked[0]

    @property
    def _shape(self) -> tuple[int, ...]:
        return get_value_shape(self._replica_variable)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return self._replica_variable.ndim

    def _as_tensor(self) -> Tensor:
        replica = get_spanning_context()
        if replica is not None:
            value = self._read_replica(replica)
            is_merged = context_stack.reads_merged
            return aggregate_value(replica, self, value) if is_merged else value
        stacked = self.stacked_variable.value()
        parts, merged = self._get_written_values().get(id(self), (None, None))
        return merged if parts is stacked.array else self._merge_values(stacked)

    def _read_replica(self, replica: ReplicaContext) -> Tensor:
        if not isinstance(replica, PythonReplica):
            return self._replica_variable.value()
        _, value = replica.written.get(id(self), (None, None))
        # Other processes may have the remaining rows, so this reads no more than the own row.
        return Tensor(ReplicaVariableView(self, replica.index)._value) if value is None else value

    def _write(self, value: Tensor) -> None:
        replica = get_spanning_context()
        if isinstance(replica, PythonReplica):
            replica.written[id(self)] = self, value
            return
        if replica is not None:
            self._replica_variable._write(value)
            return
        self.stacked_variable._write(
            self._split_value(value, get_value_shape(self.stacked_variable)[0])
        )
        self._get_written_values()[id(self)] = self.stacked_variable.value().array, value

    @property
    def values(self) -> tuple[Variable, ...]:
        """Return the variable of each replica of this process."""
        return tuple(ReplicaVariableView(self, i) for i in _list_local_replicas(self))

    def __repr__(self) -> str:
        return _format_copies(self, [repr(part) for part in self.values])

    def _get_written_values(self) -> dict[int, Any]:
        """Return the values written in this trace, so a read does not sum over the replicas again."""
        trace = context.trace
        return {} if trace is None else trace.__dict__.setdefault("_merged_values", {})


class ReplicaVariableView(Variable):
    """View of one replica's value of a `SyncOnReadVariable`, outside of `Strategy.run`."""

    def __init__(self, variable: SyncOnReadVariable, index: int) -> None:
        self._variable, self._index = variable, index
        for name in ("_static_shape", "_dtype", "_name", "_synchronization", "_aggregation"):
            setattr(self, name, getattr(variable, name))
        self._trainable = self._autocast = False
        self._constraint = None

    @property
    def _value(self) -> Array:
        rows_of_all: Any = self._variable.stacked_variable._value
        if isinstance(rows_of_all, jax.core.Tracer) or rows_of_all.is_fully_addressable:
            return rows_of_all[self._index]
        # Other processes have the remaining rows.
        starts = (
            (shard.index[0].start or 0, shard.data) for shard in rows_of_all.addressable_shards
        )
        start, rows = next((i, d) for i, d in starts if i <= self._index < i + d.shape[0])
        return rows[self._index - start]

    def _as_tensor(self) -> Tensor:
        return self._variable.stacked_variable.value()[self._index]

    def _write(self, value: Tensor) -> None:
        self._variable.stacked_variable[self._index].assign(value)
