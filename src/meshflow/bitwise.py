"""`tf.bitwise`: bitwise operations on integers."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array

__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]


@op(kinds="i", differentiable=False)
def bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the bitwise AND of `x` and `y`.

    Args:
      x: Integer tensor.
      y: Tensor of the same dtype, broadcast against `x`.
      name: Ignored.

    Example:
      >>> print(tf.bitwise.bitwise_and([0b1100, 7], [0b1010, 2]).numpy())
      [8 2]
    """
    return jnp.bitwise_and(x, y)


@op(kinds="i", differentiable=False)
def bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the bitwise OR of `x` and `y`.

    Args:
      x: Integer tensor.
      y: Tensor of the same dtype, broadcast against `x`.
      name: Ignored.

    Example:
      >>> print(tf.bitwise.bitwise_or([0b1100, 4], [0b1010, 1]).numpy())
      [14  5]
    """
    return jnp.bitwise_or(x, y)


@op(kinds="i", differentiable=False)
def bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the bitwise XOR of `x` and `y`.

    Args:
      x: Integer tensor.
      y: Tensor of the same dtype, broadcast against `x`.
      name: Ignored.

    Example:
      >>> print(tf.bitwise.bitwise_xor([0b1100, 7], [0b1010, 7]).numpy())
      [6 0]
    """
    return jnp.bitwise_xor(x, y)


@op(kinds="i", differentiable=False)
def invert(x: TensorLike, name: str | None = None) -> Tensor:
    """Invert all bits of integers.

    Example:
      >>> print(tf.bitwise.invert([0, 5]).numpy())
      [-1 -6]
      >>> print(tf.bitwise.invert(tf.constant([0, 5], tf.uint8)).numpy())
      [255 250]
    """
    return jnp.invert(x)


def _limit_shift(positions: Array) -> Array:
    """Clip the number of positions to those that the dtype has, like TensorFlow on a CPU."""
    return jnp.clip(positions, 0, positions.dtype.itemsize * 8 - 1)


@op(kinds="i", differentiable=False)
def left_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Shift the bits of `x` to the left by `y` positions.

    Args:
      x: Integer tensor.
      y: Tensor of the same dtype, broadcast against `x`.
      name: Ignored.

    Example:
      >>> print(tf.bitwise.left_shift([1, 3], [4, 1]).numpy())
      [16  6]
    """
    return jnp.left_shift(x, _limit_shift(y))


@op(kinds="i", differentiable=False)
def right_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Shift the bits of `x` to the right by `y` positions; the sign is preserved.

    Args:
      x: Integer tensor.
      y: Tensor of the same dtype, broadcast against `x`.
      name: Ignored.

    Example:
      >>> print(tf.bitwise.right_shift([16, -8], 2).numpy())
      [ 4 -2]
    """
    return jnp.right_shift(x, _limit_shift(y))
