"""Adam's update of a variable, as primitives with CPU handlers.

XLA compiles three loops for every shape of a variable, which is a third of the time to compile a
network's first step. The handlers need no compilation and one pass over memory instead of three.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ArrayLike
from meshflow.kernels import library, table_rows
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Operands: the variable, its gradient, the means of gradients and of their squares, all of one
# shape; scalars: 1 - decay of each mean, and the learning rate. Parameter: `epsilon`. Results: the
# updated variable and means.
update_p = jex_core.Primitive("adam_update")
update_p.multiple_results = True
# The same with rows of the gradient and their indices; other rows have a gradient of zero.
row_update_p = jex_core.Primitive("adam_row_update")
row_update_p.multiple_results = True


def _compute_update(*operands: Array, epsilon: float) -> list[Array]:
    var, grad, mean, square, mean_rate, square_rate, rate = operands
    mean = mean + (grad - mean) * mean_rate
    square = square + (grad * grad - square) * square_rate
    return [var - rate * mean / (jnp.sqrt(square) + epsilon), mean, square]


def _compute_row_update(*operands: Array, epsilon: float) -> list[Array]:
    var, rows, indices, mean, square, mean_rate, square_rate, rate = operands
    unique, total = table_rows.sum_duplicate_rows(rows, indices, var.shape[0])
    add = lambda table, values: table.at[unique].add(values, mode="drop", unique_indices=True)
    mean = add(mean - mean * mean_rate, total * mean_rate)
    square = add(square - square * square_rate, total * total * square_rate)
    return [var - rate * mean / (jnp.sqrt(square) + epsilon), mean, square]


def _infer_results(*avals: jax.core.ShapedArray, epsilon: float) -> list[jax.core.AbstractValue]:
    var, *_, mean, square, _, _, _ = avals
    return [a.strip_weak_type() for a in (var, mean, square)]


def _choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any], name: str = library.ADAM
) -> HandlerCall | None:
    """Return a function that calls the handler in place, or None to use XLA's code."""
    indices = operands[2:-5]
    arrays = [*operands[:2], *operands[-5:]]
    if any(np.dtype(a.dtype) != np.float32 for a in arrays) or any(
        a.ndim != 1 or np.dtype(a.dtype).name not in ("int32", "int64") for a in indices
    ):
        return None
    loaded = library.load()
    if loaded is None or not loaded.has_handler(name):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    first = len(operands) - 5
    aliases = {0: 0, first: 1, first + 1: 2}
    call = jax.ffi.ffi_call(name, shapes, input_output_aliases=aliases)
    return functools.partial(call, epsilon=np.float32(parameters["epsilon"]))


def register() -> None:
    """Register the primitives with JAX."""
    register_composite(update_p, _compute_update, _infer_results, _choose_handler)
    choose = functools.partial(_choose_handler, name=library.ADAM_ROWS)
    register_composite(row_update_p, _compute_row_update, _infer_results, choose)


def update_variable(
    var: Array,
    grad: Array,
    mean: Array,
    square: Array,
    mean_rate: ArrayLike,
    square_rate: ArrayLike,
    rate: ArrayLike,
    epsilon: float,
    indices: Array | None = None,
) -> list[Array]:
    """Update a variable and the means of its gradients and of their squares.

    Args:
      var: The variable.
      grad: Its gradient, of the same shape and dtype, like `mean` and `square`.
      mean: Mean of the previous gradients.
      square: Mean of their squares.
      mean_rate: 1 - decay of `mean`, a scalar.
      square_rate: 1 - decay of `square`, a scalar.
      rate: Learning rate, a scalar.
      epsilon: Added to the root of the mean square.
      indices: Row indices, integers of at least 32 bits, if `grad` has only these rows: rows with
        equal indices are summed, indices after the last row are ignored.

    Returns:
      `var - rate * mean / (sqrt(square) + epsilon)`, `mean + (grad - mean) * mean_rate` and `square
      + (grad^2 - square) * square_rate`; the first is computed with the new means.
    """
    scalars = [
        x if getattr(x, "dtype", None) == var.dtype else jnp.asarray(x, var.dtype)
        for x in (mean_rate, square_rate, rate)
    ]
    if indices is None:
        return update_p.bind(var, grad, mean, square, *scalars, epsilon=float(epsilon))
    return row_update_p.bind(var, grad, indices, mean, square, *scalars, epsilon=float(epsilon))
