"""Functions of single elements: arithmetic, elementary functions, comparisons, logic, bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.values.dtypes import float64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy.conversion import asarray, promoted
from meshflow.numpy.jnp_wrappers import of_jax
from meshflow.ops import math

__all__ = [
    *(
        "abs",
        "absolute",
        "acos",
        "acosh",
        "add",
        "allclose",
        "angle",
        "arccos",
        "arccosh",
    ),
    *(
        "arcsin",
        "arcsinh",
        "arctan",
        "arctan2",
        "arctanh",
        "around",
        "array_equal",
    ),
    *(
        "array_equiv",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bitwise_and",
        "bitwise_count",
    ),
    *(
        "bitwise_invert",
        "bitwise_left_shift",
        "bitwise_not",
        "bitwise_or",
        "bitwise_right_shift",
    ),
    *(
        "bitwise_xor",
        "cbrt",
        "ceil",
        "clip",
        "conj",
        "conjugate",
        "copysign",
        "cos",
        "cosh",
    ),
    *(
        "deg2rad",
        "degrees",
        "divide",
        "divmod",
        "equal",
        "exp",
        "exp2",
        "expm1",
        "fabs",
        "fix",
    ),
    *(
        "float_power",
        "floor",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "frexp",
        "gcd",
        "greater",
    ),
    *(
        "greater_equal",
        "heaviside",
        "hypot",
        "i0",
        "imag",
        "invert",
        "isclose",
        "iscomplex",
    ),
    *(
        "iscomplexobj",
        "isfinite",
        "isinf",
        "isnan",
        "isneginf",
        "isposinf",
        "isreal",
    ),
    *(
        "isrealobj",
        "lcm",
        "ldexp",
        "left_shift",
        "less",
        "less_equal",
        "log",
        "log10",
        "log1p",
    ),
    *(
        "log2",
        "logaddexp",
        "logaddexp2",
        "logical_and",
        "logical_not",
        "logical_or",
    ),
    *(
        "logical_xor",
        "maximum",
        "minimum",
        "mod",
        "modf",
        "multiply",
        "nan_to_num",
        "negative",
    ),
    *(
        "nextafter",
        "not_equal",
        "positive",
        "pow",
        "power",
        "rad2deg",
        "radians",
        "real",
    ),
    *(
        "reciprocal",
        "remainder",
        "right_shift",
        "rint",
        "round",
        "sign",
        "signbit",
        "sin",
    ),
    *(
        "sinc",
        "sinh",
        "spacing",
        "sqrt",
        "square",
        "subtract",
        "tan",
        "tanh",
        "true_divide",
    ),
    *(
        "trunc",
        "unwrap",
    ),
]

# Arithmetic
add = of_jax(jnp.add)
subtract = of_jax(jnp.subtract)
multiply = of_jax(jnp.multiply)
floor_divide = of_jax(jnp.floor_divide)
mod = remainder = of_jax(jnp.remainder, "mod")
fmod = of_jax(jnp.fmod)
divmod = of_jax(jnp.divmod)
modf = of_jax(jnp.modf, floating=True)
power = pow = of_jax(jnp.power)
float_power = of_jax(jnp.power, "float_power")
negative = of_jax(jnp.negative)
positive = of_jax(jnp.positive)
reciprocal = of_jax(jnp.reciprocal)
absolute = abs = of_jax(jnp.absolute)
fabs = of_jax(jnp.absolute, "fabs")
square = of_jax(jnp.square)
sign = of_jax(jnp.sign)
gcd = of_jax(jnp.gcd, differentiable=False)
lcm = of_jax(jnp.lcm, differentiable=False)
maximum = of_jax(jnp.maximum)
minimum = of_jax(jnp.minimum)
fmax = of_jax(jnp.fmax)
fmin = of_jax(jnp.fmin)
copysign = of_jax(jnp.copysign, floating=True)
heaviside = of_jax(jnp.heaviside, floating=True)
nextafter = of_jax(jnp.nextafter, floating=True, differentiable=False)
spacing = of_jax(jnp.spacing, floating=True, differentiable=False)
ldexp = of_jax(jnp.ldexp, floating=True, apart=["x2"])
frexp = of_jax(jnp.frexp, floating=True)

# Rounding
ceil = of_jax(jnp.ceil, floating=True)
floor = of_jax(jnp.floor, floating=True)
trunc = of_jax(jnp.trunc, floating=True)
fix = of_jax(jnp.trunc, "fix", floating=True)
rint = of_jax(jnp.rint, floating=True)
_round = of_jax(jnp.round, "round")

# Powers and logarithms
sqrt = of_jax(jnp.sqrt, floating=True)
cbrt = of_jax(jnp.cbrt, floating=True)
exp = of_jax(jnp.exp, floating=True)
exp2 = of_jax(jnp.exp2, floating=True)
expm1 = of_jax(jnp.expm1, floating=True)
log = of_jax(jnp.log, floating=True)
log2 = of_jax(jnp.log2, floating=True)
log10 = of_jax(jnp.log10, floating=True)
log1p = of_jax(jnp.log1p, floating=True)
logaddexp = of_jax(jnp.logaddexp, floating=True)
logaddexp2 = of_jax(jnp.logaddexp2, floating=True)

# Angles and hyperbolic functions
sin = of_jax(jnp.sin, floating=True)
cos = of_jax(jnp.cos, floating=True)
tan = of_jax(jnp.tan, floating=True)
arcsin = asin = of_jax(jnp.arcsin, floating=True)
arccos = acos = of_jax(jnp.arccos, floating=True)
arctan = atan = of_jax(jnp.arctan, floating=True)
arctan2 = atan2 = of_jax(jnp.arctan2, floating=True)
hypot = of_jax(jnp.hypot, floating=True)
sinh = of_jax(jnp.sinh, floating=True)
cosh = of_jax(jnp.cosh, floating=True)
tanh = of_jax(jnp.tanh, floating=True)
arcsinh = asinh = of_jax(jnp.arcsinh, floating=True)
arccosh = acosh = of_jax(jnp.arccosh, floating=True)
arctanh = atanh = of_jax(jnp.arctanh, floating=True)
deg2rad = radians = of_jax(jnp.deg2rad, floating=True)
rad2deg = degrees = of_jax(jnp.rad2deg, floating=True)
sinc = of_jax(jnp.sinc, floating=True)
i0 = of_jax(jnp.i0, floating=True)
unwrap = of_jax(jnp.unwrap, floating=True)

# Complex numbers
angle = of_jax(jnp.angle, floating=True)
real = of_jax(jnp.real)
imag = of_jax(jnp.imag)
conj = conjugate = of_jax(jnp.conj)

# Questions
equal = of_jax(jnp.equal, differentiable=False)
not_equal = of_jax(jnp.not_equal, differentiable=False)
less = of_jax(jnp.less, differentiable=False)
less_equal = of_jax(jnp.less_equal, differentiable=False)
greater = of_jax(jnp.greater, differentiable=False)
greater_equal = of_jax(jnp.greater_equal, differentiable=False)
isclose = of_jax(jnp.isclose, differentiable=False)
allclose = of_jax(jnp.allclose, differentiable=False)
array_equal = of_jax(jnp.array_equal, differentiable=False)
array_equiv = of_jax(jnp.array_equiv, differentiable=False)
isfinite = of_jax(jnp.isfinite, differentiable=False)
isinf = of_jax(jnp.isinf, differentiable=False)
isnan = of_jax(jnp.isnan, differentiable=False)
isneginf = of_jax(jnp.isneginf, operands=["x"], differentiable=False)
isposinf = of_jax(jnp.isposinf, operands=["x"], differentiable=False)
isreal = of_jax(jnp.isreal, differentiable=False)
iscomplex = of_jax(jnp.iscomplex, differentiable=False)
signbit = of_jax(jnp.signbit, floating=True, differentiable=False)

# Logic and bits
logical_and = of_jax(jnp.logical_and, differentiable=False)
logical_or = of_jax(jnp.logical_or, differentiable=False)
logical_xor = of_jax(jnp.logical_xor, differentiable=False)
logical_not = of_jax(jnp.logical_not, differentiable=False)
bitwise_and = of_jax(jnp.bitwise_and, differentiable=False)
bitwise_or = of_jax(jnp.bitwise_or, differentiable=False)
bitwise_xor = of_jax(jnp.bitwise_xor, differentiable=False)
bitwise_not = bitwise_invert = invert = of_jax(jnp.bitwise_not, "bitwise_not", differentiable=False)
bitwise_left_shift = left_shift = of_jax(jnp.left_shift, differentiable=False)
bitwise_right_shift = right_shift = of_jax(jnp.right_shift, differentiable=False)
bitwise_count = of_jax(jnp.bitwise_count, differentiable=False)

# Repairs
nan_to_num = of_jax(jnp.nan_to_num, static=["nan", "posinf", "neginf"])
_clip = of_jax(jnp.clip, "clip")


def divide(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Quotients; integers give float64, or float32 when they have 8 or 16 bits.

    Args:
      x1: what `asarray` takes.
      x2: what `asarray` takes, of a shape that broadcasts.

    Returns:
      A tensor.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.divide([1, 2], 4).numpy()
      array([0.25, 0.5 ])
    """
    return math.truediv(*promoted([x1, x2]))


def round(a: TensorLike, decimals: int = 0) -> Tensor:
    """Elements rounded to a number of decimals, halves to even.

    Args:
      a: what `asarray` takes.
      decimals: how many; negative ones round to tens, hundreds and so on.

    Returns:
      A tensor of the dtype of `a`.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.round([1.25, 2.5]).numpy(), tnp.round(1234, -2).numpy()
      (array([1., 2.]), np.int64(1200))
    """
    tensor = asarray(a)
    if decimals < 0 and tensor.dtype.is_integer:
        # JAX leaves this case of integers open.
        return math.cast(_round(math.cast(tensor, float64), decimals), tensor.dtype)
    return _round(tensor, decimals)


true_divide, around = divide, round


def clip(a: TensorLike, a_min: TensorLike | None = None, a_max: TensorLike | None = None) -> Tensor:
    """Elements, none below `a_min` nor above `a_max`.

    Args:
      a: what `asarray` takes.
      a_min: the lower limits, of a shape that broadcasts; None for none.
      a_max: the upper limits.

    Returns:
      A tensor of the dtype in which the three meet.

    Example:
      >>> import meshflow.experimental.numpy as tnp
      >>> tnp.clip([1, 5, 9], 2, 6).numpy()
      array([2, 5, 6])
    """
    return _clip(a, a_min, a_max)


def iscomplexobj(x: Any) -> bool:
    """Whether a value's dtype is complex."""
    return asarray(x).dtype.is_complex


def isrealobj(x: Any) -> bool:
    """Whether a value's dtype is not complex."""
    return not iscomplexobj(x)
