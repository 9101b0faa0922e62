"""Quotients and remainders with TensorFlow's rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operation import is_inexact
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.bounds_checks import check_divisor
from meshflow.core.runtime.broadcasting import combine, select
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Array
from meshflow.ops.array.inspection import read_static_array

__all__ = [
    "divide",
    "divide_no_nan",
    "floordiv",
    "floormod",
    "mod",
    "realdiv",
    "truediv",
    "truncatediv",
    "truncatemod",
]


@op(kinds="ifc")
def truediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide elementwise, with broadcasting to a common shape.

    Integers result in floats: float32 for at most 16 bits, else float64.

    Example:
      >>> tf.truediv(7, 2).numpy()
      np.float64(3.5)
    """
    return combine(jax.lax.div, *_promote_integers(x, y))


def _promote_integers(x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
    """Convert integers to floats; other dtypes are not changed."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return x, y
    dtype = jnp.float32 if x.dtype.itemsize <= 2 else jnp.float64
    return x.astype(dtype), y.astype(dtype)


@dispatch_composites
def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide elementwise as `truediv` does, with broadcasting to a common shape.

    Example:
      >>> print(tf.divide([7, 8], 2).numpy())
      [3.5 4. ]
    """
    return truediv(x, y)


def _check_divisor(result: Tensor, y: Any, is_truncated: bool = False) -> Tensor:
    """Return the result, or raise if it is an integer division by a known zero."""
    # Integers of Python are the most frequent divisors. Larger ones can be zero in the dtype of the result.
    is_known_nonzero = type(y) is int and 0 < abs(y) < 256
    if not is_known_nonzero and isinstance(result, Tensor) and result.dtype.is_integer:
        divisor = read_static_array(y)
        if divisor is not None:
            # NumPy arrays of another dtype are cast, which rounds small floats to zero.
            check_divisor(np.asarray(divisor).astype(result.dtype.dtype), is_truncated)
    return result


def _guard_divisor(y: Any, is_truncated: bool = False) -> Any:
    """Return a divisor that is checked when the function runs that is being traced."""
    if isinstance(y, Variable):
        y = convert_to_tensor(y)
    is_traced = isinstance(y, Tensor) and isinstance(y.array, jax.core.Tracer)
    return check_divisor(y, is_truncated) if is_traced and y.dtype.is_integer else y


def divide_and_round_down(x: Array, y: Array) -> Array:
    """Divide arrays as TensorFlow does, which rounds the quotient of floats before it rounds down."""
    return jnp.floor(x / y) if is_inexact(x) else jnp.floor_divide(x, y)


@op(kinds="if", name="floordiv", differentiable=False)
def _floordiv(x: TensorLike, y: TensorLike) -> Tensor:
    return divide_and_round_down(x, y)


@dispatch_composites
def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide and round down elementwise, with broadcasting to a common shape.

    Example:
      >>> tf.math.floordiv(-7, 2).numpy()
      np.int32(-4)
    """
    return _check_divisor(_floordiv(x, _guard_divisor(y)), y)


@op(kinds="if", name="floormod")
def _floormod(x: TensorLike, y: TensorLike) -> Tensor:
    return jnp.mod(x, y)


@dispatch_composites
def floormod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the remainder with the sign of the divisor, as in Python.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.floormod([7, -7], 3).numpy())
      [1 2]
    """
    return _check_divisor(_floormod(x, _guard_divisor(y)), y)


mod = floormod


@op(kinds="if", name="truncatediv", differentiable=False)
def _truncatediv(x: TensorLike, y: TensorLike) -> Tensor:
    return jax.lax.div(*jnp.broadcast_arrays(x, y)) if is_integer(x) else jnp.trunc(x / y)


@dispatch_composites
def truncatediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide and round towards zero elementwise, with broadcasting to a common shape.

    Example:
      >>> int(tf.truncatediv(-7, 2))
      -3
    """
    return _check_divisor(_truncatediv(x, _guard_divisor(y, True)), y, True)


@op(kinds="if", name="truncatemod")
def _truncatemod(x: TensorLike, y: TensorLike) -> Tensor:
    return jax.lax.rem(*jnp.broadcast_arrays(x, y))


@dispatch_composites
def truncatemod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the remainder of `truncatediv`, which has the sign of `x`.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.truncatemod([7, -7], 3).numpy())
      [ 1 -1]
    """
    return _check_divisor(_truncatemod(x, _guard_divisor(y, True)), y, True)


@op(kinds="fc")
def realdiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide floating or complex tensors elementwise.

    Args:
      x: A floating or complex tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.realdiv([1.0, 3.0], 2.0).numpy())
      [0.5 1.5]
    """
    return x / y


def is_integer(x: Array | Tensor) -> bool:
    """Check whether an array has an integer dtype."""
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


@op(kinds="ifc")
def divide_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x / y`, but 0 where `y` is 0, with broadcasting to a common shape.

    Example:
      >>> tf.math.divide_no_nan([1.0, 1.0], [2.0, 0.0]).numpy()
      array([0.5, 0. ], dtype=float32)
    """
    x, y = _promote_integers(x, y)
    zero, one = x.dtype.type(0), y.dtype.type(1)
    is_zero = combine(jax.lax.eq, y, y.dtype.type(0))
    quotient = combine(jax.lax.div, x, select(is_zero, one, y))
    if quotient.ndim == 0:
        return select(is_zero, zero, quotient)
    return jnp.where(is_zero, zero, quotient)
