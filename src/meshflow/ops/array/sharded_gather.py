"""Gather of rows from a table that is split into several tensors.

Each shard is read with the row indices relative to its first row. Rows of other shards are read as
zeros, so the sum over the
shards is the result. The gradient of each shard is `tf.IndexedSlices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.bounds_checks import PADDING_INDEX, check_indices
from meshflow.core.runtime.errors import DtypeMismatchError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables import variable_rows
from meshflow.core.variables.sharded_variable import to_local_indices
from meshflow.ops.array.joining import concat


def to_integer_tensor(indices: Any) -> Tensor:
    """Convert row indices to a tensor, or raise TypeError if they are not integers."""
    tensor = convert_to_tensor(indices)
    if not tensor.dtype.is_integer:
        raise DtypeMismatchError(
            f"gather: indices must be integers: {tensor.dtype.name} is not in the list of allowed values: int16, int32, "
            "int64. [Op:GatherV2]"
        )
    return tensor


# Reads rows of one shard, and zeros for indices of other shards.
_GATHER_LOCAL_ROWS = Op(
    "gather", lambda o, _: o[0].at[o[1]].get(mode="fill", fill_value=0), is_foldable=False
)


def _mask_foreign_rows(
    operands: tuple[jax.Array, jax.Array], count: int
) -> tuple[jax.Array, jax.Array]:
    gradient, indices = operands
    flat = indices.reshape(-1)
    rows = gradient.reshape(flat.size, *gradient.shape[indices.ndim :])
    is_local = flat < count
    # The rows of other shards are zero, so that norms of gradients do not count them.
    values = jnp.where(is_local.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)
    return values, jnp.where(is_local, flat, PADDING_INDEX)


_LOCAL_ROW_GRADIENT = Op("gather", _mask_foreign_rows, is_foldable=False)


def _compute_row_gradient(
    operands: Sequence[Tensor], static: object, gradient: Tensor | IndexedSlices
) -> IndexedSlices:
    table, indices = operands
    shape: Any = table.array.shape
    values, flat = apply(_LOCAL_ROW_GRADIENT, (convert_to_tensor(gradient), indices), shape[0])
    return IndexedSlices(values, flat, np.array(shape, np.int32))


_GATHER_LOCAL_ROWS.row_gradient = _compute_row_gradient


def _sum_shards(operands: tuple[Sequence[jax.Array], jax.Array], static: tuple[int]) -> jax.Array:
    (shard_rows, indices), (num_rows,) = operands, static
    total = shard_rows[0]
    for rows in shard_rows[1:]:
        total = total + rows
    if not jnp.issubdtype(total.dtype, jnp.inexact):
        return total
    exists = ((indices >= 0) & (indices < num_rows)).reshape(
        *indices.shape, *[1] * (total.ndim - indices.ndim)
    )
    return jnp.where(exists, total, jnp.nan)


_SUM_SHARDS = Op("add_n", _sum_shards)


def gather_from_shards(tables: Sequence[Any], indices: Any) -> Tensor:
    """Gather rows of a table that is split into shards.

    The gradient of each shard is `tf.IndexedSlices`. On accelerators, an index out of
    range in a compiled function results in NaN (floats) or zero (integers).

    Args:
      tables: Tensors or variables of shape [rows, ...] that hold consecutive rows.
      indices: Integers of any shape.

    Returns:
      Tensor of shape [*indices.shape, ...].

    Raises:
      InvalidArgumentError: If a row does not exist.
    """
    gather = variable_rows.part_ops["gather"]
    if any(hasattr(value, "_keras_history") for value in (*tables, indices)):
        return gather(concat(list(tables), 0), indices)
    shards = [convert_to_tensor(table) for table in tables]
    ids = to_integer_tensor(indices)
    sizes = [shard.array.shape[0] for shard in shards]
    ids = check_indices(ids, sum(sizes))
    shard_dtypes = {shard.dtype for shard in shards}
    if dtypes.string in shard_dtypes or len(shard_dtypes) > 1 or not all(sizes):
        return gather(concat(shards, 0), ids)
    first, shard_rows = 0, []
    for shard, size in zip(shards, sizes, strict=True):
        shard_rows.append(apply(_GATHER_LOCAL_ROWS, (shard, to_local_indices(ids, first, size))))
        first += size
    return apply(_SUM_SHARDS, (shard_rows, ids), (first,))
