"""Comparison and logic of two operands."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.core.dispatch import op
from meshflow.core.tensor import Tensor, TensorLike

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
    """Whether elements are equal."""
    return jnp.equal(x, y)


@op(differentiable=False, strings="compares")
def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether elements differ."""
    return jnp.not_equal(x, y)


@op(kinds="if", differentiable=False)
def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether `x < y`."""
    return jnp.less(x, y)


@op(kinds="if", differentiable=False)
def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether `x <= y`."""
    return jnp.less_equal(x, y)


@op(kinds="if", differentiable=False)
def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether `x > y`."""
    return jnp.greater(x, y)


@op(kinds="if", differentiable=False)
def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether `x >= y`."""
    return jnp.greater_equal(x, y)


@op(differentiable=False)
def approximate_equal(
    x: TensorLike, y: TensorLike, tolerance: float = 1e-05, name: str | None = None
) -> Tensor:
    """Whether elements differ by less than `tolerance`."""
    return jnp.abs(x - y) < tolerance


@op(kinds="b", differentiable=False)
def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether both elements are true."""
    return jnp.logical_and(x, y)


@op(kinds="b", differentiable=False)
def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether either element is true."""
    return jnp.logical_or(x, y)


@op(kinds="b", differentiable=False)
def logical_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether exactly one element is true."""
    return jnp.logical_xor(x, y)


@op(kinds="b", differentiable=False)
def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether the element is false."""
    return jnp.logical_not(x)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x & y`: logical for booleans, bit by bit for integers."""
    return jnp.bitwise_and(x, y)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x | y`: logical for booleans, bit by bit for integers."""
    return jnp.bitwise_or(x, y)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x ^ y`: logical for booleans, bit by bit for integers."""
    return jnp.bitwise_xor(x, y)


@op(kinds="bi", differentiable=False)
def logical_or_bitwise_not(x: TensorLike, name: str | None = None) -> Tensor:
    """`~x`: logical for booleans, bit by bit for integers."""
    return jnp.invert(x)
