"""Collectives over the replicas of one mapped program, as ops."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.math import cast

REPLICA_AXIS = "replica"


class ReduceOp(enum.Enum):
    """Reduction of the values of several replicas: `SUM` or `MEAN`.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> values = strategy.run(lambda: tf.constant(3.0))
      >>> float(strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None))
      6.0
      >>> float(strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None))
      3.0
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def parse(value: ReduceOp | str) -> ReduceOp:
        """Convert a member or its name, in any case, to the member.

        Args:
          value: `ReduceOp.SUM`, "sum", ...

        Raises:
          ValueError: If there is no such member.
        """
        name = value.name if isinstance(value, enum.Enum) else str(value).upper()
        if name not in ReduceOp.__members__:
            raise InvalidValueError(
                f"reduce_op must be ReduceOp.SUM or ReduceOp.MEAN, got {value!r}."
            )
        return ReduceOp[name]

    @staticmethod
    def from_variable_aggregation(aggregation: enum.Enum) -> ReduceOp:
        """Convert `tf.VariableAggregation.SUM` or `MEAN` to the reduction.

        Args:
          aggregation: Member of `tf.VariableAggregation`.

        Raises:
          ValueError: If it is no reduction.
        """
        if aggregation.name not in ReduceOp.__members__:
            raise ValueError(
                f"Could not convert from `tf.VariableAggregation` {aggregation} to `tf.distribute.ReduceOp` type"
            )
        return ReduceOp[aggregation.name]


def _make_collective(name: str, call: Callable[..., jax.Array]) -> Op:
    def run(operands: Sequence[jax.Array], static: tuple[object, ...]) -> jax.Array:
        # For one replica, JAX returns the sum as a NumPy scalar.
        return jax.numpy.asarray(call(operands[0], REPLICA_AXIS, *static))

    return Op(name, run, is_foldable=False)


psum = _make_collective("all_reduce_sum", jax.lax.psum)
pmean = _make_collective("all_reduce_mean", jax.lax.pmean)
pmax = _make_collective("all_reduce_max", jax.lax.pmax)
replica_index = Op(
    "replica_id", lambda operands, _: jax.lax.axis_index(REPLICA_AXIS).astype(np.int32)
)
gather = _make_collective(
    "all_gather", lambda value, over, axis: jax.lax.all_gather(value, over, axis=axis, tiled=True)
)
stack = _make_collective("all_stack", jax.lax.all_gather)


def _gather_uneven(value: jax.Array, over: str, axis: int, sizes: tuple[int, ...]) -> jax.Array:
    """Concatenate parts of different sizes: pad each part with zeros and sum the results."""
    shape = [sum(sizes) if i == axis else n for i, n in enumerate(value.shape)]
    starts = np.cumsum([0, *sizes[:-1]])
    start = jax.numpy.asarray(starts)[jax.lax.axis_index(over)]
    padded = jax.numpy.zeros(shape, value.dtype)
    padded = jax.lax.dynamic_update_slice_in_dim(padded, value, start, axis)
    if value.dtype == bool:
        return jax.lax.psum(padded.astype(np.int8), over).astype(bool)
    return jax.lax.psum(padded, over)


gather_uneven = _make_collective("all_gather_uneven", _gather_uneven)


def convert_for_mean(tensor: Tensor) -> Tensor:
    """Convert integers to floats before a mean, for the same dtypes that TensorFlow divides in."""
    if not tensor.dtype.is_integer:
        return tensor
    return cast(tensor, "float32" if tensor.dtype.size < 4 else "float64")


def convert_for_reduction(value: CompositeTensor | TensorLike, method: str) -> Tensor:
    """Convert a replica's value to a tensor that can be combined with those of other replicas.

    Raises:
      TypeError: If the value is a ragged tensor, a sparse tensor or an extension type.
    """
    if isinstance(value, CompositeTensor):
        raise TypeError(
            f"{method} does not support values of type {type(value).__name__}: pass its tensors, such as the values and "
            "row splits of a ragged tensor, or combine the values of the replicas in ReplicaContext.merge_call."
        )
    return convert_to_tensor(value)


def convert_for_gather(value: CompositeTensor | TensorLike, method: str) -> Tensor:
    """Convert a replica's value to a tensor that can be gathered.

    Raises:
      NotImplementedError: If the value is a `tf.IndexedSlices`.
      TypeError: If the value is another composite tensor.
    """
    if isinstance(value, IndexedSlices):
        raise NotImplementedError(
            f"{method} does not support IndexedSlices: gather its values and indices, or pass "
            "tf.convert_to_tensor(slices)."
        )
    return convert_for_reduction(value, method)
