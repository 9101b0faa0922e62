"""How rows of a table are read, written, summed and updated by their numbers on the CPU: whole rows at a time, where XLA
goes element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import library, lowerings
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.elementwise import Program

# Bytes of a row, and of all rows, below which XLA's code is as fast as the call.
LEAST_ROW, LEAST_SIZE = 1 << 6, 1 << 14

_Mode = jax.lax.GatherScatterMode

# Operands: rows and their numbers. Parameter `count`. Results: different numbers and the sum of the rows of each.
summed_p = jex_core.Primitive("summed_rows")
summed_p.multiple_results = True

# Operands: row numbers, gradients, arrays and scalars. Parameter `rule`, a program of rows of the arrays and of the gradient.
# Results: the arrays.
updated_p = jex_core.Primitive("updated_rows")
updated_p.multiple_results = True


def _worth_a_call(rows: Any, handler: str) -> bool:
    row = math.prod(rows.shape[1:]) * np.dtype(rows.dtype).itemsize
    if row < LEAST_ROW or row * rows.shape[0] < LEAST_SIZE:
        return False
    loaded = library.load()
    return loaded is not None and loaded.has_handler(handler)


def _are_numbers(indices: Any) -> bool:
    """Whether indices are a number for each row, in types that handlers know."""
    known = np.dtype(indices.dtype).name in ("int32", "int64")
    return known and indices.ndim > 0 and indices.shape[-1] == 1


def _flat(rows: Any, indices: Any) -> Any:
    """The rows' shape with one dimension in the place of those of the indices."""
    kept = rows.shape[indices.ndim - 1 :]
    return jax.ShapeDtypeStruct((math.prod(indices.shape), *kept), rows.dtype)


def _choose_gather(table: Any, indices: Any, out: Any, parameters: dict[str, Any]) -> Any:
    """A function of table and indices that reads whole rows, or None."""
    numbers, batch = parameters["dimension_numbers"], indices.ndim - 1
    whole = (
        _are_numbers(indices)
        and table.ndim > 0
        and table.shape[0] > 0
        and numbers.offset_dims == tuple(range(batch, out.ndim))
        and (numbers.collapsed_slice_dims, numbers.start_index_map) == ((0,), (0,))
        and not numbers.operand_batching_dims
        and tuple(parameters["slice_sizes"]) == (1, *table.shape[1:])
    )
    mode, fill = parameters["mode"], parameters["fill_value"]
    fills = mode == _Mode.FILL_OR_DROP
    known = mode in (_Mode.CLIP, _Mode.PROMISE_IN_BOUNDS) or (
        fills and jnp.issubdtype(out.dtype, np.floating) and (fill is None or np.isnan(fill))
    )
    if not (whole and known and _worth_a_call(_flat(out, indices), library.GATHER_ROWS)):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    call = jax.ffi.ffi_call(library.GATHER_ROWS, result)
    return functools.partial(call, fills=fills)


def _choose_scatter(
    table: Any, indices: Any, updates: Any, out: Any, parameters: dict[str, Any], adds: bool
) -> Any:
    """A function of table, indices and updates that writes whole rows in place, or None."""
    numbers, batch = parameters["dimension_numbers"], indices.ndim - 1
    whole = (
        _are_numbers(indices)
        and table.ndim > 0
        and table.shape[0] > 0
        and numbers.update_window_dims == tuple(range(batch, updates.ndim))
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and not numbers.operand_batching_dims
        and updates.shape[batch:] == table.shape[1:]
        and parameters["mode"] in (_Mode.FILL_OR_DROP, _Mode.PROMISE_IN_BOUNDS)
    )
    known = not adds or np.dtype(table.dtype) == np.dtype(updates.dtype) == np.float32
    if not (whole and known and _worth_a_call(_flat(updates, indices), library.SCATTER_ROWS)):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    call = jax.ffi.ffi_call(library.SCATTER_ROWS, result, input_output_aliases={0: 0})
    return functools.partial(call, adds=adds)


def _summed(rows: Any, indices: Any, *, count: int) -> list[Any]:
    given = indices.shape[0]
    # All numbers past the last row are one number, which has no row either.
    numbers = jnp.minimum(indices, count)
    positions = jnp.arange(given, dtype=jnp.int32)
    # A number's rows are summed at one of their positions. Sorting takes several times as long as this table.
    place = jnp.zeros(count + 1, jnp.int32).at[numbers].set(positions)[numbers]
    different = jnp.where(place == positions, numbers, count + 1 + positions)
    return [different.astype(indices.dtype), jax.ops.segment_sum(rows, place, given)]


def _abstract(rows: Any, indices: Any, **_: Any) -> list[Any]:
    return [indices.strip_weak_type(), rows.strip_weak_type()]


def _choose_sum(operands: Any, results: Any, parameters: dict[str, Any]) -> Any:
    rows, indices = operands
    known = np.dtype(rows.dtype) == np.float32 and indices.dtype in (np.int32, np.int64)
    if not (known and indices.ndim == 1 and _worth_a_call(rows, library.SUM_ROWS)):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    call = jax.ffi.ffi_call(library.SUM_ROWS, shapes)
    return functools.partial(call, last=np.int64(parameters["count"]))


def summed(rows: Any, indices: Any, count: int) -> list[Any]:
    """Rows without repeats: those of one number added up.

    Args:
      rows: an array [n, ...].
      indices: their numbers, n integers of at least 32 bits.
      count: how many rows the table has.

    Returns:
      n different numbers, and the sum of the rows of each. Those left over, as how many there are is not known
      while a function is traced, have numbers past the last row and sums of zero.
    """
    return summed_p.bind(rows, indices, count=count)


def taken(array: Any, numbers: Any) -> Any:
    """Rows by numbers of `summed`."""
    return array.at[numbers].get(mode="clip")


def replaced(array: Any, numbers: Any, rows: Any) -> Any:
    """An array with other rows at numbers of `summed`."""
    return array.at[numbers].set(rows.astype(array.dtype), mode="drop", unique_indices=True)


def _updated(indices: Any, gradient: Any, *rest: Any, rule: Program) -> list[Any]:
    arrays, scalars = rest[: rule.arrays - 1], rest[rule.arrays - 1 :]
    numbers, total = summed(gradient, indices, arrays[0].shape[0])
    rows = rule([*(taken(a, numbers) for a in arrays), total], scalars)
    return [replaced(a, numbers, r) for a, r in zip(arrays, rows, strict=True)]


def _abstract_update(indices: Any, gradient: Any, *rest: Any, rule: Program) -> list[Any]:
    return [a.strip_weak_type() for a in rest[: rule.arrays - 1]]


def _choose_update(operands: Any, results: Any, parameters: dict[str, Any]) -> Any:
    indices, gradient = operands[:2]
    rule = parameters["rule"]
    known = indices.ndim == 1 and np.dtype(indices.dtype).name in ("int32", "int64")
    if not (known and _worth_a_call(gradient, library.UPDATE_ROWS)):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    places = {2 + n: n for n in range(len(shapes))}
    call = jax.ffi.ffi_call(library.UPDATE_ROWS, shapes, input_output_aliases=places)
    return functools.partial(call, program=rule.packed())


def updated(
    rule: Program, arrays: Sequence[Any], scalars: Sequence[Any], gradient: Any, indices: Any
) -> list[Any]:
    """Arrays whose rows of some numbers were updated, the others left alone.

    Args:
      rule: makes of rows of the arrays, and of their gradient, the rows that take their place.
      arrays: float32 arrays [count, ...].
      scalars: what the rule uses besides.
      gradient: rows of the gradient, [n, ...].
      indices: their numbers, n integers of at least 32 bits, perhaps with repeats; those past the last row are left out.
    """
    return updated_p.bind(indices, gradient, *arrays, *scalars, rule=rule)


def register() -> None:
    """Gives rows of tables this code."""
    lowerings.override(jax.lax.gather_p, _choose_gather, any_types=True)
    lowerings.override(
        jax.lax.scatter_p, functools.partial(_choose_scatter, adds=False), any_types=True
    )
    lowerings.override(
        jax.lax.scatter_add_p, functools.partial(_choose_scatter, adds=True), any_types=True
    )
    register_composite(summed_p, _summed, _abstract, _choose_sum)
    register_composite(updated_p, _updated, _abstract_update, _choose_update)
