"""The two 8-bit floating-point formats: availability, and scaled rounding.

Values are rounded to float8_e4m3 and gradients to float8_e5m2. Each tensor is multiplied by a scale
that moves its largest magnitude near the largest number of the format ("FP8 Formats for Deep
Learning", Micikevicius et al. 2022, arXiv:2209.05433). The scale is computed from the largest
magnitudes of previous steps (delayed scaling), so that rounding does not need another pass over the
tensor.

Rounding consists of quantization and dequantization. XLA compiles `dequantize(a) @ dequantize(b)`
to a float8 product where the device has one. Other devices compute the same numbers with a wider
product.
"""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from meshflow.core.runtime.errors import UnimplementedError

VALUES = jnp.float8_e4m3fn
GRADIENTS = jnp.float8_e5m2

EMULATE = "MESHFLOW_EMULATE_FLOAT8"


def unavailable() -> str | None:
    """Return the reason why the default device has no float8 matrix units; None if it has them."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return f"needs a GPU with float8 matrix units, found {device.device_kind}"
    capability = str(getattr(device, "compute_capability", "none"))
    try:
        is_supported = float(capability) >= 8.9
    except ValueError:
        is_supported = False
    if is_supported:
        return None
    return f"needs compute capability 8.9 or newer, {device.device_kind} has {capability}"


def emulated() -> bool:
    """Check whether the environment enables float8 products on devices without float8 units."""
    return os.environ.get(EMULATE, "").lower() in ("1", "true")


def check_available() -> None:
    """Check that float8 products can be computed.

    Raises:
      UnimplementedError: If the default device has no float8 units and emulation is not enabled.
    """
    problem = None if emulated() else unavailable()
    if problem:
        raise UnimplementedError(
            f"The policy 'mixed_float8' {problem}. Use 'mixed_bfloat16', or set {EMULATE}=1 to compute the same "
            "numbers without float8 units, which is slower than bfloat16."
        )


def largest(array: jax.Array) -> jax.Array:
    """Return the largest magnitude of an array in float32; 0 for an empty array."""
    return jnp.max(jnp.abs(array), initial=0).astype(jnp.float32)


def scale_for(magnitude: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Return the largest power of two that keeps numbers of some magnitude within a format.

    Multiplication by powers of two is exact in every dtype. The scale for magnitude 0 is 1.

    Args:
      magnitude: Largest magnitude, float32.
      dtype: 8-bit dtype.
    """
    # The bounds keep the scale and its inverse in the range of normal numbers.
    ratio = float(jnp.finfo(dtype).max) / jnp.clip(magnitude, 2.0**-100, 2.0**100)
    _, exponent = jnp.frexp(ratio)
    return jnp.where(magnitude > 0, jnp.ldexp(jnp.float32(1), exponent - 1), jnp.float32(1))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def rounded(array: jax.Array, scale: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Round an array to the numbers of a format after scaling; larger numbers saturate.

    The derivative is that of the identity.

    Args:
      array: Floating array.
      scale: Power of two, float32.
      dtype: 8-bit dtype.

    Returns:
      An array with the dtype of `array`.
    """
    limit = float(jnp.finfo(dtype).max)
    scaled = jnp.clip(array * scale.astype(array.dtype), -limit, limit)
    return scaled.astype(dtype).astype(array.dtype) * (1 / scale).astype(array.dtype)


@rounded.defjvp
def _straight_through(
    dtype: DTypeLike, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    return rounded(*primals, dtype), tangents[0]


def rounded_alone(gradient: jax.Array) -> jax.Array:
    """Round a gradient with a scale for its own largest magnitude."""
    return rounded(gradient, scale_for(largest(gradient), GRADIENTS), GRADIENTS)


@jax.custom_vjp
def with_rounded_gradient(array: jax.Array) -> jax.Array:
    """Return the array; its gradient is rounded by `round_gradient`."""
    return array


with_rounded_gradient.defvjp(
    lambda array: (array, None), lambda _, gradient: (rounded_alone(gradient),)
)
