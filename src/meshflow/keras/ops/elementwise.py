"""Functions of each element, and of pairs of elements.

Example:
  >>> ops.sqrt([4, 9]).numpy().tolist(), ops.add(tf.constant([1]), 0.5).dtype
  ([2.0, 3.0], tf.float32)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import array_op, make_binary, make_bitwise, make_unary
from meshflow.keras.ops.promotion import as_float, as_tensor, promote
from meshflow.ops import casting, math

__all__ = [
    *("abs", "absolute", "add", "allclose", "angle", "arccos", "arccosh", "arcsin", "arcsinh"),
    *("arctan", "arctan2", "arctanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift"),
    *("bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cbrt", "ceil"),
    *("clip", "conj", "conjugate", "cos", "cosh", "deg2rad", "divide", "divide_no_nan", "equal"),
    *("exp", "exp2", "expm1", "fabs", "floor", "floor_divide", "fmax"),
    *("fmin", "fmod", "gcd", "greater", "greater_equal", "heaviside", "hypot", "i0", "imag"),
    *("isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "lcm", "ldexp"),
    *("left_shift", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp"),
    *("logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum"),
    *("minimum", "mod", "multiply", "nan_to_num", "negative", "nextafter", "not_equal"),
    *("power", "rad2deg", "real", "reciprocal", "right_shift", "round"),
    *("sign", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "subtract", "tan", "tanh"),
    *("true_divide", "trunc", "view"),
]


def _real_abs(x: Tensor) -> Tensor:
    if dtypes.as_dtype(x.dtype).is_complex:
        raise TypeError(
            f"fabs requires a real tensor, got {dtypes.as_dtype(x.dtype).name}. Use ops.abs instead."
        )
    return math.abs(x)


def _square(x: Tensor) -> Tensor:
    x = casting.cast(x, "int32") if dtypes.as_dtype(x.dtype).is_bool else x
    return math.multiply(x, x)


abs = make_unary("abs", math.abs, "the absolute value", keeps=True)
absolute = abs
fabs = make_unary("fabs", _real_abs, "the absolute value, as a real number,")
negative = make_unary("negative", math.negative, "`-x`", keeps=True)
sign = make_unary("sign", math.sign, "the sign, -1, 0 or 1,", keeps=True)
square = make_unary("square", _square, "`x * x`", keeps=True)
conj = make_unary("conj", math.conj, "the complex conjugate", keeps=True)
conjugate = conj
real = make_unary("real", jnp.real, "the real part", keeps=True, array=True)
imag = make_unary("imag", jnp.imag, "the imaginary part", keeps=True, array=True)
angle = make_unary(
    "angle", lambda x: jnp.angle(x).astype(x.real.dtype), "the angle in radians", array=True
)

sqrt = make_unary("sqrt", math.sqrt, "the square root")
cbrt = make_unary("cbrt", jnp.cbrt, "the cube root", wide=True, array=True)
reciprocal = make_unary("reciprocal", math.reciprocal, "`1 / x`")
exp = make_unary("exp", math.exp, "`e^x`")
exp2 = make_unary("exp2", jnp.exp2, "`2^x`", array=True)
expm1 = make_unary("expm1", math.expm1, "`e^x - 1`, accurate near 0,")
log = make_unary("log", math.log, "the natural logarithm")
log1p = make_unary("log1p", math.log1p, "`log(1 + x)`, accurate near 0,")
log2 = make_unary("log2", jnp.log2, "the logarithm to the base 2", array=True)
log10 = make_unary("log10", jnp.log10, "the logarithm to the base 10", array=True)
sin = make_unary("sin", math.sin, "the sine, with x in radians,")
cos = make_unary("cos", math.cos, "the cosine, with x in radians,")
tan = make_unary("tan", math.tan, "the tangent, with x in radians,")
arcsin = make_unary("arcsin", math.asin, "the inverse sine in radians")
arccos = make_unary("arccos", math.acos, "the inverse cosine in radians")
arctan = make_unary("arctan", math.atan, "the inverse tangent in radians")
sinh = make_unary("sinh", math.sinh, "the hyperbolic sine")
cosh = make_unary("cosh", math.cosh, "the hyperbolic cosine")
tanh = make_unary("tanh", math.tanh, "the hyperbolic tangent")
arcsinh = make_unary("arcsinh", math.asinh, "the inverse hyperbolic sine")
arccosh = make_unary("arccosh", math.acosh, "the inverse hyperbolic cosine")
arctanh = make_unary("arctanh", math.atanh, "the inverse hyperbolic tangent")
sinc = make_unary("sinc", jnp.sinc, "`sin(pi x) / (pi x)`", array=True)
i0 = make_unary("i0", special.i0, "the modified Bessel function of order 0", wide=True, array=True)
deg2rad = make_unary("deg2rad", jnp.deg2rad, "radians from degrees", wide=True, array=True)
rad2deg = make_unary("rad2deg", jnp.rad2deg, "degrees from radians", wide=True, array=True)
ceil = make_unary("ceil", jnp.ceil, "the smallest integer not below x", array=True)
floor = make_unary("floor", jnp.floor, "the largest integer not above x", array=True)
trunc = make_unary("trunc", jnp.trunc, "the integer part", keeps=True, array=True)

_PREDICATE = {"keeps": True, "array": True, "differentiable": False}
isfinite = make_unary(
    "isfinite", jnp.isfinite, "whether x is neither infinite nor NaN", **_PREDICATE
)
isinf = make_unary("isinf", jnp.isinf, "whether x is infinite", **_PREDICATE)
isnan = make_unary("isnan", jnp.isnan, "whether x is NaN", **_PREDICATE)
isneginf = make_unary("isneginf", jnp.isneginf, "whether x is minus infinity", **_PREDICATE)
isposinf = make_unary("isposinf", jnp.isposinf, "whether x is plus infinity", **_PREDICATE)
isreal = make_unary("isreal", jnp.isreal, "whether the imaginary part is 0", **_PREDICATE)
signbit = make_unary("signbit", jnp.signbit, "whether the sign bit is set", **_PREDICATE)
logical_not = make_unary(
    "logical_not", lambda x: jnp.logical_not(x), "whether x is false or 0", **_PREDICATE
)
bitwise_invert = make_unary("bitwise_invert", jnp.invert, "the bitwise complement", **_PREDICATE)
bitwise_not = bitwise_invert


def _add(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return jnp.logical_or(x1, x2) if x1.dtype == bool else jnp.add(x1, x2)


def _multiply(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return jnp.logical_and(x1, x2) if x1.dtype == bool else jnp.multiply(x1, x2)


add = make_binary("add", _add, "`x1 + x2`", array=True)
subtract = make_binary("subtract", jnp.subtract, "`x1 - x2`", array=True)
multiply = make_binary("multiply", _multiply, "`x1 * x2`", array=True)
divide = make_binary("divide", jnp.divide, "`x1 / x2`, a real number", floats=True, array=True)
true_divide = divide
divide_no_nan = make_binary(
    "divide_no_nan", math.divide_no_nan, "`x1 / x2`, or 0 if `x2` is 0", floats=True
)
power = make_binary("power", jnp.power, "`x1 ** x2`", array=True)
maximum = make_binary("maximum", math.maximum, "the maximum of pairs of elements")
minimum = make_binary("minimum", math.minimum, "the minimum of pairs of elements")
fmax = make_binary("fmax", jnp.fmax, "the maximum of pairs of elements, ignoring NaN", array=True)
fmin = make_binary("fmin", jnp.fmin, "the minimum of pairs of elements, ignoring NaN", array=True)
mod = make_binary("mod", jnp.mod, "the remainder of `x1 / x2`, with the sign of `x2`", array=True)
fmod = make_binary(
    "fmod", jnp.fmod, "the remainder of `x1 / x2`, with the sign of `x1`", array=True
)
floor_divide = make_binary("floor_divide", jnp.floor_divide, "`x1 / x2`, rounded down", array=True)
arctan2 = make_binary(
    "arctan2", math.atan2, "the angle of the point (`x2`, `x1`)", floats=True, weak=False
)
hypot = make_binary("hypot", jnp.hypot, "`sqrt(x1^2 + x2^2)`", wide=True, array=True)
logaddexp = make_binary(
    "logaddexp", jnp.logaddexp, "`log(exp(x1) + exp(x2))`", floats=True, array=True
)
logaddexp2 = make_binary(
    "logaddexp2", jnp.logaddexp2, "`log2(2^x1 + 2^x2)`", floats=True, weak=False, array=True
)
heaviside = make_binary(
    "heaviside",
    jnp.heaviside,
    "0, `x2` or 1, for negative, zero and positive `x1`",
    wide=True,
    array=True,
)
nextafter = make_binary(
    "nextafter",
    jnp.nextafter,
    "the next representable number after `x1` towards `x2`",
    floats=True,
    array=True,
    differentiable=False,
)

_INTEGRAL = {"array": True, "differentiable": False}
gcd = make_binary("gcd", jnp.gcd, "the greatest common divisor", **_INTEGRAL)
lcm = make_binary("lcm", jnp.lcm, "the least common multiple", **_INTEGRAL)
equal = make_binary("equal", jnp.equal, "whether `x1 == x2`", **_INTEGRAL)
not_equal = make_binary("not_equal", jnp.not_equal, "whether `x1 != x2`", **_INTEGRAL)
greater = make_binary("greater", jnp.greater, "whether `x1 > x2`", **_INTEGRAL)
greater_equal = make_binary("greater_equal", jnp.greater_equal, "whether `x1 >= x2`", **_INTEGRAL)
less = make_binary("less", jnp.less, "whether `x1 < x2`", **_INTEGRAL)
less_equal = make_binary("less_equal", jnp.less_equal, "whether `x1 <= x2`", **_INTEGRAL)
logical_and = make_binary("logical_and", jnp.logical_and, "whether both are true", **_INTEGRAL)
logical_or = make_binary("logical_or", jnp.logical_or, "whether any is true", **_INTEGRAL)
logical_xor = make_binary(
    "logical_xor", jnp.logical_xor, "whether exactly one is true", **_INTEGRAL
)

bitwise_and = make_bitwise("bitwise_and", jnp.bitwise_and, "the bitwise and")
bitwise_or = make_bitwise("bitwise_or", jnp.bitwise_or, "the bitwise or")
bitwise_xor = make_bitwise("bitwise_xor", jnp.bitwise_xor, "the bitwise exclusive or")
bitwise_left_shift = make_bitwise("bitwise_left_shift", jnp.left_shift, "`x << y`")
left_shift = bitwise_left_shift
bitwise_right_shift = make_bitwise("bitwise_right_shift", jnp.right_shift, "`x >> y`")
right_shift = bitwise_right_shift


def clip(x: TensorLike, x_min: TensorLike, x_max: TensorLike) -> Tensor:
    """Limit elements to the range from `x_min` to `x_max`.

    Args:
      x: A tensor.
      x_min: Minimum, which takes precedence if it is above `x_max`.
      x_max: Maximum.

    Example:
      >>> ops.clip([-2, 0, 5], -1, 3).numpy().tolist()
      [-1, 0, 3]
    """
    x = as_tensor(x)
    if x.dtype == dtypes.bool_:
        x = casting.cast(x, "int32")
    x, x_min, x_max = promote(x, _clamp_to_dtype(x_min, x.dtype), _clamp_to_dtype(x_max, x.dtype))
    return math.maximum(math.minimum(x, x_max), x_min)


def _clamp_to_dtype(bound: TensorLike, dtype: DTypeLike) -> TensorLike:
    """Limit a Python integer to the range of an integer dtype."""
    kind = dtypes.as_dtype(dtype)
    if type(bound) is not int or not kind.is_integer:
        return bound
    return min(max(bound, int(kind.min)), int(kind.max))


def _round_integers(x: jax.Array, unit: int) -> jax.Array:
    """Round integers to multiples of `unit`, halves to even multiples."""
    wide = x.astype("int64")
    count, remainder = jnp.divmod(wide, unit)
    rounds_up = (2 * remainder > unit) | ((2 * remainder == unit) & (count % 2 == 1))
    return ((count + rounds_up) * unit).astype(x.dtype)


@array_op()
def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """Round to a number of decimals; halves are rounded to even.

    Args:
      x: A tensor.
      decimals: Number of decimals, which may be negative.

    Example:
      >>> ops.round([0.5, 1.5, 2.6]).numpy().tolist()
      [0.0, 2.0, 3.0]
    """
    if decimals < 0 and jnp.issubdtype(x.dtype, jnp.integer):
        return _round_integers(x, 10**-decimals)
    return jnp.round(x, decimals)


@array_op()
def nan_to_num(
    x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN and infinities by numbers.

    Args:
      x: A tensor.
      nan: Replacement of NaN.
      posinf: Replacement of infinity; default the dtype's maximum.
      neginf: Replacement of minus infinity; default the dtype's minimum.

    Example:
      >>> ops.nan_to_num([float("nan"), 1.0]).numpy().tolist()
      [0.0, 1.0]
    """
    return jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


@op(same=("x1", "x2"), name="isclose", differentiable=False)
def _isclose(x1: TensorLike, x2: TensorLike, rtol: float, atol: float, equal_nan: bool) -> Any:
    return jnp.isclose(x1, x2, rtol, atol, equal_nan)


@as_single_layer()
def isclose(
    x1: TensorLike, x2: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Check whether `|x1 - x2| <= atol + rtol |x2|` for each element.

    Args:
      x1: A tensor.
      x2: A tensor.
      rtol: Relative tolerance.
      atol: Absolute tolerance.
      equal_nan: Whether NaN is close to NaN.

    Example:
      >>> ops.isclose([1.0, 2.0], [1.0, 2.1]).numpy().tolist()
      [True, False]
    """
    x1, x2 = promote(x1, x2)
    return _isclose(x1, x2, rtol, atol, equal_nan)


def allclose(
    x1: TensorLike, x2: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Check whether all elements are close; see `isclose`.

    Args:
      x1: A tensor.
      x2: A tensor.
      rtol: Relative tolerance.
      atol: Absolute tolerance.
      equal_nan: Whether NaN is close to NaN.

    Example:
      >>> bool(ops.allclose([1.0], [1.000001]))
      True
    """
    return math.reduce_all(isclose(x1, x2, rtol, atol, equal_nan))


@op(same=(), name="ldexp")
def _ldexp(x1: TensorLike, x2: TensorLike) -> Any:
    return x1 * jnp.exp2(x2.astype(x1.dtype))


@as_single_layer()
def ldexp(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute `x1 * 2^x2`.

    Args:
      x1: A tensor.
      x2: A tensor of integers.

    Example:
      >>> ops.ldexp([0.75, 1.5], [1, 2]).numpy().tolist()
      [1.5, 6.0]
    """
    x2 = as_tensor(x2)
    if not dtypes.as_dtype(x2.dtype).is_integer:
        raise TypeError(
            f"ldexp requires an integer tensor `x2`, got {dtypes.as_dtype(x2.dtype).name}."
        )
    return _ldexp(as_float(x1), x2)


@op(same=(), name="view", differentiable=False)
def _view(x: TensorLike, dtype: DType) -> Any:
    return x.view(dtype.dtype)


def view(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Reinterpret the bytes of a tensor as another dtype, which may resize the last axis.

    Args:
      x: A tensor.
      dtype: Dtype of the result; default the dtype of `x`.

    Example:
      >>> ops.view(ops.array([1, 2], "int32"), "int16").numpy().tolist()
      [1, 0, 2, 0]
    """
    x = as_tensor(x)
    return x if dtype is None else _view(x, dtypes.as_dtype(dtype))
