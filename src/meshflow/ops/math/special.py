"""Special functions: `tf.math.special`.

JAX has no Bessel functions of the second kind, Fresnel integrals or Dawson's integral. This module
computes them as sums over nodes
of an integral, with enough nodes for float64: trapezoidal sums of periodic or rapidly decaying
analytic functions converge faster
than any power of the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.math.elementwise import bessel_i0, bessel_i0e, bessel_i1, bessel_i1e
from meshflow.ops.signatures import ElementwiseOp

__all__ = [
    "bessel_i0",
    "bessel_i0e",
    "bessel_i1",
    "bessel_i1e",
    "bessel_j0",
    "bessel_j1",
    "bessel_k0",
    "bessel_k0e",
    "bessel_k1",
    "bessel_k1e",
    "bessel_y0",
    "bessel_y1",
    "dawsn",
    "expint",
    "fresnel_cos",
    "fresnel_sin",
    "spence",
]


# Functions of float64 arrays by name; some derivatives are defined by other functions.
_FLOAT64_FUNCTIONS: dict[str, Callable[[Any], Any]] = {}


def _define_special(
    name: str,
    value: Callable[[Any], Any],
    derivative: Callable[[Any, Any], Any],
    summary: str,
    example_output: str,
) -> ElementwiseOp:
    """Define an op in float64 from functions value(x) and derivative(x, value)."""

    @jax.custom_jvp
    def function(x: Any) -> Any:
        return value(x)

    @function.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        y = function(*primals)
        return y, derivative(primals[0], y) * tangents[0]

    def compute(x: TensorLike, name: str | None = None) -> Tensor:
        return function(x.astype(jnp.float64)).astype(x.dtype)

    compute.__name__ = compute.__qualname__ = name
    compute.__module__ = __name__
    compute.__doc__ = f"""{summary}

    Args:
      x: A floating tensor.
      name: Ignored.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> print(tf.math.special.{name}([0.5, 2.0]).numpy().round(3))
      {example_output}
    """
    _FLOAT64_FUNCTIONS[name] = function
    return op(compute, kinds="f")


def _compute_dawsn(x: jax.Array) -> jax.Array:
    step = 0.2
    nearest_node = 2 * jnp.round(x / (2 * step))
    odd = np.arange(-41, 42, 2)
    distance = (x - nearest_node * step)[..., None] - odd * step
    total = jnp.sum(jnp.exp(-jnp.square(distance)) / (nearest_node[..., None] + odd), -1)
    return jnp.where(jnp.isinf(x), 0.0, total / np.sqrt(np.pi))


def _compute_fresnel(x: jax.Array) -> tuple[Any, Any]:
    """Compute the integrals from 0 to x of cos and sin of pi t^2 / 2."""
    border, size = 6.0, jnp.abs(x)
    nodes, weights = np.polynomial.legendre.leggauss(96)
    near = jnp.minimum(size, border)
    phases = jnp.pi / 2 * jnp.square(near[..., None] * (nodes + 1) / 2)
    inner = [jnp.sum(f(phases) * weights, -1) * near / 2 for f in (jnp.cos, jnp.sin)]
    # Beyond the border, the asymptotic series of the auxiliary functions f and g is used.
    far = jnp.maximum(size, border)
    square = 1 / (jnp.pi * jnp.square(far))
    f, g, term = jnp.zeros_like(far), jnp.zeros_like(far), jnp.ones_like(far)
    for m in range(8):
        f, term = f + (-1) ** m * term, term * (4 * m + 1) * square
        g, term = g + (-1) ** m * term, term * (4 * m + 3) * square
    f, g = f / (jnp.pi * far), g / (jnp.pi * far)
    # The phase is proportional to the square of x: huge arguments count as infinity, where f and g
    # vanish.
    phase = jnp.pi / 2 * jnp.square(jnp.minimum(far, 1e7))
    sine, cosine = jnp.sin(phase), jnp.cos(phase)
    outer = [0.5 + f * sine - g * cosine, 0.5 - f * cosine - g * sine]
    parts = [jnp.where(size < border, i, o) for i, o in zip(inner, outer, strict=True)]
    return jnp.sign(x) * parts[0], jnp.sign(x) * parts[1]


# Up to this argument, Bessel functions of the first and second kind are means over angles.
_HANKEL_MIN = 25.0
_ANGLES = 2 * np.pi * np.arange(160) / 160
_EULER = 0.57721566490153286
# One weight per angle of the Neumann series of Y in the J of even order.
_ORDERS = np.arange(1, 41)[:, None]
_NEUMANN = np.sum((-1.0) ** (_ORDERS + 1) * np.cos(2 * _ORDERS * _ANGLES) / _ORDERS, 0)


def _compute_hankel_series(x: jax.Array, order: int) -> tuple[Any, Any]:
    """Compute J and Y of large x by Hankel's asymptotic series."""
    p, q, term = jnp.zeros_like(x), jnp.zeros_like(x), jnp.ones_like(x)
    for k in range(0, 24, 2):
        p, term = p + term, term * (4 * order**2 - (2 * k + 1) ** 2) / ((k + 1) * 8 * x)
        q, term = q + term, -term * (4 * order**2 - (2 * k + 3) ** 2) / ((k + 2) * 8 * x)
    angle, size = x - (2 * order + 1) * np.pi / 4, jnp.sqrt(2 / (np.pi * x))
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def _compute_bessel_j(x: jax.Array, order: int) -> jax.Array:
    size = jnp.abs(x)
    near = jnp.minimum(size, _HANKEL_MIN)[..., None]
    inner = jnp.mean(jnp.cos(order * _ANGLES - near * np.sin(_ANGLES)), -1)
    value = jnp.where(
        size <= _HANKEL_MIN, inner, _compute_hankel_series(jnp.maximum(size, _HANKEL_MIN), order)[0]
    )
    return value * jnp.sign(x) if order else value


def _compute_bessel_y(x: jax.Array, order: int) -> jax.Array:
    near = jnp.clip(x, 1e-300, _HANKEL_MIN)
    phases = near[..., None] * np.sin(_ANGLES)
    logarithm = 2 / np.pi * (jnp.log(near / 2) + _EULER) * _compute_bessel_j(near, order)
    if order:
        series = jnp.mean(jnp.sin(phases) * np.sin(_ANGLES) * _NEUMANN, -1)
        inner = logarithm + 4 / np.pi * series - 2 / np.pi * _compute_bessel_j(near, 0) / near
    else:
        inner = logarithm + 4 / np.pi * jnp.mean(jnp.cos(phases) * _NEUMANN, -1)
    value = jnp.where(
        x <= _HANKEL_MIN, inner, _compute_hankel_series(jnp.maximum(x, _HANKEL_MIN), order)[1]
    )
    # As in TensorFlow, not NaN for negative numbers.
    return jnp.where(x <= 0, -jnp.inf, value)


def _compute_scaled_bessel_k(x: jax.Array, order: int) -> jax.Array:
    """Compute exp(x) times the modified Bessel function of the second kind."""
    safe = jnp.maximum(x, 1e-300)
    # exp(-x (cosh t - 1)) is negligible at `end`; a small x adds log(1/x).
    end = jnp.log1p(80 / safe + jnp.sqrt(jnp.square(80 / safe) + 160 / safe))
    steps = np.arange(400) / 400
    t = end[..., None] * steps
    half = jnp.sinh(t / 2)
    # sinh^2 overflows for t near `end` only if x is tiny, so the product is computed in the
    # exponent.
    heights = jnp.exp(-2 * safe[..., None] * jnp.square(half)) * jnp.cosh(order * t)
    total = (jnp.sum(heights, -1) - heights[..., 0] / 2) * end / 400
    # As in TensorFlow, not NaN for negative numbers.
    return jnp.where(x <= 0, jnp.inf, jnp.where(x == jnp.inf, 0.0, total))


def _compute_bessel_k(x: jax.Array, order: int) -> jax.Array:
    return jnp.exp(-jnp.maximum(x, 0)) * _compute_scaled_bessel_k(x, order)


dawsn = _define_special(
    "dawsn",
    _compute_dawsn,
    lambda x, y: 1 - 2 * x * y,
    "Compute Dawson's integral.",
    "[0.424 0.301]",
)
expint = _define_special(
    "expint",
    lambda x: jnp.where(
        x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, jax.scipy.special.expi(jnp.maximum(x, 0)))
    ),
    lambda x, y: jnp.exp(x) / x,
    "Compute the exponential integral Ei of positive numbers; NaN for others.",
    "[0.454 4.954]",
)
fresnel_cos = _define_special(
    "fresnel_cos",
    lambda x: _compute_fresnel(x)[0],
    lambda x, y: jnp.cos(jnp.pi / 2 * x * x),
    "Compute the integral of cos(pi t^2 / 2) from 0 to x.",
    "[0.492 0.488]",
)
fresnel_sin = _define_special(
    "fresnel_sin",
    lambda x: _compute_fresnel(x)[1],
    lambda x, y: jnp.sin(jnp.pi / 2 * x * x),
    "Compute the integral of sin(pi t^2 / 2) from 0 to x.",
    "[0.065 0.343]",
)
spence = _define_special(
    "spence",
    jax.scipy.special.spence,
    lambda x, y: jnp.where(x == 1, -1.0, jnp.log(x) / jnp.where(x == 1, 1.0, 1 - x)),
    "Compute Spence's function, the dilogarithm of 1 - x.",
    "[ 0.582 -0.822]",
)
bessel_j0 = _define_special(
    "bessel_j0",
    lambda x: _compute_bessel_j(x, 0),
    lambda x, y: -_FLOAT64_FUNCTIONS["bessel_j1"](x),
    "Compute the Bessel function of the first kind of order 0.",
    "[0.938 0.224]",
)
bessel_j1 = _define_special(
    "bessel_j1",
    lambda x: _compute_bessel_j(x, 1),
    lambda x, y: jnp.where(
        x == 0, 0.5, _FLOAT64_FUNCTIONS["bessel_j0"](x) - y / jnp.where(x == 0, 1.0, x)
    ),
    "Compute the Bessel function of the first kind of order 1.",
    "[0.242 0.577]",
)
bessel_y0 = _define_special(
    "bessel_y0",
    lambda x: _compute_bessel_y(x, 0),
    lambda x, y: -_FLOAT64_FUNCTIONS["bessel_y1"](x),
    "Compute the Bessel function of the second kind of order 0; infinite for negative numbers.",
    "[-0.445  0.51 ]",
)
bessel_y1 = _define_special(
    "bessel_y1",
    lambda x: _compute_bessel_y(x, 1),
    lambda x, y: _FLOAT64_FUNCTIONS["bessel_y0"](x) - y / x,
    "Compute the Bessel function of the second kind of order 1; infinite for negative numbers.",
    "[-1.471 -0.107]",
)
bessel_k0e = _define_special(
    "bessel_k0e",
    lambda x: _compute_scaled_bessel_k(x, 0),
    lambda x, y: y - _FLOAT64_FUNCTIONS["bessel_k1e"](x),
    "Compute `exp(x) * bessel_k0(x)`.",
    "[1.524 0.842]",
)
bessel_k1e = _define_special(
    "bessel_k1e",
    lambda x: _compute_scaled_bessel_k(x, 1),
    lambda x, y: y * (1 - 1 / x) - _FLOAT64_FUNCTIONS["bessel_k0e"](x),
    "Compute `exp(x) * bessel_k1(x)`.",
    "[2.731 1.033]",
)
bessel_k0 = _define_special(
    "bessel_k0",
    lambda x: _compute_bessel_k(x, 0),
    lambda x, y: -_FLOAT64_FUNCTIONS["bessel_k1"](x),
    "Compute the modified Bessel function of the second kind of order 0; infinite for negative numbers.",
    "[0.924 0.114]",
)
bessel_k1 = _define_special(
    "bessel_k1",
    lambda x: _compute_bessel_k(x, 1),
    lambda x, y: -_FLOAT64_FUNCTIONS["bessel_k0"](x) - y / x,
    "Compute the modified Bessel function of the second kind of order 1; infinite for negative numbers.",
    "[1.656 0.14 ]",
)
