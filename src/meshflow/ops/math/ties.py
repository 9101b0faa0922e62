"""Array functions with kinks, whose gradients there are TensorFlow's and not JAX's.

Where two operands are equal JAX halves the gradient between them; TensorFlow gives all of it to the
first. At the ends of an interval JAX halves it too, and the gradient of `|x|` at 0 is 1; in
TensorFlow these are 1 and 0. Losses are often exactly there: an error of 0, a margin just kept.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """The larger of two; of equal ones the first has the gradient."""
    return jnp.maximum(x, y)


@larger.defjvp
def _larger_jvp(primals: Any, tangents: Any) -> Any:
    x, y = primals
    return larger(x, y), jnp.where(x >= y, *tangents)


@jax.custom_jvp
def smaller(x: jax.Array, y: jax.Array) -> jax.Array:
    """The smaller of two; of equal ones the first has the gradient."""
    return jnp.minimum(x, y)


@smaller.defjvp
def _smaller_jvp(primals: Any, tangents: Any) -> Any:
    x, y = primals
    return smaller(x, y), jnp.where(x <= y, *tangents)


@jax.custom_jvp
def clipped(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """`x` moved into an interval, whose ends count as inside for the gradient."""
    return jnp.maximum(jnp.minimum(x, high), low)


@clipped.defjvp
def _clipped_jvp(primals: Any, tangents: Any) -> Any:
    x, low, high = primals
    moved, low_moved, high_moved = tangents
    outside = jnp.where(x < low, low_moved, jnp.where(x > high, high_moved, 0))
    return clipped(x, low, high), jnp.where((x >= low) & (x <= high), moved, outside)


def absolute(x: jax.Array) -> jax.Array:
    """`|x|`, for real numbers with gradient 0 at 0."""
    return jnp.abs(x) if jnp.iscomplexobj(x) else _absolute(x)


@jax.custom_jvp
def _absolute(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


@_absolute.defjvp
def _absolute_jvp(primals: Any, tangents: Any) -> Any:
    return _absolute(primals[0]), jnp.sign(primals[0]) * tangents[0]
