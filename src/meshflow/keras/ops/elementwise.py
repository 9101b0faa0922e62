"""Functions of each element, and of pairs of elements.

Example:
  >>> import meshflow as tf
  >>> from meshflow.keras import ops
  >>> ops.sqrt([4, 9]).numpy().tolist(), ops.add(tf.constant([1]), 0.5).dtype
  ([2.0, 3.0], tf.float32)
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.special as special

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.making import binary, bits, unary
from meshflow.keras.ops.promotion import as_float, common, tensor
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


def _real_abs(x: Any) -> Any:
    if dtypes.as_dtype(x.dtype).is_complex:
        raise TypeError(
            f"fabs takes real numbers, got {dtypes.as_dtype(x.dtype).name}; see ops.abs."
        )
    return math.abs(x)


def _squared(x: Any) -> Any:
    x = casting.cast(x, "int32") if dtypes.as_dtype(x.dtype).is_bool else x
    return math.multiply(x, x)


abs = unary("abs", math.abs, "Absolute value.", keeps=True)
absolute = abs
fabs = unary("fabs", _real_abs, "Absolute value, as a real number.")
negative = unary("negative", math.negative, "`-x`.", keeps=True)
sign = unary("sign", math.sign, "-1, 0 or 1 by the sign.", keeps=True)
square = unary("square", _squared, "`x * x`.", keeps=True)
conj = unary("conj", math.conj, "The complex conjugate.", keeps=True)
conjugate = conj
real = unary("real", jnp.real, "The real part.", keeps=True, array=True)
imag = unary("imag", jnp.imag, "The imaginary part.", keeps=True, array=True)
angle = unary(
    "angle",
    lambda x: jnp.angle(x).astype(x.real.dtype),
    "The angle of a complex number, in radians.",
    array=True,
)

sqrt = unary("sqrt", math.sqrt, "Square root.")
cbrt = unary("cbrt", jnp.cbrt, "Cube root.", wide=True, array=True)
reciprocal = unary("reciprocal", math.reciprocal, "`1 / x`.")
exp = unary("exp", math.exp, "`e^x`.")
exp2 = unary("exp2", jnp.exp2, "`2^x`.", array=True)
expm1 = unary("expm1", math.expm1, "`e^x - 1`, accurate near 0.")
log = unary("log", math.log, "Natural logarithm.")
log1p = unary("log1p", math.log1p, "`log(1 + x)`, accurate near 0.")
log2 = unary("log2", jnp.log2, "Logarithm to the base 2.", array=True)
log10 = unary("log10", jnp.log10, "Logarithm to the base 10.", array=True)
sin = unary("sin", math.sin, "Sine; x in radians.")
cos = unary("cos", math.cos, "Cosine; x in radians.")
tan = unary("tan", math.tan, "Tangent; x in radians.")
arcsin = unary("arcsin", math.asin, "Inverse sine, in radians.")
arccos = unary("arccos", math.acos, "Inverse cosine, in radians.")
arctan = unary("arctan", math.atan, "Inverse tangent, in radians.")
sinh = unary("sinh", math.sinh, "Hyperbolic sine.")
cosh = unary("cosh", math.cosh, "Hyperbolic cosine.")
tanh = unary("tanh", math.tanh, "Hyperbolic tangent.")
arcsinh = unary("arcsinh", math.asinh, "Inverse hyperbolic sine.")
arccosh = unary("arccosh", math.acosh, "Inverse hyperbolic cosine.")
arctanh = unary("arctanh", math.atanh, "Inverse hyperbolic tangent.")
sinc = unary("sinc", jnp.sinc, "`sin(pi x) / (pi x)`.", array=True)
i0 = unary("i0", special.i0, "Modified Bessel function of order 0.", wide=True, array=True)
deg2rad = unary("deg2rad", jnp.deg2rad, "Degrees as radians.", wide=True, array=True)
rad2deg = unary("rad2deg", jnp.rad2deg, "Radians as degrees.", wide=True, array=True)
ceil = unary("ceil", jnp.ceil, "The next integer upwards.", array=True)
floor = unary("floor", jnp.floor, "The next integer downwards.", array=True)
trunc = unary("trunc", jnp.trunc, "Without what follows the point.", keeps=True, array=True)

_whether = {"keeps": True, "array": True, "differentiable": False}
isfinite = unary(
    "isfinite", jnp.isfinite, "Whether an element is neither infinite nor NaN.", **_whether
)
isinf = unary("isinf", jnp.isinf, "Whether an element is infinite.", **_whether)
isnan = unary("isnan", jnp.isnan, "Whether an element is NaN.", **_whether)
isneginf = unary("isneginf", jnp.isneginf, "Whether an element is minus infinity.", **_whether)
isposinf = unary("isposinf", jnp.isposinf, "Whether an element is plus infinity.", **_whether)
isreal = unary("isreal", jnp.isreal, "Whether the imaginary part is 0.", **_whether)
signbit = unary("signbit", jnp.signbit, "Whether the sign bit is set.", **_whether)
logical_not = unary(
    "logical_not", lambda x: jnp.logical_not(x), "Whether an element is false or 0.", **_whether
)
bitwise_invert = unary("bitwise_invert", jnp.invert, "All bits turned over.", **_whether)
bitwise_not = bitwise_invert


def _add(x1: Any, x2: Any) -> Any:
    return jnp.logical_or(x1, x2) if x1.dtype == bool else jnp.add(x1, x2)


def _multiply(x1: Any, x2: Any) -> Any:
    return jnp.logical_and(x1, x2) if x1.dtype == bool else jnp.multiply(x1, x2)


add = binary("add", _add, "`x1 + x2`.", array=True)
subtract = binary("subtract", jnp.subtract, "`x1 - x2`.", array=True)
multiply = binary("multiply", _multiply, "`x1 * x2`.", array=True)
divide = binary("divide", jnp.divide, "`x1 / x2`, a real number.", floats=True, array=True)
true_divide = divide
divide_no_nan = binary(
    "divide_no_nan", math.divide_no_nan, "`x1 / x2`, and 0 where `x2` is 0.", floats=True
)
power = binary("power", jnp.power, "`x1 ** x2`.", array=True)
maximum = binary("maximum", math.maximum, "The larger one.")
minimum = binary("minimum", math.minimum, "The smaller one.")
fmax = binary("fmax", jnp.fmax, "The larger one; NaN loses.", array=True)
fmin = binary("fmin", jnp.fmin, "The smaller one; NaN loses.", array=True)
mod = binary("mod", jnp.mod, "What a division downwards leaves, with the sign of `x2`.", array=True)
fmod = binary(
    "fmod", jnp.fmod, "What a division towards 0 leaves, with the sign of `x1`.", array=True
)
floor_divide = binary("floor_divide", jnp.floor_divide, "`x1 / x2`, downwards.", array=True)
arctan2 = binary(
    "arctan2", math.atan2, "The angle of the point (`x2`, `x1`).", floats=True, weak=False
)
hypot = binary("hypot", jnp.hypot, "`sqrt(x1^2 + x2^2)`.", wide=True, array=True)
logaddexp = binary("logaddexp", jnp.logaddexp, "`log(exp(x1) + exp(x2))`.", floats=True, array=True)
logaddexp2 = binary(
    "logaddexp2", jnp.logaddexp2, "`log2(2^x1 + 2^x2)`.", floats=True, weak=False, array=True
)
heaviside = binary(
    "heaviside",
    jnp.heaviside,
    "0, `x2` or 1, for negative, zero and positive `x1`.",
    wide=True,
    array=True,
)
nextafter = binary(
    "nextafter",
    jnp.nextafter,
    "The next number after `x1` towards `x2`.",
    floats=True,
    array=True,
    differentiable=False,
)

_asks = {"array": True, "differentiable": False}
gcd = binary("gcd", jnp.gcd, "The greatest common divisor.", **_asks)
lcm = binary("lcm", jnp.lcm, "The least common multiple.", **_asks)
equal = binary("equal", jnp.equal, "Whether both are equal.", **_asks)
not_equal = binary("not_equal", jnp.not_equal, "Whether they differ.", **_asks)
greater = binary("greater", jnp.greater, "Whether `x1 > x2`.", **_asks)
greater_equal = binary("greater_equal", jnp.greater_equal, "Whether `x1 >= x2`.", **_asks)
less = binary("less", jnp.less, "Whether `x1 < x2`.", **_asks)
less_equal = binary("less_equal", jnp.less_equal, "Whether `x1 <= x2`.", **_asks)
logical_and = binary("logical_and", jnp.logical_and, "Whether both are true.", **_asks)
logical_or = binary("logical_or", jnp.logical_or, "Whether one is true.", **_asks)
logical_xor = binary("logical_xor", jnp.logical_xor, "Whether exactly one is true.", **_asks)

bitwise_and = bits("bitwise_and", jnp.bitwise_and, "Bits set in both.")
bitwise_or = bits("bitwise_or", jnp.bitwise_or, "Bits set in one.")
bitwise_xor = bits("bitwise_xor", jnp.bitwise_xor, "Bits set in exactly one.")
bitwise_left_shift = bits("bitwise_left_shift", jnp.left_shift, "Bits moved up.")
left_shift = bitwise_left_shift
bitwise_right_shift = bits("bitwise_right_shift", jnp.right_shift, "Bits moved down.")
right_shift = bitwise_right_shift


def clip(x: TensorLike, x_min: TensorLike, x_max: TensorLike) -> Tensor:
    """Elements not below `x_min` and not above `x_max`.

    Args:
      x: a tensor.
      x_min: the least value, which holds where it is above `x_max`.
      x_max: the greatest value.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.clip([-2, 0, 5], -1, 3).numpy().tolist()
      [-1, 0, 3]
    """
    x = tensor(x)
    if x.dtype == dtypes.bool_:
        x = casting.cast(x, "int32")
    x, x_min, x_max = common(x, _within(x_min, x.dtype), _within(x_max, x.dtype))
    return math.maximum(math.minimum(x, x_max), x_min)


def _within(bound: Any, dtype: Any) -> Any:
    """A Python integer as the nearest one that a dtype of integers holds."""
    kind = dtypes.as_dtype(dtype)
    if type(bound) is not int or not kind.is_integer:
        return bound
    return min(max(bound, int(kind.min)), int(kind.max))


@op(same=(), name="round")
def _round(x: TensorLike, decimals: int) -> Any:
    if decimals < 0 and jnp.issubdtype(x.dtype, jnp.integer):
        return _round_whole(x, 10**-decimals)
    return jnp.round(x, decimals)


def _round_whole(x: Any, unit: int) -> Any:
    """The nearest multiple of `unit` to whole numbers, the even one of two as near."""
    wide = x.astype("int64")
    count, rest = jnp.divmod(wide, unit)
    up = (2 * rest > unit) | ((2 * rest == unit) & (count % 2 == 1))
    return ((count + up) * unit).astype(x.dtype)


@one_layer()
def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """The nearest number with some decimals; halves go to even ones.

    Args:
      x: a tensor.
      decimals: how many.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.round([0.5, 1.5, 2.6]).numpy().tolist()
      [0.0, 2.0, 3.0]
    """
    return _round(tensor(x), decimals)


@op(same=(), name="nan_to_num")
def _nan_to_num(x: TensorLike, nan: Any, posinf: Any, neginf: Any) -> Any:
    return jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


@one_layer()
def nan_to_num(x: TensorLike, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
    """NaN and infinities replaced by numbers.

    Args:
      x: a tensor.
      nan: what stands for NaN.
      posinf: what stands for infinity; default the dtype's largest number.
      neginf: what stands for minus infinity; default the dtype's smallest number.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.nan_to_num([float("nan"), 1.0]).numpy().tolist()
      [0.0, 1.0]
    """
    return _nan_to_num(tensor(x), nan, posinf, neginf)


@op(same=("x1", "x2"), name="isclose", differentiable=False)
def _isclose(x1: TensorLike, x2: TensorLike, rtol: Any, atol: Any, equal_nan: bool) -> Any:
    return jnp.isclose(x1, x2, rtol, atol, equal_nan)


@one_layer()
def isclose(
    x1: TensorLike, x2: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether `|x1 - x2| <= atol + rtol |x2|`.

    Args:
      x1: a tensor.
      x2: a tensor.
      rtol: the relative tolerance.
      atol: the absolute tolerance.
      equal_nan: whether NaN is close to NaN.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.isclose([1.0, 2.0], [1.0, 2.1]).numpy().tolist()
      [True, False]
    """
    x1, x2 = common(x1, x2)
    return _isclose(x1, x2, rtol, atol, equal_nan)


def allclose(
    x1: TensorLike, x2: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether all elements are close, as `isclose` says.

    Args:
      x1: a tensor.
      x2: a tensor.
      rtol: the relative tolerance.
      atol: the absolute tolerance.
      equal_nan: whether NaN is close to NaN.

    Example:
      >>> from meshflow.keras import ops
      >>> bool(ops.allclose([1.0], [1.000001]))
      True
    """
    return math.reduce_all(isclose(x1, x2, rtol, atol, equal_nan))


@op(same=(), name="ldexp")
def _ldexp(x1: TensorLike, x2: TensorLike) -> Any:
    return x1 * jnp.exp2(x2.astype(x1.dtype))


@one_layer()
def ldexp(x1: TensorLike, x2: TensorLike) -> Tensor:
    """`x1 * 2^x2`.

    Args:
      x1: a tensor.
      x2: a tensor of integers.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.ldexp([0.75, 1.5], [1, 2]).numpy().tolist()
      [1.5, 6.0]
    """
    x2 = tensor(x2)
    if not dtypes.as_dtype(x2.dtype).is_integer:
        raise TypeError(f"ldexp: x2 must hold integers, got {dtypes.as_dtype(x2.dtype).name}.")
    return _ldexp(as_float(x1), x2)


@op(same=(), name="view", differentiable=False)
def _view(x: TensorLike, dtype: Any) -> Any:
    return x.view(dtype.dtype)


def view(x: TensorLike, dtype: Any = None) -> Tensor:
    """The same bytes read as another dtype; the last dimension grows or shrinks.

    Args:
      x: a tensor.
      dtype: the dtype; default that of `x`.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.view(ops.array([1, 2], "int32"), "int16").numpy().tolist()
      [1, 0, 2, 0]
    """
    x = tensor(x)
    return x if dtype is None else _view(x, dtypes.as_dtype(dtype))
