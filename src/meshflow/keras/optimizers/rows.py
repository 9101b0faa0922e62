"""Gradients of some rows of a variable: repeats added up, and updates that touch those rows only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.kernels import elementwise, table_rows
from meshflow.kernels.table_rows import replaced, taken


def summed(grad: Any, indices: Any, count: int) -> tuple[Any, Any]:
    """Rows without repeats, on arrays.

    How many there are is not known while a function is traced, so there are as many as were given: those
    left over have numbers past the last row, which updates leave out.

    Args:
      grad: rows, [n, ...].
      indices: their numbers, n integers.
      count: how many rows the variable has.

    Returns:
      n different row numbers, and the sum of the rows of each, in the order in which they were given.
    """
    different, total = table_rows.summed(grad, _numbers(indices), count)
    return different, total


def _numbers(indices: Any) -> Any:
    return jnp.asarray(indices, jnp.promote_types(indices.dtype, jnp.int32))


def updated_rows(
    rule: Callable[..., Sequence[Any]], arrays: Sequence[Any], grad: Any, indices: Any
) -> list[Any]:
    """Arrays whose rows of some numbers were updated, the others left alone.

    Args:
      rule: the update, called with the arrays' rows and their gradient.
      arrays: the variable and its slots.
      grad: rows of the gradient.
      indices: their numbers, perhaps with repeats.
    """
    flat = [jax.ShapeDtypeStruct(grad.shape, a.dtype) for a in (*arrays, grad)]
    found = elementwise.read(lambda *rows: rule(rows[:-1], rows[-1]), flat)
    if found is not None:
        program, scalars = found
        return table_rows.updated(program, arrays, scalars, grad, _numbers(indices))
    numbers, total = summed(grad, indices, arrays[0].shape[0])
    rows = rule([taken(a, numbers) for a in arrays], total)
    return [replaced(a, numbers, r) for a, r in zip(arrays, rows, strict=True)]


def chosen(indices: Any, new: Any, old: Any) -> Any:
    """The new rows of an array at some numbers, the old ones elsewhere."""
    hit = jnp.zeros(old.shape[:1], bool).at[indices].set(True)
    return jnp.where(hit.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def updated_averages(
    averages: Callable[..., Sequence[Any]], slots: Sequence[Any], numbers: Any, total: Any
) -> list[Any]:
    """Averages of gradients that are given for some rows, and are zero in the others.

    All averages decay, and what the gradient adds is added to its rows: no gradient of all rows is formed, and
    XLA does both in place.

    Args:
      averages: the averages from a gradient and the averages before; linear in the latter.
      slots: the averages before.
      numbers: row numbers, and...
      total: ...the gradient's rows, as `summed` gives them.
    """
    none = jnp.zeros((), total.dtype)
    decayed = averages(none, slots)
    added = averages(total, [jnp.zeros(total.shape, s.dtype) for s in slots])
    return [
        d.at[numbers].add(a.astype(d.dtype), mode="drop", unique_indices=True)
        for d, a in zip(decayed, added, strict=True)
    ]
