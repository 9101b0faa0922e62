"""Functions of one tensor, element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.composite import SparseTensor, passes_rows
from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.signatures import Elementwise

__all__ = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i0",
    "bessel_i0e",
    "bessel_i1",
    "bessel_i1e",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfcinv",
    "erfinv",
    "exp",
    "expm1",
    "floor",
    "imag",
    "is_finite",
    "is_inf",
    "is_nan",
    "lgamma",
    "log",
    "log1p",
    "log_sigmoid",
    "ndtri",
    "negative",
    "real",
    "reciprocal",
    "reciprocal_no_nan",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]


_DTYPES = {
    None: "any numeric dtype",
    "f": "a floating dtype",
    "fc": "a floating or complex dtype",
    "if": "an integer or floating dtype",
    "ifc": "an integer, floating or complex dtype",
}


def _define(
    name: str,
    function: Callable[[Any], Any],
    doc: str,
    given: str,
    gives: str,
    kinds: str | None = "fc",
    differentiable: bool = True,
) -> Elementwise:
    """A public elementwise op; all of them are one line of a table.

    `given` and `gives` are what the example in its docstring takes and prints.
    """

    def body(x: TensorLike, name: str | None = None) -> Tensor:
        return function(x)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"""{doc}

    Args:
      x: a tensor of {_DTYPES[kinds]}{" (dense or sparse)" if name in _SPARSE else ""}.
      name: ignored.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.{name}({given}).numpy(){".round(3)" if differentiable else ""})
      {gives}
    """
    body.__module__ = __name__
    public = op(body, kinds=kinds, differentiable=differentiable)
    return _of_sparse(public) if name in _SPARSE else public


# Functions that leave 0 as it is, and so take sparse tensors too.
_SPARSE = frozenset(
    [
        *("abs", "asinh", "atan", "atanh", "ceil", "erf", "expm1", "floor", "imag", "log1p"),
        *("negative", "real", "rint", "round", "sign", "sin", "sinh", "sqrt", "square", "tan"),
        "tanh",
    ]
)


def _of_sparse(public: Elementwise) -> Elementwise:
    @functools.wraps(public)
    def function(x: Any, name: str | None = None) -> Any:
        if isinstance(x, SparseTensor):
            return x.with_values(public(x.values))
        return public(x)

    return function


def _angle(x: Any) -> Any:
    return jnp.angle(x).astype(x.real.dtype)


def magnitude(x: Any) -> Any:
    """|x|, with TensorFlow's gradient of 0 at 0, where JAX's is 1."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x * jax.lax.stop_gradient(jnp.sign(x))
    return jnp.abs(x)


_special = jax.scipy.special


def _bessel_i0(x: Any) -> Any:
    return jnp.exp(magnitude(x)) * _special.i0e(x)


abs = _define("abs", magnitude, "Absolute value.", "[-3, 2]", "[3 2]", kinds=None)
negative = _define("negative", jnp.negative, "`-x`.", "[1, -2]", "[-1  2]", kinds=None)
negative.op.by_rows = passes_rows(lambda _, rows: -rows)  # type: ignore[attr-defined]
sign = _define(
    "sign",
    jnp.sign,
    "-1, 0 or 1, with gradient 0; for complex numbers `x / |x|`.",
    "[-2.5, 0.0, 4.0]",
    "[-1.  0.  1.]",
    kinds="ifc",
)
square = _define("square", jnp.square, "`x * x`.", "[1, -3]", "[1 9]", kinds="ifc")
sqrt = _define("sqrt", jnp.sqrt, "Square root.", "[4.0, 9.0]", "[2. 3.]")


@jax.custom_jvp
def _rsqrt(x: Any) -> Any:
    return jax.lax.rsqrt(x)


@_rsqrt.defjvp
def _rsqrt_tangent(primals: Any, tangents: Any) -> Any:
    y = _rsqrt(*primals)
    # JAX divides by `x`, which gives another sign at -0.
    return y, tangents[0] * (y * y * y * jnp.asarray(-0.5, y.dtype))


rsqrt = _define("rsqrt", _rsqrt, "`1 / sqrt(x)`.", "[4.0, 16.0]", "[0.5  0.25]")
reciprocal = _define(
    "reciprocal", lambda x: jnp.ones((), x.dtype) / x, "`1 / x`.", "[2.0, -4.0]", "[ 0.5  -0.25]"
)
reciprocal_no_nan = _define(
    "reciprocal_no_nan",
    lambda x: jnp.where(
        x == 0, jnp.zeros((), x.dtype), 1 / jnp.where(x == 0, jnp.ones((), x.dtype), x)
    ),
    "`1 / x`, and 0 where x is 0.",
    "[2.0, 0.0]",
    "[0.5 0. ]",
)
exp = _define("exp", jnp.exp, "`e^x`.", "[0.0, 1.0]", "[1.    2.718]")
expm1 = _define("expm1", jnp.expm1, "`e^x - 1`, accurate near 0.", "[0.0, 1.0]", "[0.    1.718]")
log = _define("log", jnp.log, "Natural logarithm.", "[1.0, 10.0]", "[0.    2.303]")
log1p = _define("log1p", jnp.log1p, "`log(1 + x)`, accurate near 0.", "[0.0, 9.0]", "[0.    2.303]")
sin = _define("sin", jnp.sin, "Sine; x in radians.", "[0.0, 1.0]", "[0.    0.841]")
cos = _define("cos", jnp.cos, "Cosine; x in radians.", "[0.0, 1.0]", "[1.   0.54]")
tan = _define("tan", jnp.tan, "Tangent; x in radians.", "[0.0, 1.0]", "[0.    1.557]")
asin = _define("asin", jnp.arcsin, "Inverse sine, in radians.", "[0.0, 1.0]", "[0.    1.571]")
acos = _define("acos", jnp.arccos, "Inverse cosine, in radians.", "[0.0, 1.0]", "[1.571 0.   ]")
atan = _define("atan", jnp.arctan, "Inverse tangent, in radians.", "[0.0, 1.0]", "[0.    0.785]")
sinh = _define("sinh", jnp.sinh, "Hyperbolic sine.", "[0.0, 1.0]", "[0.    1.175]")
cosh = _define("cosh", jnp.cosh, "Hyperbolic cosine.", "[0.0, 1.0]", "[1.    1.543]")
tanh = _define("tanh", jnp.tanh, "Hyperbolic tangent.", "[0.0, 1.0]", "[0.    0.762]")
asinh = _define("asinh", jnp.arcsinh, "Inverse hyperbolic sine.", "[0.0, 1.0]", "[0.    0.881]")
acosh = _define("acosh", jnp.arccosh, "Inverse hyperbolic cosine.", "[1.0, 2.0]", "[0.    1.317]")
atanh = _define("atanh", jnp.arctanh, "Inverse hyperbolic tangent.", "[0.0, 0.5]", "[0.    0.549]")
sigmoid = _define(
    "sigmoid", jax.nn.sigmoid, "`1 / (1 + e^-x)`.", "[-1.0, 0.0, 1.0]", "[0.269 0.5   0.731]"
)
log_sigmoid = _define(
    "log_sigmoid",
    jax.nn.log_sigmoid,
    "`log(sigmoid(x))`, accurate for large |x|.",
    "[-100.0, 0.0]",
    "[-100.      -0.693]",
    kinds="f",
)
erf = _define(
    "erf", _special.erf, "Gauss error function.", "[0.0, 1.0]", "[0.    0.843]", kinds="f"
)
erfc = _define("erfc", _special.erfc, "`1 - erf(x)`.", "[0.0, 1.0]", "[1.    0.157]", kinds="f")
erfinv = _define(
    "erfinv", _special.erfinv, "Inverse of erf.", "[0.0, 0.5]", "[0.    0.477]", kinds="f"
)
erfcinv = _define(
    "erfcinv",
    lambda x: -_special.ndtri(0.5 * x) / jnp.sqrt(jnp.asarray(2, x.dtype)),
    "Inverse of erfc.",
    "[1.5, 0.5]",
    "[-0.477  0.477]",
    kinds="f",
)
ndtri = _define(
    "ndtri",
    _special.ndtri,
    "Quantile of the standard normal distribution.",
    "[0.5, 0.975]",
    "[0.   1.96]",
    kinds="f",
)
lgamma = _define(
    "lgamma", _special.gammaln, "Logarithm of |Gamma(x)|.", "[3.0, 6.0]", "[0.693 4.787]", kinds="f"
)
digamma = _define(
    "digamma", _special.digamma, "Derivative of lgamma.", "[1.0, 2.0]", "[-0.577  0.423]", kinds="f"
)
bessel_i0 = _define(
    "bessel_i0",
    _bessel_i0,
    "Modified Bessel function of order 0.",
    "[0.0, 1.0]",
    "[1.    1.266]",
    kinds="f",
)
bessel_i0e = _define(
    "bessel_i0e",
    _special.i0e,
    "bessel_i0, exponentially scaled.",
    "[0.0, 1.0]",
    "[1.    0.466]",
    kinds="f",
)
bessel_i1 = _define(
    "bessel_i1",
    _special.i1,
    "Modified Bessel function of order 1.",
    "[0.0, 1.0]",
    "[0.    0.565]",
    kinds="f",
)
bessel_i1e = _define(
    "bessel_i1e",
    _special.i1e,
    "bessel_i1, exponentially scaled.",
    "[0.0, 1.0]",
    "[0.    0.208]",
    kinds="f",
)
floor = _define(
    "floor",
    jnp.floor,
    "Largest integer not above x.",
    "[1.7, -1.2]",
    "[ 1. -2.]",
    kinds="f",
    differentiable=False,
)
ceil = _define(
    "ceil",
    jnp.ceil,
    "Smallest integer not below x.",
    "[1.2, -1.7]",
    "[ 2. -1.]",
    kinds="f",
    differentiable=False,
)
round = _define(
    "round",
    jnp.round,
    "Nearest integer, halves to the even one.",
    "[0.5, 1.5, 1.7]",
    "[0. 2. 2.]",
    kinds="if",
    differentiable=False,
)
rint = _define(
    "rint",
    jnp.round,
    "Nearest integer, halves to the even one.",
    "[0.5, 1.5, 1.7]",
    "[0. 2. 2.]",
    kinds="f",
    differentiable=False,
)
is_nan = _define(
    "is_nan",
    jnp.isnan,
    "Whether x is NaN.",
    "[1.0, float('nan')]",
    "[False  True]",
    kinds="f",
    differentiable=False,
)
is_inf = _define(
    "is_inf",
    jnp.isinf,
    "Whether x is infinite.",
    "[1.0, float('-inf')]",
    "[False  True]",
    kinds="f",
    differentiable=False,
)
is_finite = _define(
    "is_finite",
    jnp.isfinite,
    "Whether x is neither NaN nor infinite.",
    "[1.0, float('inf'), float('nan')]",
    "[ True False False]",
    kinds="f",
    differentiable=False,
)
conj = _define(
    "conj", jnp.conj, "Complex conjugate.", "[1 + 2j, 3j]", "[1.-2.j 0.-3.j]", kinds=None
)
real = _define("real", jnp.real, "Real part.", "[1 + 2j, 3j]", "[1. 0.]", kinds=None)
imag = _define("imag", jnp.imag, "Imaginary part.", "[1 + 2j, 3j]", "[2. 3.]", kinds=None)
angle = _define(
    "angle", _angle, "Argument of a complex number, in radians.", "[1j, -1 + 0j]", "[1.571 3.142]"
)
sinc = _define(
    "sinc",
    jnp.sinc,
    "`sin(pi x) / (pi x)`.",
    "[0.0, 0.5]",
    "[1.    0.637]",
    kinds="f",
)
