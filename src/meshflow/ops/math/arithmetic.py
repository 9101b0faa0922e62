"""Arithmetic of two operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.math.division import is_integer, known_array

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
    """Adds element by element, with broadcasting.

    Args:
      x: a tensor.
      y: a tensor of the same dtype.
      name: ignored.

    Returns:
      A tensor of the broadcast shape.

    Raises:
      InvalidArgumentError: when dtypes differ or shapes do not broadcast.

    Example:
      >>> import meshflow as tf
      >>> tf.add([1, 2], 1).numpy()
      array([2, 3], dtype=int32)
    """
    return jnp.add(x, y)


@op
def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Subtracts `y` from `x` element by element, with broadcasting.

    Arguments are broadcast; the result has the broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.subtract([3, 2], 1).numpy()
      array([2, 1], dtype=int32)
    """
    return jnp.subtract(x, y)


@op(kinds="ifc")
def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Multiplies element by element, with broadcasting.

    Arguments are broadcast; the result has the broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> tf.multiply([3.0, 2.0], 2.0).numpy()
      array([6., 4.], dtype=float32)
    """
    return jnp.multiply(x, y)


@op(kinds="fc")
def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x * y`, and 0 where `y` is 0 even if `x` is infinite or NaN.

    Args:
      x: a floating or complex tensor.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.multiply_no_nan([2.0, float("inf")], [3.0, 0.0]).numpy())
      [6. 0.]
    """
    return jnp.where(
        y == 0, jnp.zeros((), x.dtype), x * jnp.where(y == 0, jnp.ones((), y.dtype), y)
    )


def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """A scalar times a tensor or `tf.IndexedSlices`.

    Raises:
      ValueError: when `scalar` has dimensions.

    Example:
      >>> import meshflow as tf
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
    """Adds all tensors of a list.

    Args:
      inputs: tensors of one shape and dtype.
      name: ignored.

    Returns:
      Their sum.

    Raises:
      ValueError: for an empty list or different shapes.

    Example:
      >>> import meshflow as tf
      >>> print(tf.add_n([[1, 2], [10, 20], [100, 200]]).numpy())
      [111 222]
    """
    if not inputs:
        raise ValueError(
            "Inputs must be a list of at least one Tensor with the same dtype and shape."
        )
    shapes = {i.shape for i in inputs}
    if len(shapes) > 1:
        raise ValueError(f"add_n needs tensors of one shape, got {sorted(shapes)}.")
    total = inputs[0]
    for item in inputs[1:]:
        total = total + item
    return total


def accumulate_n(
    inputs: Any, shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Tensor:
    """Adds all tensors of a list; the old name of `add_n`.

    All tensors have one shape, and so has the result.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.accumulate_n([[1, 2], [10, 20]]).numpy())
      [11 22]
    """
    return add_n(inputs)


@jax.custom_jvp
def _power(x: Any, y: Any) -> Any:
    """x^y; as in TensorFlow, y has no gradient where x has no real logarithm, instead of NaN."""
    return jnp.power(x, y)


def _power_slope(primals: Any, tangents: Any) -> Any:
    x, y = primals
    result, zero = _power(x, y), jnp.zeros((), x.dtype)
    total = jnp.zeros_like(result)
    if not isinstance(tangents[0], SymbolicZero):
        less = jnp.where(y == 0, jnp.ones((), y.dtype), y - 1)
        total = total + tangents[0] * y * _power(x, less)
    if not isinstance(tangents[1], SymbolicZero):
        real = not jnp.issubdtype(x.dtype, jnp.complexfloating)
        valid = x > 0 if real else x != 0
        logarithm = jnp.log(jnp.where(valid, x, jnp.ones((), x.dtype)))
        total = total + tangents[1] * result * jnp.where(valid, logarithm, zero)
    return result, total


_power.defjvp(_power_slope, symbolic_zeros=True)


@op(kinds="ifc", name="pow")
def _pow(x: TensorLike, y: TensorLike) -> Tensor:
    if is_integer(x):
        return jnp.power(x, y)
    return _power(*jnp.broadcast_arrays(x, y))


def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x` to the power of `y`, element by element.

    Args:
      x: a numeric tensor.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Raises:
      InvalidArgumentError: for integers with a negative power, when it is known.

    Example:
      >>> import meshflow as tf
      >>> print(tf.pow([2, 3], [3, 2]).numpy(), tf.pow([4.0, 9.0], 0.5).numpy())
      [8 9] [2. 3.]
    """
    result = _pow(x, y)
    if isinstance(result, Tensor) and result.dtype.is_integer:
        power = known_array(y)
        if power is not None and (power < 0).any():
            raise InvalidArgumentError(
                "Integers to negative integer powers are not allowed [Op:Pow]"
            )
    return result


@op(kinds="f", same=("x", "y"))
def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Angle of the point (x, y), in radians.

    Args:
      y: a floating tensor.
      x: a tensor of the same dtype, broadcasting with `y`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.atan2([1.0, 1.0], [1.0, -1.0]).numpy().round(3))
      [0.785 2.356]
    """
    return jnp.arctan2(y, x)


def _chosen(x: Any, y: Any, first: Any) -> Any:
    """`x` where `first` or where `x` is NaN, else `y`; JAX's own extremes halve the gradient of ties.

    `first` alone says which one has the gradient, as in TensorFlow: beside a NaN that is `y`.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.where(first, x, y)
    # Adding -0 changes no number.
    unset = jnp.where(x != x, x, jnp.asarray(-0.0, x.dtype))
    return jnp.where(first, x, y + jax.lax.stop_gradient(unset))


@op(kinds="if")
def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The larger of two elements; of equal ones `x` has the gradient.

    Args:
      x: a tensor of real numbers.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.maximum([1, 5], 3).numpy())
      [3 5]
    """
    return _chosen(x, y, x >= y)


@op(kinds="if")
def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The smaller of two elements; of equal ones `x` has the gradient.

    Args:
      x: a tensor of real numbers.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.minimum([1, 5], 3).numpy())
      [1 3]
    """
    return _chosen(x, y, x <= y)


@op
def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`(x - y)^2`.

    Args:
      x: a numeric tensor.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.squared_difference([1, 5], [4, 4]).numpy())
      [9 1]
    """
    return jnp.square(x - y)


@op(kinds="f")
def nextafter(x1: TensorLike, x2: TensorLike, name: str | None = None) -> Tensor:
    """The next representable number after `x1` towards `x2`.

    Args:
      x1: float32 or float64.
      x2: a tensor of the same dtype, broadcasting with `x1`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> tf.math.nextafter(tf.constant(1.0, tf.float64), 2.0).numpy().item()
      1.0000000000000002
    """
    fixed = jax.lax.stop_gradient(x1)
    return jnp.nextafter(fixed, jax.lax.stop_gradient(x2)) + (x1 - fixed)


@op(kinds="fc")
def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x * log(y)`, and 0 where `x` is 0.

    Args:
      x: a floating or complex tensor.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.xlogy([0.0, 2.0], [0.0, 10.0]).numpy().round(3))
      [0.    4.605]
    """
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log(safe))


@op(kinds="fc")
def xlog1py(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x * log(1 + y)`, and 0 where `x` is 0.

    Args:
      x: a floating or complex tensor.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.xlog1py([0.0, 2.0], [-1.0, 9.0]).numpy().round(3))
      [0.    4.605]
    """
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log1p(safe))


@op(kinds="fc")
def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x / y`, and 0 where `x` is 0.

    Args:
      x: a floating or complex tensor.
      y: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.xdivy([0.0, 6.0], [0.0, 3.0]).numpy())
      [0. 2.]
    """
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x / safe)


@op(kinds="f")
def igamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Lower regularized incomplete Gamma function.

    Args:
      a: a floating tensor, positive.
      x: a tensor of the same dtype, broadcasting with `a`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.igamma(1.0, [0.0, 1.0]).numpy().round(3))  # 1 - e^-x
      [0.    0.632]
    """
    return jax.scipy.special.gammainc(a, x)


@op(kinds="f")
def igammac(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Upper regularized incomplete Gamma function.

    Args:
      a: a floating tensor, positive.
      x: a tensor of the same dtype, broadcasting with `a`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.igammac(1.0, [0.0, 1.0]).numpy().round(3))  # e^-x
      [1.    0.368]
    """
    return jax.scipy.special.gammaincc(a, x)


@op(kinds="f")
def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """Hurwitz zeta function.

    Args:
      x: a floating tensor.
      q: a tensor of the same dtype, broadcasting with `x`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.zeta([2.0, 4.0], 1.0).numpy().round(3))  # pi^2 / 6, pi^4 / 90
      [1.645 1.082]
    """
    # As in TensorFlow, only q has a gradient.
    return jax.scipy.special.zeta(jax.lax.stop_gradient(x), q)


@op(kinds="f")
def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Polygamma function of order `a`.

    Args:
      a: a floating tensor of whole numbers from 0.
      x: a tensor of the same dtype, broadcasting with `a`.
      name: ignored.

    Returns:
      Tensor of the shape that both broadcast to.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.polygamma([0.0, 1.0], 1.0).numpy().round(3))
      [-0.577  1.645]
    """
    return jax.scipy.special.polygamma(a.astype(jnp.int32), x)


@op(kinds="f")
def betainc(a: TensorLike, b: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Regularized incomplete beta function.

    Arguments are broadcast; the result has the broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.betainc(2.0, 2.0, [0.0, 0.5, 1.0]).numpy().round(3))
      [0.  0.5 1. ]
    """
    # As in TensorFlow, only x has a gradient.
    return jax.scipy.special.betainc(jax.lax.stop_gradient(a), jax.lax.stop_gradient(b), x)
