"""Values of all replicas, as ops: what replicas compute together in one mapped program."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.ops.math import cast

__all__ = ["ReduceOp"]


AXIS = "replica"


class ReduceOp(enum.Enum):
    """How values of several replicas become one: `SUM` or `MEAN`.

    Example:
      >>> import meshflow as tf
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

    return Op(name, run, is_foldable=False)


psum = _collective("all_reduce_sum", jax.lax.psum)
pmean = _collective("all_reduce_mean", jax.lax.pmean)
pmax = _collective("all_reduce_max", jax.lax.pmax)
replica_index = Op("replica_id", lambda operands, _: jax.lax.axis_index(AXIS).astype(np.int32))
gather = _collective(
    "all_gather", lambda value, over, axis: jax.lax.all_gather(value, over, axis=axis, tiled=True)
)
stack = _collective("all_stack", jax.lax.all_gather)


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


gather_uneven = _collective("all_gather_uneven", _joined_uneven)


def divisible(tensor: Tensor) -> Tensor:
    """A tensor whose mean has fractions: integers become floats, as where TensorFlow divides them."""
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
