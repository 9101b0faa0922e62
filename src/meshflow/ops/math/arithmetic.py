"""Arithmetic and special functions of two or more operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.bounds_checks import check_exponent
from meshflow.core.runtime.broadcasting import combine
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.inspection import read_static_array
from meshflow.ops.math.division import is_integer

__all__ = [
    "accumulate_n",
    "add",
    "add_n",
    "atan2",
    "betainc",
    "igamma",
    "igammac",
    "maximum",
    "minimum",
    "multiply",
    "multiply_no_nan",
    "nextafter",
    "polygamma",
    "pow",
    "scalar_mul",
    "squared_difference",
    "subtract",
    "xdivy",
    "xlog1py",
    "xlogy",
    "zeta",
]


@op(strings="joins", kinds="ifcs")
def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Add tensors elementwise, with broadcasting.

    Args:
      x: A tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the dtypes differ or the shapes cannot be broadcast.

    Example:
      >>> tf.add([1, 2], 1).numpy()
      array([2, 3], dtype=int32)
    """
    return combine(jax.lax.add, x, y)


@op
def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Subtract `y` from `x` elementwise, with broadcasting to a common shape.

    Example:
      >>> tf.subtract([3, 2], 1).numpy()
      array([2, 1], dtype=int32)
    """
    return combine(jax.lax.sub, x, y)


@op(kinds="ifc")
def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Multiply tensors elementwise, with broadcasting to a common shape.

    Example:
      >>> tf.multiply([3.0, 2.0], 2.0).numpy()
      array([6., 4.], dtype=float32)
    """
    return combine(jax.lax.mul, x, y)


@op(kinds="fc")
def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x * y`, but 0 where `y` is 0 even if `x` is infinite or NaN.

    Args:
      x: A floating or complex tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.multiply_no_nan([2.0, float("inf")], [3.0, 0.0]).numpy())
      [6. 0.]
    """
    # The gradient by a `y` of 0 is `x`, as in TensorFlow, but 0 instead of infinity or NaN.
    factor = jax.lax.stop_gradient(jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype)))
    return jnp.where(y == 0, factor * y, x * jnp.where(y == 0, jnp.ones((), y.dtype), y))


@dispatch_composites
def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Multiply a tensor or `tf.IndexedSlices` by a scalar.

    Raises:
      ValueError: If `scalar` is not a scalar.

    Example:
      >>> print(tf.math.scalar_mul(2.0, tf.constant([1.0, 3.0])).numpy())
      [2. 6.]
    """
    scalar = convert_to_tensor(scalar, dtype_hint=getattr(x, "dtype", None))
    if scalar.shape.rank:
        raise ValueError(f"Only scalar multiply works, got shape {scalar.shape}")
    if isinstance(x, IndexedSlices):
        return x.with_values(multiply(scalar, x.values))
    return multiply(scalar, x)


@op
def add_n(inputs: Sequence[TensorLike], name: str | None = None) -> Tensor:
    """Add all tensors of a list.

    Args:
      inputs: Tensors of one shape and dtype.
      name: Ignored.

    Raises:
      ValueError: If the list is empty or the shapes differ.

    Example:
      >>> print(tf.add_n([[1, 2], [10, 20], [100, 200]]).numpy())
      [111 222]
    """
    if not inputs:
        raise ValueError(
            "Inputs must be a list of at least one Tensor with the same dtype and shape."
        )
    shapes = {i.shape for i in inputs}
    if len(shapes) > 1:
        raise ValueError(
            f"Inputs to add_n must have the same size and shape, got {[list(i.shape) for i in inputs]}."
        )
    total = inputs[0]
    for item in inputs[1:]:
        total = total + item
    return total


def accumulate_n(
    inputs: Sequence[Any],
    shape: ShapeLike = None,
    tensor_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Add all tensors of a list, which have the same shape; an older name of `add_n`.

    Example:
      >>> print(tf.math.accumulate_n([[1, 2], [10, 20]]).numpy())
      [11 22]
    """
    return add_n(inputs)


@jax.custom_jvp
def _compute_power(x: jax.Array, y: jax.Array) -> jax.Array:
    """Compute x^y; as in TensorFlow, y has no gradient (instead of NaN) if x has no real logarithm."""
    return jnp.power(x, y)


def _compute_power_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: Any
) -> tuple[jax.Array, jax.Array]:
    x, y = primals
    result, zero = _compute_power(x, y), jnp.zeros((), x.dtype)
    total = jnp.zeros_like(result)
    if not isinstance(tangents[0], SymbolicZero):
        exponent = jnp.where(y == 0, jnp.ones((), y.dtype), y - 1)
        total = total + tangents[0] * y * _compute_power(x, exponent)
    if not isinstance(tangents[1], SymbolicZero):
        is_real = not jnp.issubdtype(x.dtype, jnp.complexfloating)
        valid = x > 0 if is_real else x != 0
        logarithm = jnp.log(jnp.where(valid, x, jnp.ones((), x.dtype)))
        total = total + tangents[1] * result * jnp.where(valid, logarithm, zero)
    return result, total


_compute_power.defjvp(_compute_power_jvp, symbolic_zeros=True)


@op(kinds="ifc", name="pow")
def _pow(x: TensorLike, y: TensorLike) -> Tensor:
    if is_integer(x):
        return jnp.power(x, y)
    return _compute_power(*jnp.broadcast_arrays(x, y))


@dispatch_composites
def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Raise `x` to the power of `y` elementwise.

    Args:
      x: A numeric tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Raises:
      InvalidArgumentError: If integers have a negative exponent.

    Example:
      >>> print(tf.pow([2, 3], [3, 2]).numpy(), tf.pow([4.0, 9.0], 0.5).numpy())
      [8 9] [2. 3.]
    """
    if isinstance(y, Tensor) and isinstance(y.array, jax.core.Tracer) and y.dtype.is_integer:
        y = check_exponent(y)
    result = _pow(x, y)
    if isinstance(result, Tensor) and result.dtype.is_integer:
        power = read_static_array(y)
        if power is not None and (power < 0).any():
            raise InvalidArgumentError(
                "Integers to negative integer powers are not allowed [Op:Pow]"
            )
    return result


@op(kinds="f", same=("x", "y"))
def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the angle of the point (x, y) in radians.

    Args:
      y: A floating tensor.
      x: A tensor of the same dtype, broadcast with `y` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.atan2([1.0, 1.0], [1.0, -1.0]).numpy().round(3))
      [0.785 2.356]
    """
    return jnp.arctan2(y, x)


def _select_extreme(x: jax.Array, y: jax.Array, selects_x: jax.Array) -> jax.Array:
    """Select `x` where `selects_x` is true or `x` is NaN, else `y`.

    Unlike in JAX, ties do not halve the gradient. As in TensorFlow, only `selects_x` decides which
    operand has the gradient: next to a NaN this is `y`.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.where(selects_x, x, y)
    # Adding -0 does not change any value.
    unset = jnp.where(x != x, x, jnp.asarray(-0.0, x.dtype))
    return jnp.where(selects_x, x, y + jax.lax.stop_gradient(unset))


@op(kinds="if")
def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the larger of two elements; if they are equal, `x` has the gradient.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.maximum([1, 5], 3).numpy())
      [3 5]
    """
    return _select_extreme(x, y, x >= y)


@op(kinds="if")
def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the smaller of two elements; if they are equal, `x` has the gradient.

    Args:
      x: A tensor of real numbers.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.minimum([1, 5], 3).numpy())
      [1 3]
    """
    return _select_extreme(x, y, x <= y)


@op
def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `(x - y)^2`, or `|x - y|^2` for complex numbers.

    Args:
      x: A numeric tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.squared_difference([1, 5], [4, 4]).numpy())
      [9 1]
    """
    difference = x - y
    if jnp.issubdtype(difference.dtype, jnp.complexfloating):
        return difference * jnp.conj(difference)
    return jnp.square(difference)


@op(kinds="f")
def nextafter(x1: TensorLike, x2: TensorLike, name: str | None = None) -> Tensor:
    """Compute the next representable number after `x1` in the direction of `x2`.

    Args:
      x1: Tensor of float32 or float64.
      x2: A tensor of the same dtype, broadcast with `x1` to a common shape.
      name: Ignored.

    Example:
      >>> tf.math.nextafter(tf.constant(1.0, tf.float64), 2.0).numpy().item()
      1.0000000000000002
    """
    constant = jax.lax.stop_gradient(x1)
    following = jnp.nextafter(constant, jax.lax.stop_gradient(x2))
    # The difference has the gradient of x1, but would be NaN for infinities.
    return following + jnp.where(jnp.isinf(constant), 0, x1 - constant)


@op(kinds="fc")
def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x * log(y)`, but 0 where `x` is 0.

    Args:
      x: A floating or complex tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.xlogy([0.0, 2.0], [0.0, 10.0]).numpy().round(3))
      [0.    4.605]
    """
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log(safe))


@op(kinds="fc")
def xlog1py(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x * log(1 + y)`, but 0 where `x` is 0.

    Args:
      x: A floating or complex tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.xlog1py([0.0, 2.0], [-1.0, 9.0]).numpy().round(3))
      [0.    4.605]
    """
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log1p(safe))


@op(kinds="fc")
def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x / y`, but 0 where `x` is 0.

    Args:
      x: A floating or complex tensor.
      y: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.xdivy([0.0, 6.0], [0.0, 3.0]).numpy())
      [0. 2.]
    """
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x / safe)


@op(kinds="f")
def igamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the lower regularized incomplete gamma function.

    Args:
      a: A floating tensor, positive.
      x: A tensor of the same dtype, broadcast with `a` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.igamma(1.0, [0.0, 1.0]).numpy().round(3))  # 1 - e^-x
      [0.    0.632]
    """
    return jnp.where((a == 0) & (x > 0), jnp.nan, jax.scipy.special.gammainc(a, x))


@op(kinds="f")
def igammac(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the upper regularized incomplete gamma function.

    Args:
      a: A floating tensor, positive.
      x: A tensor of the same dtype, broadcast with `a` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.igammac(1.0, [0.0, 1.0]).numpy().round(3))  # e^-x
      [1.    0.368]
    """
    return jnp.where((a == 0) & (x > 0), jnp.nan, jax.scipy.special.gammaincc(a, x))


@op(kinds="f")
def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """Compute the Hurwitz zeta function.

    Args:
      x: A floating tensor.
      q: A tensor of the same dtype, broadcast with `x` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.zeta([2.0, 4.0], 1.0).numpy().round(3))  # pi^2 / 6, pi^4 / 90
      [1.645 1.082]
    """
    # As in TensorFlow, only q has a gradient.
    x = jax.lax.stop_gradient(x)
    # The two-sided limit at a pole exists for even x only.
    is_pole = (q <= 0) & (q == jnp.floor(q)) & ~(x <= 1)
    at_pole = jnp.where(jnp.mod(x, 2) == 0, jnp.inf, jnp.nan)
    return jnp.where(is_pole, at_pole, jax.scipy.special.zeta(x, q))


@op(kinds="f")
def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the polygamma function of order `a`.

    Args:
      a: A floating tensor of nonnegative integers.
      x: A tensor of the same dtype, broadcast with `a` to a common shape.
      name: Ignored.

    Example:
      >>> print(tf.math.polygamma([0.0, 1.0], 1.0).numpy().round(3))
      [-0.577  1.645]
    """
    result = jax.scipy.special.polygamma(a.astype(jnp.int32), x)
    a = jax.lax.stop_gradient(a)
    is_pole = (x <= 0) & (x == jnp.floor(x)) & (jnp.mod(a, 2) == 0)
    return jnp.where((a == jnp.floor(a)) & ~is_pole, result, jnp.nan)


@op(kinds="f")
def betainc(a: TensorLike, b: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the regularized incomplete beta function, with broadcasting to a common shape.

    Example:
      >>> print(tf.math.betainc(2.0, 2.0, [0.0, 0.5, 1.0]).numpy().round(3))
      [0.  0.5 1. ]
    """
    # As in TensorFlow, only x has a gradient.
    a, b = jax.lax.stop_gradient(a), jax.lax.stop_gradient(b)
    is_valid = (a > 0) & (b > 0) & jnp.isfinite(a) & jnp.isfinite(b)
    return jnp.where(is_valid, jax.scipy.special.betainc(a, b, x), jnp.nan)
