"""Elementwise functions: arithmetic, elementary functions, comparisons, logic and bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.values.dtypes import float64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.conversion import asarray, promote
from meshflow.numpy.jnp_wrappers import wrap_jnp
from meshflow.ops import math

__all__ = [
    *("abs", "absolute", "acos", "acosh", "add", "allclose", "angle", "arccos", "arccosh"),
    *("arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "around", "array_equal", "array_equiv"),
    *("asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_count", "bitwise_invert"),
    *("bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("cbrt", "ceil", "clip", "conj", "conjugate", "copysign", "cos", "cosh", "deg2rad", "degrees"),
    *("divide", "divmod", "equal", "exp", "exp2", "expm1", "fabs", "fix", "float_power", "floor"),
    *("floor_divide", "fmax", "fmin", "fmod", "frexp", "gcd", "greater", "greater_equal"),
    *("heaviside", "hypot", "i0", "imag", "invert", "isclose", "iscomplex", "iscomplexobj"),
    *("isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isrealobj", "lcm", "ldexp"),
    *("left_shift", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp"),
    *("logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum"),
    *("minimum", "mod", "modf", "multiply", "nan_to_num", "negative", "nextafter", "not_equal"),
    *("positive", "pow", "power", "rad2deg", "radians", "real", "reciprocal", "remainder"),
    *("right_shift", "rint", "round", "sign", "signbit", "sin", "sinc", "sinh", "spacing", "sqrt"),
    *("square", "subtract", "tan", "tanh", "true_divide", "trunc", "unwrap"),
]

# Arithmetic.
add = wrap_jnp(jnp.add)
subtract = wrap_jnp(jnp.subtract)
multiply = wrap_jnp(jnp.multiply)
floor_divide = wrap_jnp(jnp.floor_divide)
mod = remainder = wrap_jnp(jnp.remainder, "mod")
fmod = wrap_jnp(jnp.fmod)
divmod = wrap_jnp(jnp.divmod)
modf = wrap_jnp(jnp.modf, floating=True)
power = pow = wrap_jnp(jnp.power)
float_power = wrap_jnp(jnp.power, "float_power")
negative = wrap_jnp(jnp.negative)
positive = wrap_jnp(jnp.positive)
reciprocal = wrap_jnp(jnp.reciprocal)
absolute = abs = wrap_jnp(jnp.absolute)
fabs = wrap_jnp(jnp.absolute, "fabs")
square = wrap_jnp(jnp.square)
sign = wrap_jnp(jnp.sign)
gcd = wrap_jnp(jnp.gcd, differentiable=False)
lcm = wrap_jnp(jnp.lcm, differentiable=False)
maximum = wrap_jnp(jnp.maximum)
minimum = wrap_jnp(jnp.minimum)
fmax = wrap_jnp(jnp.fmax)
fmin = wrap_jnp(jnp.fmin)
copysign = wrap_jnp(jnp.copysign, floating=True)
heaviside = wrap_jnp(jnp.heaviside, floating=True)
nextafter = wrap_jnp(jnp.nextafter, floating=True, differentiable=False)
spacing = wrap_jnp(jnp.spacing, floating=True, differentiable=False)
ldexp = wrap_jnp(jnp.ldexp, floating=True, excluded=["x2"])
frexp = wrap_jnp(jnp.frexp, floating=True)

# Rounding.
ceil = wrap_jnp(jnp.ceil, floating=True)
floor = wrap_jnp(jnp.floor, floating=True)
trunc = wrap_jnp(jnp.trunc, floating=True)
fix = wrap_jnp(jnp.trunc, "fix", floating=True)
rint = wrap_jnp(jnp.rint, floating=True)
_round = wrap_jnp(jnp.round, "round")

# Powers and logarithms.
sqrt = wrap_jnp(jnp.sqrt, floating=True)
cbrt = wrap_jnp(jnp.cbrt, floating=True)
exp = wrap_jnp(jnp.exp, floating=True)
exp2 = wrap_jnp(jnp.exp2, floating=True)
expm1 = wrap_jnp(jnp.expm1, floating=True)
log = wrap_jnp(jnp.log, floating=True)
log2 = wrap_jnp(jnp.log2, floating=True)
log10 = wrap_jnp(jnp.log10, floating=True)
log1p = wrap_jnp(jnp.log1p, floating=True)
logaddexp = wrap_jnp(jnp.logaddexp, floating=True)
logaddexp2 = wrap_jnp(jnp.logaddexp2, floating=True)

# Trigonometric and hyperbolic functions.
sin = wrap_jnp(jnp.sin, floating=True)
cos = wrap_jnp(jnp.cos, floating=True)
tan = wrap_jnp(jnp.tan, floating=True)
arcsin = asin = wrap_jnp(jnp.arcsin, floating=True)
arccos = acos = wrap_jnp(jnp.arccos, floating=True)
arctan = atan = wrap_jnp(jnp.arctan, floating=True)
arctan2 = atan2 = wrap_jnp(jnp.arctan2, floating=True)
hypot = wrap_jnp(jnp.hypot, floating=True)
sinh = wrap_jnp(jnp.sinh, floating=True)
cosh = wrap_jnp(jnp.cosh, floating=True)
tanh = wrap_jnp(jnp.tanh, floating=True)
arcsinh = asinh = wrap_jnp(jnp.arcsinh, floating=True)
arccosh = acosh = wrap_jnp(jnp.arccosh, floating=True)
arctanh = atanh = wrap_jnp(jnp.arctanh, floating=True)
deg2rad = radians = wrap_jnp(jnp.deg2rad, floating=True)
rad2deg = degrees = wrap_jnp(jnp.rad2deg, floating=True)
sinc = wrap_jnp(jnp.sinc, floating=True)
i0 = wrap_jnp(jnp.i0, floating=True)
unwrap = wrap_jnp(jnp.unwrap, floating=True)

# Complex numbers.
angle = wrap_jnp(jnp.angle, floating=True)
real = wrap_jnp(jnp.real)
imag = wrap_jnp(jnp.imag)
conj = conjugate = wrap_jnp(jnp.conj)

# Comparisons and tests.
equal = wrap_jnp(jnp.equal, differentiable=False)
not_equal = wrap_jnp(jnp.not_equal, differentiable=False)
less = wrap_jnp(jnp.less, differentiable=False)
less_equal = wrap_jnp(jnp.less_equal, differentiable=False)
greater = wrap_jnp(jnp.greater, differentiable=False)
greater_equal = wrap_jnp(jnp.greater_equal, differentiable=False)
isclose = wrap_jnp(jnp.isclose, differentiable=False)
allclose = wrap_jnp(jnp.allclose, differentiable=False)
array_equal = wrap_jnp(jnp.array_equal, differentiable=False)
array_equiv = wrap_jnp(jnp.array_equiv, differentiable=False)
isfinite = wrap_jnp(jnp.isfinite, differentiable=False)
isinf = wrap_jnp(jnp.isinf, differentiable=False)
isnan = wrap_jnp(jnp.isnan, differentiable=False)
isneginf = wrap_jnp(jnp.isneginf, operands=["x"], differentiable=False)
isposinf = wrap_jnp(jnp.isposinf, operands=["x"], differentiable=False)
isreal = wrap_jnp(jnp.isreal, differentiable=False)
iscomplex = wrap_jnp(jnp.iscomplex, differentiable=False)
signbit = wrap_jnp(jnp.signbit, floating=True, differentiable=False)

# Logic and bits.
logical_and = wrap_jnp(jnp.logical_and, differentiable=False)
logical_or = wrap_jnp(jnp.logical_or, differentiable=False)
logical_xor = wrap_jnp(jnp.logical_xor, differentiable=False)
logical_not = wrap_jnp(jnp.logical_not, differentiable=False)
bitwise_and = wrap_jnp(jnp.bitwise_and, differentiable=False)
bitwise_or = wrap_jnp(jnp.bitwise_or, differentiable=False)
bitwise_xor = wrap_jnp(jnp.bitwise_xor, differentiable=False)
bitwise_not = bitwise_invert = invert = wrap_jnp(
    jnp.bitwise_not, "bitwise_not", differentiable=False
)
bitwise_left_shift = left_shift = wrap_jnp(jnp.left_shift, differentiable=False)
bitwise_right_shift = right_shift = wrap_jnp(jnp.right_shift, differentiable=False)
bitwise_count = wrap_jnp(jnp.bitwise_count, differentiable=False)

# Replacement of values.
nan_to_num = wrap_jnp(jnp.nan_to_num, static=["nan", "posinf", "neginf"])
_clip = wrap_jnp(jnp.clip, "clip")


def divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Divide; integers become float64, or float32 if they have 8 or 16 bits.

    Args:
      x1: Array-like value.
      x2: Array-like value of a shape that broadcasts.

    Example:
      >>> tnp.divide([1, 2], 4).numpy()
      array([0.25, 0.5 ])
    """
    return math.truediv(*promote([x1, x2]))


def round(a: TensorLike, decimals: int = 0) -> Tensor:
    """Round to a number of decimals, halves to even.

    Args:
      a: Array-like value.
      decimals: Number of decimals; negative numbers round to tens, hundreds and so on.

    Example:
      >>> tnp.round([1.25, 2.5]).numpy(), tnp.round(1234, -2).numpy()
      (array([1., 2.]), np.int64(1200))
    """
    tensor = asarray(a)
    if decimals < 0 and tensor.dtype.is_integer:
        # JAX does not implement negative decimals for integers.
        return math.cast(_round(math.cast(tensor, float64), decimals), tensor.dtype)
    return _round(tensor, decimals)


true_divide, around = divide, round


def clip(a: TensorLike, a_min: TensorLike | None = None, a_max: TensorLike | None = None) -> Tensor:
    """Clip elements to [`a_min`, `a_max`].

    Args:
      a: Array-like value.
      a_min: Minimum, of a shape that broadcasts; None for no minimum.
      a_max: Maximum, in the same form.

    Returns:
      A tensor of the common dtype of the three.

    Example:
      >>> tnp.clip([1, 5, 9], 2, 6).numpy()
      array([2, 5, 6])
    """
    return _clip(a, a_min, a_max)


def iscomplexobj(x: Any) -> bool:
    """Check whether the dtype of a value is complex."""
    return asarray(x).dtype.is_complex


def isrealobj(x: Any) -> bool:
    """Check whether the dtype of a value is not complex."""
    return not iscomplexobj(x)
