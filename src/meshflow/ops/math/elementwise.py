"""Elementwise functions of one tensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.composite import SparseTensor, make_elementwise_row_rule
from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.signatures import ElementwiseOp

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


def _define_elementwise(
    name: str,
    function: Callable[[Any], Any],
    summary: str,
    example_output: str,
    example_input: str = "[0.0, 1.0]",
    kinds: str | None = "fc",
    differentiable: bool = True,
) -> ElementwiseOp:
    """Define an elementwise op; its docstring has an example with the given input and output."""

    def compute(x: TensorLike, name: str | None = None) -> Tensor:
        return function(x)

    compute.__name__ = compute.__qualname__ = name
    compute.__doc__ = f"""{summary}

    Args:
      x: A tensor of {_DTYPES[kinds]}{" (dense or sparse)" if name in _SPARSE else ""}.
      name: Ignored.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> print(tf.math.{name}({example_input}).numpy(){".round(3)" if differentiable else ""})
      {example_output}
    """
    compute.__module__ = __name__
    public_op = op(compute, kinds=kinds, differentiable=differentiable)
    return _accept_sparse(public_op) if name in _SPARSE else public_op


# Functions of the elements only, most of them with f(0) = 0, also accept sparse tensors.
_SPARSE = frozenset(
    [
        *(
            "abs",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "bessel_i0e",
            "bessel_i1e",
            "ceil",
            "erf",
            "expm1",
            "floor",
            "imag",
            "log1p",
        ),
        *("negative", "real", "rint", "round", "sign", "sin", "sinh", "sqrt", "square", "tan"),
        "tanh",
    ]
)


def _accept_sparse(public: ElementwiseOp) -> ElementwiseOp:
    @functools.wraps(public)
    def function(x: Any, name: str | None = None) -> Any:
        if isinstance(x, SparseTensor):
            return x.with_values(public(x.values))
        return public(x)

    return function


def _compute_angle(x: jax.Array) -> jax.Array:
    return jnp.angle(x).astype(x.real.dtype)


def compute_magnitude(x: jax.Array) -> jax.Array:
    """Compute |x| with TensorFlow's gradient at 0, which is 0; JAX's is 1."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x * jax.lax.stop_gradient(jnp.sign(x))
    return jnp.abs(x)


_special = jax.scipy.special

# The derivatives of these two functions are TensorFlow's also where they are not defined.
_compute_acosh = jax.custom_jvp(jnp.arccosh)
_compute_acosh.defjvps(lambda tangent, y, x: tangent / jnp.sinh(y))
_compute_ndtri = jax.custom_jvp(_special.ndtri)
_compute_ndtri.defjvps(
    lambda tangent, y, x: tangent * math.sqrt(2 * math.pi) * jnp.exp(0.5 * y * y)
)


def _compute_bessel_i0(x: jax.Array) -> jax.Array:
    return jnp.exp(compute_magnitude(x)) * _special.i0e(x)


abs = _define_elementwise(
    "abs", compute_magnitude, "Compute the absolute value.", "[3 2]", "[-3, 2]", kinds=None
)
negative = _define_elementwise(
    "negative", jnp.negative, "Compute `-x`.", "[-1  2]", "[1, -2]", kinds=None
)
negative.op.row_gradient = make_elementwise_row_rule(lambda _, rows: -rows)  # type: ignore[attr-defined]
sign = _define_elementwise(
    "sign",
    jnp.sign,
    "Compute the sign -1, 0 or 1, with gradient 0; for complex numbers `x / |x|`.",
    "[-1.  0.  1.]",
    "[-2.5, 0.0, 4.0]",
    kinds="ifc",
)
square = _define_elementwise(
    "square", jnp.square, "Compute `x * x`.", "[1 9]", "[1, -3]", kinds="ifc"
)
sqrt = _define_elementwise("sqrt", jnp.sqrt, "Compute the square root.", "[2. 3.]", "[4.0, 9.0]")


@jax.custom_jvp
def _rsqrt(x: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(x)


@_rsqrt.defjvp
def _compute_rsqrt_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y = _rsqrt(*primals)
    # JAX divides by `x`, which results in the opposite sign at -0.
    return y, tangents[0] * (y * y * y * jnp.asarray(-0.5, y.dtype))


rsqrt = _define_elementwise("rsqrt", _rsqrt, "Compute `1 / sqrt(x)`.", "[0.5  0.25]", "[4.0, 16.0]")
reciprocal = _define_elementwise(
    "reciprocal",
    lambda x: jnp.ones((), x.dtype) / x,
    "Compute `1 / x`.",
    "[ 0.5  -0.25]",
    "[2.0, -4.0]",
)
reciprocal_no_nan = _define_elementwise(
    "reciprocal_no_nan",
    lambda x: jnp.where(
        x == 0, jnp.zeros((), x.dtype), 1 / jnp.where(x == 0, jnp.ones((), x.dtype), x)
    ),
    "Compute `1 / x`, but 0 where x is 0.",
    "[0.5 0. ]",
    "[2.0, 0.0]",
)
exp = _define_elementwise("exp", jnp.exp, "Compute `e^x`.", "[1.    2.718]")
expm1 = _define_elementwise(
    "expm1", jnp.expm1, "Compute `e^x - 1`, accurately near 0.", "[0.    1.718]"
)
log = _define_elementwise(
    "log", jnp.log, "Compute the natural logarithm.", "[0.    2.303]", "[1.0, 10.0]"
)
log1p = _define_elementwise(
    "log1p", jnp.log1p, "Compute `log(1 + x)`, accurately near 0.", "[0.    2.303]", "[0.0, 9.0]"
)
sin = _define_elementwise("sin", jnp.sin, "Compute the sine of x in radians.", "[0.    0.841]")
cos = _define_elementwise("cos", jnp.cos, "Compute the cosine of x in radians.", "[1.   0.54]")
tan = _define_elementwise("tan", jnp.tan, "Compute the tangent of x in radians.", "[0.    1.557]")
asin = _define_elementwise(
    "asin", jnp.arcsin, "Compute the inverse sine in radians.", "[0.    1.571]"
)
acos = _define_elementwise(
    "acos", jnp.arccos, "Compute the inverse cosine in radians.", "[1.571 0.   ]"
)
atan = _define_elementwise(
    "atan", jnp.arctan, "Compute the inverse tangent in radians.", "[0.    0.785]"
)
sinh = _define_elementwise("sinh", jnp.sinh, "Compute the hyperbolic sine.", "[0.    1.175]")
cosh = _define_elementwise("cosh", jnp.cosh, "Compute the hyperbolic cosine.", "[1.    1.543]")
tanh = _define_elementwise("tanh", jnp.tanh, "Compute the hyperbolic tangent.", "[0.    0.762]")
asinh = _define_elementwise(
    "asinh", jnp.arcsinh, "Compute the inverse hyperbolic sine.", "[0.    0.881]"
)
acosh = _define_elementwise(
    "acosh", _compute_acosh, "Compute the inverse hyperbolic cosine.", "[0.    1.317]", "[1.0, 2.0]"
)
atanh = _define_elementwise(
    "atanh", jnp.arctanh, "Compute the inverse hyperbolic tangent.", "[0.    0.549]", "[0.0, 0.5]"
)
sigmoid = _define_elementwise(
    "sigmoid",
    jax.nn.sigmoid,
    "Compute `1 / (1 + e^-x)`.",
    "[0.269 0.5   0.731]",
    "[-1.0, 0.0, 1.0]",
)
log_sigmoid = _define_elementwise(
    "log_sigmoid",
    jax.nn.log_sigmoid,
    "Compute `log(sigmoid(x))`, accurately for large |x|.",
    "[-100.      -0.693]",
    "[-100.0, 0.0]",
    kinds="f",
)
erf = _define_elementwise(
    "erf", _special.erf, "Compute the Gauss error function.", "[0.    0.843]", kinds="f"
)
erfc = _define_elementwise(
    "erfc", _special.erfc, "Compute `1 - erf(x)`.", "[1.    0.157]", kinds="f"
)
erfinv = _define_elementwise(
    "erfinv",
    _special.erfinv,
    "Compute the inverse of erf.",
    "[0.    0.477]",
    "[0.0, 0.5]",
    kinds="f",
)
erfcinv = _define_elementwise(
    "erfcinv",
    lambda x: -_compute_ndtri(0.5 * x) / jnp.sqrt(jnp.asarray(2, x.dtype)),
    "Compute the inverse of erfc.",
    "[-0.477  0.477]",
    "[1.5, 0.5]",
    kinds="f",
)
ndtri = _define_elementwise(
    "ndtri",
    _compute_ndtri,
    "Compute the quantile of the standard normal distribution.",
    "[0.   1.96]",
    "[0.5, 0.975]",
    kinds="f",
)
lgamma = _define_elementwise(
    "lgamma",
    _special.gammaln,
    "Compute the logarithm of |Gamma(x)|.",
    "[0.693 4.787]",
    "[3.0, 6.0]",
    kinds="f",
)
digamma = _define_elementwise(
    "digamma",
    _special.digamma,
    "Compute the derivative of lgamma.",
    "[-0.577  0.423]",
    "[1.0, 2.0]",
    kinds="f",
)
bessel_i0 = _define_elementwise(
    "bessel_i0",
    _compute_bessel_i0,
    "Compute the modified Bessel function of order 0.",
    "[1.    1.266]",
    kinds="f",
)
bessel_i0e = _define_elementwise(
    "bessel_i0e", _special.i0e, "Compute `exp(-|x|) * bessel_i0(x)`.", "[1.    0.466]", kinds="f"
)
bessel_i1 = _define_elementwise(
    "bessel_i1",
    _special.i1,
    "Compute the modified Bessel function of order 1.",
    "[0.    0.565]",
    kinds="f",
)
bessel_i1e = _define_elementwise(
    "bessel_i1e", _special.i1e, "Compute `exp(-|x|) * bessel_i1(x)`.", "[0.    0.208]", kinds="f"
)
floor = _define_elementwise(
    "floor",
    jnp.floor,
    "Round down to an integer.",
    "[ 1. -2.]",
    "[1.7, -1.2]",
    kinds="f",
    differentiable=False,
)
ceil = _define_elementwise(
    "ceil",
    jnp.ceil,
    "Round up to an integer.",
    "[ 2. -1.]",
    "[1.2, -1.7]",
    kinds="f",
    differentiable=False,
)
round = _define_elementwise(
    "round",
    jnp.round,
    "Round to the nearest integer, and halves to the even one.",
    "[0. 2. 2.]",
    "[0.5, 1.5, 1.7]",
    kinds="if",
    differentiable=False,
)
rint = _define_elementwise(
    "rint",
    jnp.round,
    "Round to the nearest integer, and halves to the even one.",
    "[0. 2. 2.]",
    "[0.5, 1.5, 1.7]",
    kinds="f",
    differentiable=False,
)
is_nan = _define_elementwise(
    "is_nan",
    jnp.isnan,
    "Check whether x is NaN.",
    "[False  True]",
    "[1.0, float('nan')]",
    kinds="f",
    differentiable=False,
)
is_inf = _define_elementwise(
    "is_inf",
    jnp.isinf,
    "Check whether x is infinite.",
    "[False  True]",
    "[1.0, float('-inf')]",
    kinds="f",
    differentiable=False,
)
is_finite = _define_elementwise(
    "is_finite",
    jnp.isfinite,
    "Check whether x is neither NaN nor infinite.",
    "[ True False False]",
    "[1.0, float('inf'), float('nan')]",
    kinds="f",
    differentiable=False,
)
conj = _define_elementwise(
    "conj",
    jnp.conj,
    "Compute the complex conjugate.",
    "[1.-2.j 0.-3.j]",
    "[1 + 2j, 3j]",
    kinds=None,
)
real = _define_elementwise(
    "real", jnp.real, "Return the real part.", "[1. 0.]", "[1 + 2j, 3j]", kinds=None
)
imag = _define_elementwise(
    "imag", jnp.imag, "Return the imaginary part.", "[2. 3.]", "[1 + 2j, 3j]", kinds=None
)
angle = _define_elementwise(
    "angle",
    _compute_angle,
    "Compute the argument of a complex number in radians.",
    "[1.571 3.142]",
    "[1j, -1 + 0j]",
)
sinc = _define_elementwise(
    "sinc", jnp.sinc, "Compute `sin(pi x) / (pi x)`.", "[1.    0.637]", "[0.0, 0.5]", kinds="f"
)
