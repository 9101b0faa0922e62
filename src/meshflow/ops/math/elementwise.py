"""Functions of one tensor, element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.composite import SparseTensor
from meshflow.core.dispatch import op
from meshflow.core.tensor import Tensor, TensorLike

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


def _define(
    name: str,
    function: Callable[[Any], Any],
    doc: str,
    kinds: str | None = "fc",
    differentiable: bool = True,
) -> Callable[..., Any]:
    """A public elementwise op; all of them are one line of a table."""

    def body(x: TensorLike, name: str | None = None) -> Tensor:
        return function(x)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = doc
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


def _of_sparse(public: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(public)
    def function(x: Any, name: str | None = None) -> Any:
        if isinstance(x, SparseTensor):
            return x.with_values(public(x.values))
        return public(x)

    return function


def _angle(x: Any) -> Any:
    return jnp.angle(x).astype(x.real.dtype)


def _abs(x: Any) -> Any:
    """|x|, with TensorFlow's gradient of 0 at 0, where JAX's is 1."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x * jax.lax.stop_gradient(jnp.sign(x))
    return jnp.abs(x)


_special = jax.scipy.special
abs = _define("abs", _abs, "Absolute value.", kinds=None)
negative = _define("negative", jnp.negative, "`-x`.", kinds=None)
sign = _define(
    "sign",
    jnp.sign,
    "-1, 0 or 1; for complex numbers `x / |x|`.",
    kinds="ifc",
    differentiable=False,
)
square = _define("square", jnp.square, "`x * x`.", kinds="ifc")
sqrt = _define("sqrt", jnp.sqrt, "Square root.")
rsqrt = _define("rsqrt", jax.lax.rsqrt, "`1 / sqrt(x)`.")
reciprocal = _define("reciprocal", lambda x: jnp.ones((), x.dtype) / x, "`1 / x`.")
reciprocal_no_nan = _define(
    "reciprocal_no_nan",
    lambda x: jnp.where(
        x == 0, jnp.zeros((), x.dtype), 1 / jnp.where(x == 0, jnp.ones((), x.dtype), x)
    ),
    "`1 / x`, and 0 where x is 0.",
)
exp = _define("exp", jnp.exp, "`e^x`.")
expm1 = _define("expm1", jnp.expm1, "`e^x - 1`, accurate near 0.")
log = _define("log", jnp.log, "Natural logarithm.")
log1p = _define("log1p", jnp.log1p, "`log(1 + x)`, accurate near 0.")
sin = _define("sin", jnp.sin, "Sine; x in radians.")
cos = _define("cos", jnp.cos, "Cosine; x in radians.")
tan = _define("tan", jnp.tan, "Tangent; x in radians.")
asin = _define("asin", jnp.arcsin, "Inverse sine, in radians.")
acos = _define("acos", jnp.arccos, "Inverse cosine, in radians.")
atan = _define("atan", jnp.arctan, "Inverse tangent, in radians.")
sinh = _define("sinh", jnp.sinh, "Hyperbolic sine.")
cosh = _define("cosh", jnp.cosh, "Hyperbolic cosine.")
tanh = _define("tanh", jnp.tanh, "Hyperbolic tangent.")
asinh = _define("asinh", jnp.arcsinh, "Inverse hyperbolic sine.")
acosh = _define("acosh", jnp.arccosh, "Inverse hyperbolic cosine.")
atanh = _define("atanh", jnp.arctanh, "Inverse hyperbolic tangent.")
sigmoid = _define("sigmoid", jax.nn.sigmoid, "`1 / (1 + e^-x)`.")
log_sigmoid = _define(
    "log_sigmoid", jax.nn.log_sigmoid, "`log(sigmoid(x))`, accurate for large |x|.", kinds="f"
)
erf = _define("erf", _special.erf, "Gauss error function.", kinds="f")
erfc = _define("erfc", _special.erfc, "`1 - erf(x)`.", kinds="f")
erfinv = _define("erfinv", _special.erfinv, "Inverse of erf.", kinds="f")
erfcinv = _define(
    "erfcinv",
    lambda x: -_special.ndtri(0.5 * x) / jnp.sqrt(jnp.asarray(2, x.dtype)),
    "Inverse of erfc.",
    kinds="f",
)
ndtri = _define("ndtri", _special.ndtri, "Quantile of the standard normal distribution.", kinds="f")
lgamma = _define("lgamma", _special.gammaln, "Logarithm of |Gamma(x)|.", kinds="f")
digamma = _define("digamma", _special.digamma, "Derivative of lgamma.", kinds="f")
bessel_i0 = _define("bessel_i0", _special.i0, "Modified Bessel function of order 0.", kinds="f")
bessel_i0e = _define("bessel_i0e", _special.i0e, "bessel_i0, exponentially scaled.", kinds="f")
bessel_i1 = _define("bessel_i1", _special.i1, "Modified Bessel function of order 1.", kinds="f")
bessel_i1e = _define("bessel_i1e", _special.i1e, "bessel_i1, exponentially scaled.", kinds="f")
floor = _define("floor", jnp.floor, "Largest integer not above x.", kinds="f", differentiable=False)
ceil = _define("ceil", jnp.ceil, "Smallest integer not below x.", kinds="f", differentiable=False)
round = _define(
    "round", jnp.round, "Nearest integer, halves to the even one.", kinds="if", differentiable=False
)
rint = _define(
    "rint", jnp.round, "Nearest integer, halves to the even one.", kinds="f", differentiable=False
)
is_nan = _define("is_nan", jnp.isnan, "Whether x is NaN.", kinds="f", differentiable=False)
is_inf = _define("is_inf", jnp.isinf, "Whether x is infinite.", kinds="f", differentiable=False)
is_finite = _define(
    "is_finite",
    jnp.isfinite,
    "Whether x is neither NaN nor infinite.",
    kinds="f",
    differentiable=False,
)
conj = _define("conj", jnp.conj, "Complex conjugate.", kinds=None)
real = _define("real", jnp.real, "Real part.", kinds=None)
imag = _define("imag", jnp.imag, "Imaginary part.", kinds=None)
angle = _define("angle", _angle, "Argument of a complex number, in radians.")
sinc = _define("sinc", jnp.sinc, "`sin(pi x) / (pi x)`.", kinds="f")
