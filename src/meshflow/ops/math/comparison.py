"""Comparisons and logical ops."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.broadcasting import combine
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.shapes import can_be_equal
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = [
    "approximate_equal",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_or_bitwise_and",
    "logical_or_bitwise_not",
    "logical_or_bitwise_or",
    "logical_or_bitwise_xor",
    "logical_xor",
    "not_equal",
]


@op(differentiable=False, strings="compares")
def equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check elementwise whether `x == y`.

    Args:
      x: A tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.equal([1, 2], [1, 3]).numpy(), tf.equal("a", ["a", "b"]).numpy())
      [ True False] [ True False]
    """
    return combine(jax.lax.eq, x, y)


@op(differentiable=False, strings="compares")
def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check elementwise whether `x != y`.

    Args:
      x: A tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.not_equal([1, 2], [1, 3]).numpy())
      [False  True]
    """
    return combine(jax.lax.ne, x, y)


@op(kinds="if", differentiable=False)
def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check elementwise whether `x < y`.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.less([1, 2, 3], 2).numpy())
      [ True False False]
    """
    return combine(jax.lax.lt, x, y)


@op(kinds="if", differentiable=False)
def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check elementwise whether `x <= y`.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.less_equal([1, 2, 3], 2).numpy())
      [ True  True False]
    """
    return combine(jax.lax.le, x, y)


@op(kinds="if", differentiable=False)
def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check elementwise whether `x > y`.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.greater([1, 2, 3], 2).numpy())
      [False False  True]
    """
    return combine(jax.lax.gt, x, y)


@op(kinds="if", differentiable=False)
def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check elementwise whether `x >= y`.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.greater_equal([1, 2, 3], 2).numpy())
      [False  True  True]
    """
    return combine(jax.lax.ge, x, y)


@op(differentiable=False)
def approximate_equal(
    x: TensorLike, y: TensorLike, tolerance: float = 1e-05, name: str | None = None
) -> Tensor:
    """Check whether elements differ by less than `tolerance`.

    Raises:
      InvalidArgumentError: If the shapes differ.

    Example:
      >>> print(tf.math.approximate_equal([1.0, 2.0], [1.05, 2.5], tolerance=0.1).numpy())
      [ True False]
    """
    if x.ndim != y.ndim or not all(map(can_be_equal, x.shape, y.shape)):
        raise InvalidValueError(
            f"x and y must be of the same shape, got {list(x.shape)} and {list(y.shape)}."
        )
    return jnp.abs(x - y) < tolerance


@op(kinds="b", differentiable=False)
def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check whether both elements are true.

    Args:
      x: Booleans.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.logical_and([True, True], [True, False]).numpy())
      [ True False]
    """
    return jnp.logical_and(x, y)


@op(kinds="b", differentiable=False)
def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check whether at least one element is true.

    Args:
      x: Booleans.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.logical_or([True, False], [False, False]).numpy())
      [ True False]
    """
    return jnp.logical_or(x, y)


@op(kinds="b", differentiable=False)
def logical_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Check whether exactly one element is true.

    Args:
      x: Booleans.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.logical_xor([True, True], [True, False]).numpy())
      [False  True]
    """
    return jnp.logical_xor(x, y)


@op(kinds="b", differentiable=False)
def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """Negate booleans; the result has the shape of the argument.

    Example:
      >>> print(tf.logical_not([True, False]).numpy())
      [False  True]
    """
    return jnp.logical_not(x)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x & y`: logical for booleans, bitwise for integers."""
    return jnp.bitwise_and(x, y)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x | y`: logical for booleans, bitwise for integers."""
    return jnp.bitwise_or(x, y)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x ^ y`: logical for booleans, bitwise for integers."""
    return jnp.bitwise_xor(x, y)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_not(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute `~x`: logical for booleans, bitwise for integers."""
    return jnp.invert(x)
