"""Picking rows of a table that several tables hold in parts, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.errors import DtypeMismatchError, InvalidArgumentError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import local_numbers
from meshflow.core.variables.variable_rows import parts as parts_of
from meshflow.ops.array.joining import concat

__all__ = ["check_range", "integers", "rows_of_tables"]


def check_range(indices: Any, size: int, what: str) -> None:
    """Refuses indices out of range when their values are known.

    Args:
      indices: a tensor or array of integers.
      size: how many there are.
      what: who asks, for the error.

    Raises:
      InvalidArgumentError: naming the first index that is out of range.
    """
    value = indices._value if isinstance(indices, Tensor) else indices
    if isinstance(value, jax.core.Tracer) or not hasattr(value, "shape"):
        return
    array = np.asarray(value)
    if array.size and (array.min() < 0 or array.max() >= size):
        bad = array[(array < 0) | (array >= size)][0]
        where_ = np.argwhere((array < 0) | (array >= size))[0].tolist()
        raise InvalidArgumentError(f"{what}: indices{where_} = {bad} is not in [0, {size})")


def integers(indices: Any) -> Tensor:
    """Row numbers as a tensor.

    Args:
      indices: anything that converts to one.

    Raises:
      TypeError: when they are no integers.
    """
    tensor = convert_to_tensor(indices)
    if not tensor.dtype.is_integer:
        raise DtypeMismatchError(
            f"gather: indices must be integers, got {tensor.dtype.name}. [Op:GatherV2]"
        )
    return tensor


# Rows of one part; zeros for numbers past its end, whose rows are in other parts.
_rows_here = Op(
    "gather", lambda o, _: o[0].at[o[1]].get(mode="fill", fill_value=0), is_foldable=False
)


def _kept(operands: Any, count: int) -> Any:
    gradient, numbers = operands
    flat = numbers.reshape(-1)
    rows = gradient.reshape(flat.size, *gradient.shape[numbers.ndim :])
    here = (flat < count).reshape(-1, *[1] * (rows.ndim - 1))
    # Zeros, so that norms of gradients do not count rows of other parts.
    return jnp.where(here, rows, 0), flat


_gradient_here = Op("gather", _kept, is_foldable=False)


def _by_rows(operands: Any, static: Any, gradient: Any) -> IndexedSlices:
    table, numbers = operands
    shape = table._value.shape
    values, flat = apply(_gradient_here, (convert_to_tensor(gradient), numbers), shape[0])
    return IndexedSlices(values, flat, np.array(shape, np.int32))


_rows_here.by_rows = _by_rows


def _total(operands: Any, static: tuple[int]) -> Any:
    (found, numbers), (rows,) = operands, static
    total = found[0]
    for part in found[1:]:
        total = total + part
    if not jnp.issubdtype(total.dtype, jnp.inexact):
        return total
    exists = ((numbers >= 0) & (numbers < rows)).reshape(
        *numbers.shape, *[1] * (total.ndim - numbers.ndim)
    )
    return jnp.where(exists, total, jnp.nan)


_together = Op("add_n", _total)


def rows_of_tables(tables: Sequence[Any], numbers: Any) -> Tensor:
    """Rows of a table given in parts; the gradient of each part is `tf.IndexedSlices`.

    Inside a compiled function a number out of range gives NaN (floats) or zero (integers); eagerly it is an error.

    Args:
      tables: tensors or variables of shape [rows, ...] that hold consecutive rows.
      numbers: integers of any shape.

    Returns:
      Tensor of shape [*numbers.shape, ...].

    Raises:
      InvalidArgumentError: for a row that does not exist.
    """
    gather = parts_of["gather"]
    if any(hasattr(value, "_keras_history") for value in (*tables, numbers)):
        return gather(concat(list(tables), 0), numbers)
    parts = [convert_to_tensor(table) for table in tables]
    ids = integers(numbers)
    sizes = [part._value.shape[0] for part in parts]
    check_range(ids, sum(sizes), "gather")
    kinds = {part.dtype for part in parts}
    if dtypes.string in kinds or len(kinds) > 1 or not all(sizes):
        return gather(concat(parts, 0), ids)
    first, found = 0, []
    for part, size in zip(parts, sizes, strict=True):
        found.append(apply(_rows_here, (part, local_numbers(ids, first, size))))
        first += size
    return apply(_together, (found, ids), (first,))
