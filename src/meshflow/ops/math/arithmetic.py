"""Arithmetic, comparison and logic of two operands, and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.composite import IndexedSlices, SparseTensor
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import op
from meshflow.core.dtypes import DType, as_dtype, float32, float64
from meshflow.core.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.tensor import Tensor, TensorLike

__all__ = [
    "accumulate_n",
    "add",
    "add_n",
    "approximate_equal",
    "atan2",
    "betainc",
    "cast",
    "complex",
    "cross",
    "divide",
    "divide_no_nan",
    "equal",
    "floordiv",
    "floormod",
    "greater",
    "greater_equal",
    "igamma",
    "igammac",
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
    "matmul",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "multiply_no_nan",
    "nextafter",
    "not_equal",
    "polygamma",
    "pow",
    "realdiv",
    "saturate_cast",
    "scalar_mul",
    "squared_difference",
    "subtract",
    "tensordot",
    "truediv",
    "truncatediv",
    "truncatemod",
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

    Example:
      >>> import meshflow as tf
      >>> tf.subtract([3, 2], 1).numpy()
      array([2, 1], dtype=int32)
    """
    return jnp.subtract(x, y)


@op(kinds="ifc")
def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Multiplies element by element, with broadcasting.

    Example:
      >>> import meshflow as tf
      >>> tf.multiply([3.0, 2.0], 2.0).numpy()
      array([6., 4.], dtype=float32)
    """
    return jnp.multiply(x, y)


@op(kinds="fc")
def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x * y`, and 0 where `y` is 0 even if `x` is infinite or NaN."""
    return jnp.where(
        y == 0, jnp.zeros((), x.dtype), x * jnp.where(y == 0, jnp.ones((), y.dtype), y)
    )


def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """A scalar times a tensor.

    Raises:
      ValueError: when `scalar` has dimensions.
    """
    scalar = convert_to_tensor(scalar, dtype_hint=getattr(x, "dtype", None))
    if scalar.shape.rank:
        raise ValueError(f"Only scalar multiply works, got shape {scalar.shape}")
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
    """Adds all tensors of a list; the old name of `add_n`."""
    return add_n(inputs)


@op(kinds="ifc")
def truediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divides as Python 3 does: integers give floats (float64 from 32 bits on).

    Example:
      >>> import meshflow as tf
      >>> tf.truediv(7, 2).numpy()
      np.float64(3.5)
    """
    return jnp.divide(*_divisible(x, y))


def _divisible(x: Any, y: Any) -> tuple[Any, Any]:
    """Integers as floats, others as they are."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return x, y
    kind = jnp.float32 if x.dtype.itemsize <= 2 else jnp.float64
    return x.astype(kind), y.astype(kind)


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Any:
    """Divides as Python 3 does, see `truediv`."""
    return truediv(x, y)


def _known(value: Any) -> np.ndarray | None:
    """The numbers of an operand, None while they are only known at run time."""
    array = convert_to_tensor(value)._value
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


def _divided(result: Any, y: Any, what: str) -> Any:
    """The result, unless it comes from a division of integers by zero."""
    if isinstance(result, Tensor) and result.dtype.is_integer:
        divisor = _known(y)
        if divisor is not None and (divisor == 0).any():
            raise InvalidArgumentError(f"Integer division by zero [Op:{what}]")
    return result


@op(kinds="if", name="floordiv", differentiable=False)
def _floordiv(x: TensorLike, y: TensorLike) -> Tensor:
    return jnp.floor_divide(x, y)


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divides and rounds towards minus infinity.

    Example:
      >>> import meshflow as tf
      >>> tf.math.floordiv(-7, 2).numpy()
      np.int32(-4)
    """
    return _divided(_floordiv(x, y), y, "floordiv")


@op(kinds="if", name="floormod")
def _floormod(x: TensorLike, y: TensorLike) -> Tensor:
    return jnp.mod(x, y)


def floormod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Remainder with the sign of the divisor, as in Python."""
    return _divided(_floormod(x, y), y, "floormod")


mod = floormod


@op(kinds="if", name="truncatediv", differentiable=False)
def _truncatediv(x: TensorLike, y: TensorLike) -> Tensor:
    return jax.lax.div(*jnp.broadcast_arrays(x, y)) if _integers(x) else jnp.trunc(x / y)


def truncatediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x / y` rounded towards zero.

    Example:
      >>> import meshflow as tf
      >>> int(tf.truncatediv(-7, 2))
      -3
    """
    return _divided(_truncatediv(x, y), y, "truncatediv")


@op(kinds="if", name="truncatemod")
def _truncatemod(x: TensorLike, y: TensorLike) -> Tensor:
    return jax.lax.rem(*jnp.broadcast_arrays(x, y))


def truncatemod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The remainder of `truncatediv`, which has the sign of x."""
    return _divided(_truncatemod(x, y), y, "truncatemod")


@op(kinds="fc")
def realdiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x / y` of floats."""
    return x / y


def _integers(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


@op(kinds="ifc")
def divide_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x / y`, and 0 where `y` is 0.

    Example:
      >>> import meshflow as tf
      >>> tf.math.divide_no_nan([1.0, 1.0], [2.0, 0.0]).numpy()
      array([0.5, 0. ], dtype=float32)
    """
    x, y = _divisible(x, y)
    safe = jnp.where(y == 0, jnp.ones((), y.dtype), y)
    return jnp.where(y == 0, jnp.zeros((), x.dtype), x / safe)


@op(kinds="ifc", name="pow")
def _pow(x: TensorLike, y: TensorLike) -> Tensor:
    return jnp.power(x, y)


def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x` to the power of `y`, element by element.

    Raises:
      InvalidArgumentError: for integers with a negative power, when it is known.
    """
    result = _pow(x, y)
    if isinstance(result, Tensor) and result.dtype.is_integer:
        power = _known(y)
        if power is not None and (power < 0).any():
            raise InvalidArgumentError(
                "Integers to negative integer powers are not allowed [Op:Pow]"
            )
    return result


@op(kinds="f", same=("x", "y"))
def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Angle of the point (x, y), in radians."""
    return jnp.arctan2(y, x)


def _chosen(x: Any, y: Any, first: Any) -> Any:
    """`x` where `first` or where `x` is NaN, else `y`; JAX's own extremes halve the gradient of ties."""
    return jnp.where(first | (x != x), x, y)


@op(kinds="if")
def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The larger of two elements; of equal ones `x` has the gradient."""
    return _chosen(x, y, x >= y)


@op(kinds="if")
def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The smaller of two elements; of equal ones `x` has the gradient."""
    return _chosen(x, y, x <= y)


@op
def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`(x - y)^2`."""
    return jnp.square(x - y)


@op(kinds="f")
def nextafter(x1: TensorLike, x2: TensorLike, name: str | None = None) -> Tensor:
    """The next representable number after `x1` towards `x2`."""
    fixed = jax.lax.stop_gradient(x1)
    return jnp.nextafter(fixed, jax.lax.stop_gradient(x2)) + (x1 - fixed)


@op(kinds="fc")
def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x * log(y)`, and 0 where `x` is 0."""
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log(safe))


@op(kinds="fc")
def xlog1py(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x * log(1 + y)`, and 0 where `x` is 0."""
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log1p(safe))


@op(kinds="fc")
def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """`x / y`, and 0 where `x` is 0."""
    safe = jnp.where(x == 0, jnp.ones((), y.dtype), y)
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x / safe)


@op(kinds="f")
def igamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Lower regularized incomplete Gamma function."""
    return jax.scipy.special.gammainc(a, x)


@op(kinds="f")
def igammac(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Upper regularized incomplete Gamma function."""
    return jax.scipy.special.gammaincc(a, x)


@op(kinds="f")
def zeta(x: TensorLike, q: TensorLike, name: str | None = None) -> Tensor:
    """Hurwitz zeta function."""
    # As in TensorFlow, only q has a gradient.
    return jax.scipy.special.zeta(jax.lax.stop_gradient(x), q)


@op(kinds="f")
def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Polygamma function of order `a`."""
    return jax.scipy.special.polygamma(a.astype(jnp.int32), x)


@op(kinds="f")
def betainc(a: TensorLike, b: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Regularized incomplete beta function."""
    # As in TensorFlow, only x has a gradient.
    return jax.scipy.special.betainc(jax.lax.stop_gradient(a), jax.lax.stop_gradient(b), x)


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


@op(same=(), name="cast")
def _cast(x: TensorLike, dtype: DType) -> Tensor:
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype.dtype, jnp.complexfloating
    ):
        x = jnp.real(x)
    if dtype.is_bool:
        return x != 0
    return jax.lax.convert_element_type(x, dtype.dtype)


def cast(x: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """Converts to another dtype; floats become integers by dropping the fraction.

    Args:
      x: a tensor.
      dtype: the dtype of the result.
      name: ignored.

    Returns:
      A tensor of the shape of `x`; `x` itself when it has the dtype.

    Example:
      >>> import meshflow as tf
      >>> tf.cast([1.8, -1.8], tf.int32).numpy()
      array([ 1, -1], dtype=int32)
    """
    wanted = as_dtype(dtype)
    if isinstance(x, Tensor) and x.dtype is wanted:
        return x
    if isinstance(x, (SparseTensor, IndexedSlices)):
        return x.with_values(cast(x.values, wanted))
    return _cast(convert_to_tensor(x) if x is None else x, wanted)


@op(same=(), name="saturate_cast")
def _saturate_cast(value: TensorLike, dtype: DType) -> Tensor:
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not dtype.is_complex:
        value = jnp.real(value)
    if dtype.is_complex or dtype.is_bool:
        return value.astype(dtype.dtype)
    low, high = _ends(value.dtype, dtype)
    return jnp.clip(value, low, high).astype(dtype.dtype)


def _ends(own: Any, wanted: DType) -> tuple[Any, Any]:
    """The least and largest numbers of dtype `own` that `wanted` can hold."""
    if own == jnp.bool_:
        return False, True
    if jnp.issubdtype(own, jnp.integer):
        if wanted.is_floating:
            return None, None
        limits = jnp.iinfo(own)
        return max(int(limits.min), int(wanted.min)), min(int(limits.max), int(wanted.max))
    floats = jnp.finfo(own)
    low = max(float(floats.min), float(wanted.min))
    high = min(float(floats.max), float(wanted.max))
    # Rounding to the nearest may lead out of the range: step back to the number before.
    ends = np.asarray([low, high], own)
    outside = ends.astype(np.float64) > high
    ends = np.where(outside, np.nextafter(ends, np.zeros((), own)), ends)
    return ends[0], ends[1]


def saturate_cast(value: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """Converts to another dtype, clipping to its range first."""
    return _saturate_cast(value, as_dtype(dtype))


@op(kinds="f")
def complex(real: TensorLike, imag: TensorLike, name: str | None = None) -> Tensor:
    """Complex numbers from real and imaginary parts."""
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@op
def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Cross product along the last dimension, of size 3."""
    if a.shape[-1:] != (3,) or a.shape != b.shape:
        raise InvalidValueError(
            "Cross-products are only defined for two tensors of one shape whose last size is 3, got "
            f"{list(a.shape)} and {list(b.shape)}."
        )
    return jnp.cross(a, b)


@op(kinds="ifc")
def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: Any = None,
    name: str | None = None,
) -> Tensor:
    """Matrix product, over any batch dimensions.

    Args:
      a: tensor of shape [..., m, k].
      b: tensor of shape [..., k, n], of the same dtype.
      transpose_a: whether `a` is transposed first.
      transpose_b: whether `b` is transposed first.
      adjoint_a: whether `a` is conjugated and transposed first.
      adjoint_b: whether `b` is conjugated and transposed first.
      a_is_sparse: ignored.
      b_is_sparse: ignored.
      output_type: dtype of the result; default that of the operands.
      name: ignored.

    Returns:
      Tensor of shape [..., m, n].

    Raises:
      InvalidArgumentError: when ranks are below 2 or inner sizes differ.
      ValueError: when both transpose and adjoint are asked for.

    Example:
      >>> import meshflow as tf
      >>> tf.matmul([[1.0, 2.0]], [[3.0], [4.0]]).numpy()
      array([[11.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError(
            "Only one of transpose_a and adjoint_a (transpose_b and adjoint_b) can be True."
        )
    if a.ndim < 2 or b.ndim < 2:
        raise InvalidValueError(
            f"In[0] and In[1] of matmul must have at least 2 dimensions, got shapes {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    a = (
        jnp.conj(jnp.swapaxes(a, -1, -2))
        if adjoint_a
        else jnp.swapaxes(a, -1, -2)
        if transpose_a
        else a
    )
    b = (
        jnp.conj(jnp.swapaxes(b, -1, -2))
        if adjoint_b
        else jnp.swapaxes(b, -1, -2)
        if transpose_b
        else b
    )
    if a.shape[-1] != b.shape[-2]:
        raise InvalidValueError(
            f"Matrix size-incompatible: In[0]: {list(a.shape)}, In[1]: {list(b.shape)} [Op:MatMul]"
        )
    result = jnp.matmul(a, b)
    return result if output_type is None else result.astype(as_dtype(output_type).dtype)


@op
def tensordot(a: TensorLike, b: TensorLike, axes: Any, name: str | None = None) -> Tensor:
    """Sums products over the given dimensions of `a` and `b`.

    Args:
      a: a tensor.
      b: a tensor of the same dtype.
      axes: a number n (last n of `a` with first n of `b`) or a pair of dimension lists.
      name: ignored.
    """
    return jnp.tensordot(a, b, axes)


_ = (float32, float64)
