"""Updates for gradients of some rows: duplicate rows are summed, and only those rows change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from meshflow.kernels import elementwise, table_rows
from meshflow.kernels.table_rows import replace_rows, take_rows


def sum_duplicate_rows(
    grad: jax.Array, indices: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Sum the rows of a gradient that have equal indices.

    The number of unique indices is unknown in a trace, so the results have n rows. The unused ones
    have indices past the last row, and updates skip them.

    Args:
      grad: Rows of the gradient, [n, ...].
      indices: Row indices, n integers.
      count: Number of rows of the variable.

    Returns:
      n unique row indices, and the sum of the rows of each, in the order of first appearance.
    """
    unique, total = table_rows.sum_duplicate_rows(grad, cast_indices(indices), count)
    return unique, total


def cast_indices(indices: jax.Array) -> jax.Array:
    """Cast row indices to a type of at least 32 bits."""
    return jnp.asarray(indices, jnp.promote_types(indices.dtype, jnp.int32))


def update_rows(
    rule: Callable[..., Sequence[jax.Array]],
    arrays: Sequence[jax.Array],
    grad: jax.Array,
    indices: jax.Array,
) -> list[jax.Array]:
    """Update some rows of arrays; the other rows keep their values.

    Args:
      rule: The update, called with the rows of the arrays and their gradient.
      arrays: The variable and its slots.
      grad: Rows of the gradient.
      indices: Row indices, which may repeat.
    """
    flat = [jax.ShapeDtypeStruct(grad.shape, a.dtype) for a in (*arrays, grad)]
    elementwise_rule = elementwise.read_program(lambda *rows: rule(rows[:-1], rows[-1]), flat)
    if elementwise_rule is not None:
        program, scalars = elementwise_rule
        return table_rows.update_rows(program, arrays, scalars, grad, cast_indices(indices))
    unique, total = sum_duplicate_rows(grad, indices, arrays[0].shape[0])
    rows = rule([take_rows(a, unique) for a in arrays], total)
    return [replace_rows(a, unique, r) for a, r in zip(arrays, rows, strict=True)]


def select_rows(indices: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Select the new rows at some indices and the old rows at all others."""
    hit = jnp.zeros(old.shape[:1], bool).at[indices].set(True)
    return jnp.where(hit.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def update_averages(
    averages: Callable[..., Sequence[jax.Array]],
    slots: Sequence[jax.Array],
    indices: jax.Array,
    total: jax.Array,
) -> list[jax.Array]:
    """Update averages of gradients that are zero except in some rows.

    All averages decay, and the gradient's contribution is added to its rows: no gradient of all
    rows is formed, and XLA does both in place.

    Args:
      averages: Function of a gradient and the current averages that returns the new ones, linear in
        the averages.
      slots: Current averages.
      indices: Unique row indices and...
      total: ...the gradient's rows, as returned by `sum_duplicate_rows`.
    """
    zero = jnp.zeros((), total.dtype)
    decayed = averages(zero, slots)
    added = averages(total, [jnp.zeros(total.shape, s.dtype) for s in slots])
    return [
        d.at[indices].add(a.astype(d.dtype), mode="drop", unique_indices=True)
        for d, a in zip(decayed, added, strict=True)
    ]
