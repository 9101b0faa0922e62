"""Sums of elements, products, or squares of differences over leading or trailing axes, as a primitive with a CPU handler.

They are the statistics of batch and layer normalization and the gradients of their scales. XLA would write the
terms to memory before a handler sums them. `passes.column_sum_fusion` introduces the primitive.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import lowerings
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Operands: x; and y of the same shape (terms "products"), or of the same rank with size 1 in the axes
# of the sum ("squares"), or none ("elements"). Parameters: `terms` and `axes`, which are the first
# axes or the last ones. Result: the sums in float32.
column_sums_p = jex_core.Primitive("column_sums")


def _compute_sums(*operands: Array, terms: str, axes: tuple[int, ...]) -> Array:
    x, *rest = (a.astype(jnp.float32) for a in operands)
    values = x if not rest else x * rest[0] if terms == "products" else jnp.square(x - rest[0])
    return jax.lax.reduce_sum(values, axes)


def choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function of the operands that calls a handler, or None."""
    is_by_row = parameters["axes"][0] > 0
    return lowerings.choose_sum(operands, results[0], parameters["terms"], is_by_row)


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(column_sums_p, _compute_sums, None, choose_handler)
