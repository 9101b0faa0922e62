"""The two 8-bit floating-point formats: where they are fast, and rounding to them with a scale.

Values are rounded to float8_e4m3 and gradients to float8_e5m2, each tensor multiplied by a scale
that moves its largest magnitude near the format's largest number ("FP8 Formats for Deep Learning",
Micikevicius et al. 2022, arXiv:2209.05433). The scale comes from the largest magnitudes of former
steps (delayed scaling), so that rounding need not wait for a pass over the tensor.

Rounding is written as quantise, dequantise: where XLA has float8 products it computes
`dequantise(a) @ dequantise(b)` as one; elsewhere the same numbers come from a wider product.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.runtime.errors import UnimplementedError

VALUES = jnp.float8_e4m3fn
GRADIENTS = jnp.float8_e5m2

EMULATE = "MESHFLOW_EMULATE_FLOAT8"


def unavailable() -> str | None:
    """Why the default device has no float8 matrix units; None when it has them."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return f"needs a GPU with float8 matrix units, found {device.device_kind}"
    capability = str(getattr(device, "compute_capability", "none"))
    try:
        enough = float(capability) >= 8.9
    except ValueError:
        enough = False
    if enough:
        return None
    return f"needs compute capability 8.9 or newer, {device.device_kind} has {capability}"


def emulated() -> bool:
    """Whether the environment asks to compute float8 products on devices that have none."""
    return os.environ.get(EMULATE, "").lower() in ("1", "true")


def check_available() -> None:
    """Makes sure that float8 products can be computed.

    Raises:
      UnimplementedError: when the default device has none, and emulation is not asked for.
    """
    problem = None if emulated() else unavailable()
    if problem:
        raise UnimplementedError(
            f"The policy 'mixed_float8' {problem}. Use 'mixed_bfloat16', or set {EMULATE}=1 to compute the same "
            "numbers without float8 units, which is slower than bfloat16."
        )


def largest(array: Any) -> Any:
    """The largest magnitude of an array in float32; 0 for an empty one."""
    return jnp.max(jnp.abs(array), initial=0).astype(jnp.float32)


def scale_for(magnitude: Any, kind: Any) -> Any:
    """The largest power of two that keeps numbers of some magnitude within a format.

    Powers of two multiply exactly in every dtype. A magnitude of 0 gives 1.

    Args:
      magnitude: float32.
      kind: the 8-bit dtype.
    """
    # The bounds keep the scale and its inverse normal numbers.
    room = float(jnp.finfo(kind).max) / jnp.clip(magnitude, 2.0**-100, 2.0**100)
    _, exponent = jnp.frexp(room)
    return jnp.where(magnitude > 0, jnp.ldexp(jnp.float32(1), exponent - 1), jnp.float32(1))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def rounded(array: Any, scale: Any, kind: Any) -> Any:
    """An array with the numbers that a format has, after scaling; too large ones become its largest.

    The derivative is that of the identity.

    Args:
      array: a floating array.
      scale: a power of two, float32.
      kind: the 8-bit dtype.

    Returns:
      An array of the same dtype.
    """
    limit = float(jnp.finfo(kind).max)
    scaled = jnp.clip(array * scale.astype(array.dtype), -limit, limit)
    return scaled.astype(kind).astype(array.dtype) * (1 / scale).astype(array.dtype)


@rounded.defjvp
def _straight_through(kind: Any, primals: Any, tangents: Any) -> Any:
    return rounded(*primals, kind), tangents[0]


def rounded_alone(gradient: Any) -> Any:
    """A gradient rounded with a scale from its own largest magnitude."""
    return rounded(gradient, scale_for(largest(gradient), GRADIENTS), GRADIENTS)


@jax.custom_vjp
def with_rounded_gradient(array: Any) -> Any:
    """The array; its gradient is `rounded_alone`."""
    return array


with_rounded_gradient.defvjp(
    lambda array: (array, None), lambda _, gradient: (rounded_alone(gradient),)
)
