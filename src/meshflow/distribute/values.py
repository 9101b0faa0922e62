"""What a strategy's replicas hold and how their values are combined."""

from __future__ import annotations

import enum
from typing import Any

from meshflow.core.convert import convert_to_tensor
from meshflow.ops import array, math


class ReduceOp(enum.Enum):
    """How values of replicas become one."""

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def from_variable_aggregation(aggregation: Any) -> ReduceOp:
        """The reduction that goes with a variable's aggregation.

        Raises:
          ValueError: when there is none.
        """
        name = getattr(aggregation, "name", str(aggregation))
        if name not in ("SUM", "MEAN"):
            raise ValueError(
                f"Could not convert from `tf.VariableAggregation` {name} to `ReduceOp`."
            )
        return ReduceOp[name]


def reduction(op: Any) -> ReduceOp:
    """A reduction from a `ReduceOp` or its name.

    Raises:
      ValueError: for anything else.
    """
    if isinstance(op, ReduceOp):
        return op
    try:
        return ReduceOp[str(op).upper()]
    except KeyError:
        raise ValueError(f"reduce_op must be SUM or MEAN, got {op!r}.") from None


class DistributedValues:
    """Values of replicas, one for each.

    Args:
      values: the values in the order of replicas.
    """

    def __init__(self, values: Any) -> None:
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values."""
        return self._values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values})"


class PerReplica(DistributedValues):
    """Values that differ between replicas."""


def local_results(value: Any) -> tuple[Any, ...]:
    """The values of this process' replicas."""
    return value.values if isinstance(value, DistributedValues) else (value,)


def reduced(op: ReduceOp, value: Any, axis: int | None) -> Any:
    """Values of replicas, and an axis of them, as one value."""
    tensors = [convert_to_tensor(v) for v in local_results(value)]
    if axis is not None:
        combine = math.reduce_mean if op is ReduceOp.MEAN else math.reduce_sum
        return combine(array.concat(tensors, 0) if axis == 0 else array.stack(tensors), axis)
    total = tensors[0] if len(tensors) == 1 else math.add_n(tensors)
    return total / len(tensors) if op is ReduceOp.MEAN and len(tensors) > 1 else total
