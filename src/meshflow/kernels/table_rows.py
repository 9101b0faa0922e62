"""CPU kernels that read, write, sum and update rows of a table by index.

They process complete rows, while XLA's code processes single elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ArrayLike
from meshflow.kernels import library, lowerings
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.elementwise import ElementwiseProgram
from meshflow.kernels.library import Aval, Avals, HandlerCall

# Bytes of a row, and of all rows, below which XLA's code is as fast as the call.
MIN_ROW_BYTES, MIN_TOTAL_BYTES = 1 << 6, 1 << 14

_Mode = jax.lax.GatherScatterMode

# Operands: rows and their indices. Parameter: `count`. Results: unique indices, and the sum of the
# rows of each.
sum_rows_p = jex_core.Primitive("summed_rows")
sum_rows_p.multiple_results = True

# Operands: indices, gradient, arrays and scalars. Parameter: `rule`, a program of rows of the
# arrays and of the gradient. Results: the updated arrays.
update_rows_p = jex_core.Primitive("updated_rows")
update_rows_p.multiple_results = True


def _is_worth_call(rows: Aval, handler: str) -> bool:
    row = math.prod(rows.shape[1:]) * np.dtype(rows.dtype).itemsize
    if row < MIN_ROW_BYTES or row * rows.shape[0] < MIN_TOTAL_BYTES:
        return False
    loaded = library.load()
    return loaded is not None and loaded.has_handler(handler)


def _are_row_indices(indices: Aval) -> bool:
    """Check whether indices select rows, with a dtype that the handlers support."""
    is_supported = np.dtype(indices.dtype).name in ("int32", "int64")
    return is_supported and indices.ndim > 0 and indices.shape[-1] == 1


def _flatten_index_axes(rows: Aval, indices: Aval) -> jax.ShapeDtypeStruct:
    """Return the type of the rows with the axes of the indices merged into one."""
    row_shape = rows.shape[indices.ndim - 1 :]
    return jax.ShapeDtypeStruct((math.prod(indices.shape), *row_shape), rows.dtype)


def _choose_gather(
    table: Aval, indices: Aval, out: Aval, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function of table and indices that reads complete rows, or None."""
    numbers, batch = parameters["dimension_numbers"], indices.ndim - 1
    are_rows = (
        _are_row_indices(indices)
        and table.ndim > 0
        and table.shape[0] > 0
        and numbers.offset_dims == tuple(range(batch, out.ndim))
        and (numbers.collapsed_slice_dims, numbers.start_index_map) == ((0,), (0,))
        and not numbers.operand_batching_dims
        and tuple(parameters["slice_sizes"]) == (1, *table.shape[1:])
    )
    mode, fill = parameters["mode"], parameters["fill_value"]
    fills = mode == _Mode.FILL_OR_DROP
    is_supported = mode in (_Mode.CLIP, _Mode.PROMISE_IN_BOUNDS) or (
        fills and jnp.issubdtype(out.dtype, np.floating) and (fill is None or np.isnan(fill))
    )
    if not (
        are_rows
        and is_supported
        and _is_worth_call(_flatten_index_axes(out, indices), library.GATHER_ROWS)
    ):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    call = jax.ffi.ffi_call(library.GATHER_ROWS, result)
    return functools.partial(call, fills=fills)


def _choose_scatter(
    table: Aval, indices: Aval, updates: Aval, out: Aval, parameters: dict[str, Any], adds: bool
) -> HandlerCall | None:
    """Return a function of table, indices and updates that writes complete rows in place, or None."""
    numbers, batch = parameters["dimension_numbers"], indices.ndim - 1
    are_rows = (
        _are_row_indices(indices)
        and table.ndim > 0
        and table.shape[0] > 0
        and numbers.update_window_dims == tuple(range(batch, updates.ndim))
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and not numbers.operand_batching_dims
        and updates.shape[batch:] == table.shape[1:]
        and parameters["mode"] in (_Mode.FILL_OR_DROP, _Mode.PROMISE_IN_BOUNDS)
    )
    is_supported = not adds or np.dtype(table.dtype) == np.dtype(updates.dtype) == np.float32
    if not (
        are_rows
        and is_supported
        and _is_worth_call(_flatten_index_axes(updates, indices), library.SCATTER_ROWS)
    ):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    call = jax.ffi.ffi_call(library.SCATTER_ROWS, result, input_output_aliases={0: 0})
    return functools.partial(call, adds=adds)


def _sum_duplicate_rows(rows: Array, indices: Array, *, count: int) -> list[Array]:
    num_rows = indices.shape[0]
    # All indices after the last row are equivalent, because they have no row.
    numbers = jnp.minimum(indices, count)
    positions = jnp.arange(num_rows, dtype=jnp.int32)
    # Sum the rows of an index at one of its positions. Sorting would take several times as long as
    # this table.
    representative = jnp.zeros(count + 1, jnp.int32).at[numbers].set(positions)[numbers]
    unique = jnp.where(representative == positions, numbers, count + 1 + positions)
    return [unique.astype(indices.dtype), jax.ops.segment_sum(rows, representative, num_rows)]


def _infer_sums(
    rows: jax.core.ShapedArray, indices: jax.core.ShapedArray, **_: Any
) -> list[jax.core.AbstractValue]:
    return [indices.strip_weak_type(), rows.strip_weak_type()]


def _choose_sum(operands: Avals, results: Avals, parameters: dict[str, Any]) -> HandlerCall | None:
    rows, indices = operands
    is_supported = np.dtype(rows.dtype) == np.float32 and indices.dtype in (np.int32, np.int64)
    if not (is_supported and indices.ndim == 1 and _is_worth_call(rows, library.SUM_ROWS)):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    call = jax.ffi.ffi_call(library.SUM_ROWS, shapes)
    return functools.partial(call, last=np.int64(parameters["count"]))


def sum_duplicate_rows(rows: Array, indices: Array, count: int) -> list[Array]:
    """Sum the rows with equal indices.

    Args:
      rows: Array [n, ...].
      indices: Their indices, n integers of at least 32 bits.
      count: Number of rows of the table.

    Returns:
      n unique indices, and the sum of the rows of each. The number of unique indices is unknown
      during tracing, so the remaining results are indices after the last row and sums of zero.
    """
    return sum_rows_p.bind(rows, indices, count=count)


def take_rows(array: Array, indices: Array) -> Array:
    """Read the rows at indices returned by `sum_duplicate_rows`."""
    return array.at[indices].get(mode="clip")


def replace_rows(array: Array, indices: Array, rows: Array) -> Array:
    """Replace the rows at indices returned by `sum_duplicate_rows`."""
    return array.at[indices].set(rows.astype(array.dtype), mode="drop", unique_indices=True)


def _update_rows(
    indices: Array, gradient: Array, *rest: Array, rule: ElementwiseProgram
) -> list[Array]:
    arrays, scalars = rest[: rule.num_arrays - 1], rest[rule.num_arrays - 1 :]
    unique, total = sum_duplicate_rows(gradient, indices, arrays[0].shape[0])
    rows = rule([*(take_rows(a, unique) for a in arrays), total], scalars)
    return [replace_rows(a, unique, r) for a, r in zip(arrays, rows, strict=True)]


def _infer_updates(
    indices: object, gradient: object, *rest: jax.core.ShapedArray, rule: ElementwiseProgram
) -> list[jax.core.AbstractValue]:
    return [a.strip_weak_type() for a in rest[: rule.num_arrays - 1]]


def _choose_update(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    indices, gradient = operands[:2]
    rule = parameters["rule"]
    is_supported = indices.ndim == 1 and np.dtype(indices.dtype).name in ("int32", "int64")
    if not (is_supported and _is_worth_call(gradient, library.UPDATE_ROWS)):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    aliases = {2 + n: n for n in range(len(shapes))}
    call = jax.ffi.ffi_call(library.UPDATE_ROWS, shapes, input_output_aliases=aliases)
    return functools.partial(call, program=rule.encode())


def update_rows(
    rule: ElementwiseProgram,
    arrays: Sequence[Array],
    scalars: Sequence[ArrayLike],
    gradient: Array,
    indices: Array,
) -> list[Array]:
    """Update the rows of arrays at some indices.

    Args:
      rule: Computes the new rows from rows of the arrays and of their gradient.
      arrays: float32 arrays [count, ...].
      scalars: Scalars that the rule uses.
      gradient: Rows of the gradient, [n, ...].
      indices: Their indices, n integers of at least 32 bits; rows with equal indices are summed,
        indices after the last row are ignored.
    """
    return update_rows_p.bind(indices, gradient, *arrays, *scalars, rule=rule)


def register() -> None:
    """Register the handlers as CPU lowerings."""
    lowerings.override_lowering(jax.lax.gather_p, _choose_gather, any_types=True)
    lowerings.override_lowering(
        jax.lax.scatter_p, functools.partial(_choose_scatter, adds=False), any_types=True
    )
    lowerings.override_lowering(
        jax.lax.scatter_add_p, functools.partial(_choose_scatter, adds=True), any_types=True
    )
    register_composite(sum_rows_p, _sum_duplicate_rows, _infer_sums, _choose_sum)
    register_composite(update_rows_p, _update_rows, _infer_updates, _choose_update)
