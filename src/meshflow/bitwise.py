"""`tf.bitwise`: integers bit by bit."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.core.dispatch import op
from meshflow.core.tensor import Tensor, TensorLike

__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]


@op(kinds="i", differentiable=False)
def bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x & y`."""
    return jnp.bitwise_and(x, y)


@op(kinds="i", differentiable=False)
def bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x | y`."""
    return jnp.bitwise_or(x, y)


@op(kinds="i", differentiable=False)
def bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x ^ y`."""
    return jnp.bitwise_xor(x, y)


@op(kinds="i", differentiable=False)
def invert(x: TensorLike, name: str | None = None) -> Tensor:
    """`~x`."""
    return jnp.invert(x)


@op(kinds="i", differentiable=False)
def left_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x << y`."""
    return jnp.left_shift(x, y)


@op(kinds="i", differentiable=False)
def right_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x >> y`, keeping the sign."""
    return jnp.right_shift(x, y)
