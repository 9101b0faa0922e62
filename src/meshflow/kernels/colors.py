"""Color changes of float32 images as a primitive with a CPU handler, which makes one pass over the pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import batching, jex_core
from meshflow.kernels import host_math, library, lowerings
from meshflow.kernels.composite_primitives import move_batch_axes_first
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Operands: images [count, pixels, channels], and a factor for each image [count], both float32.
# Parameter: `change`, a key of `_CHANGES`. Result: the changed images.
changed_colors_p = jex_core.Primitive("changed_colors")


def change_colors(change: str, images: Array, factors: Array | float) -> Array:
    """Change the colors of images [..., 3], or the contrast of images [..., height, width, channels].

    Args:
      change: "hue", "saturation", "to_hsv", "from_hsv" or "contrast".
      images: Floating images, in [0, 1] except for the contrast.
      factors: Scalar: turns of the hue, or factor of the saturation or contrast; 0 for conversions.
    """
    shape = images.shape
    channels = shape[-1]
    if change == "contrast":
        count, pixels = math.prod(shape[:-3]), shape[-3] * shape[-2]
    elif channels != 3:
        raise ValueError(f"input must have 3 channels but instead has {channels} channels")
    else:
        count, pixels = 1, math.prod(shape[:-1])
    images = images.reshape(count, pixels, channels)
    if images.dtype != jnp.float32 or channels not in (1, 3):
        factors = jnp.broadcast_to(jnp.asarray(factors, images.dtype), (count,))
        return _CHANGES[change](images, factors[:, None]).reshape(shape)
    factors = jnp.broadcast_to(jnp.asarray(factors, jnp.float32), (count,))
    return changed_colors_p.bind(images, factors, change=change).reshape(shape)


def _compute_change(images: Array, factors: Array, *, change: str) -> Array:
    return _CHANGES[change](images, factors[:, None])


def _rotate_hue(images: Array, delta: Array) -> Array:
    """Rotate the hue of RGB colors, without the conversion of saturation and value.

    A component of a color with largest component a, smallest component b and hue h is b + (a - b) f(h).
    """
    r, g, b, high, low = _find_range(images)
    span = high - low
    hue = _compute_hue(r, g, b, high, span) + 6 * delta
    return jnp.stack([low + span * _compute_ramp(hue + shift) for shift in (0, 4, 2)], -1)


def _scale_saturation(images: Array, factor: Array) -> Array:
    """Multiply the saturation of HSV colors, without the conversion of the hue.

    A component of a color with value v, saturation s and hue h is v - v s f(h), so a new saturation
    scales its difference from v.
    """
    r, g, b, high, low = _find_range(images)
    span = high - low
    saturation = jnp.clip(_compute_saturation(high, span) * factor, 0, 1)
    scale = high * saturation / jnp.where(span == 0, 1, span)
    return jnp.stack([high - (high - part) * scale for part in (r, g, b)], -1)


def _convert_to_hsv(images: Array, _: Array) -> Array:
    r, g, b, high, low = _find_range(images)
    span = high - low
    hue = _wrap(_compute_hue(r, g, b, high, span) / 6, 1)
    return jnp.stack([hue, _compute_saturation(high, span), high], -1)


def _convert_from_hsv(images: Array, _: Array) -> Array:
    h, s, v = (images[..., i] for i in range(3))
    return jnp.stack([v * (1 - s * (1 - _compute_ramp(h * 6 + i))) for i in (0, 4, 2)], -1)


def _scale_contrast(images: Array, factor: Array) -> Array:
    mean = jnp.mean(images, axis=1, keepdims=True)
    return (images - mean) * factor[..., None] + mean


def _find_range(images: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return the three components of each pixel, the largest and the smallest, [...]."""
    r, g, b = images[..., 0], images[..., 1], images[..., 2]
    return r, g, b, jnp.maximum(jnp.maximum(r, g), b), jnp.minimum(jnp.minimum(r, g), b)


def _compute_hue(r: Array, g: Array, b: Array, high: Array, span: Array) -> Array:
    """Return the hue in sixths of a turn, from -1 to 5; 0 for gray."""
    is_red, is_green = high == r, high == g
    difference = jnp.where(is_red, g - b, jnp.where(is_green, b - r, r - g))
    start = jnp.where(is_red, 0, jnp.where(is_green, 2, 4))
    return start + difference / jnp.where(span == 0, 1, span)


def _compute_saturation(high: Array, span: Array) -> Array:
    return jnp.where(high > 0, span / jnp.where(high > 0, high, 1), 0)


def _compute_ramp(hue: Array) -> Array:
    return jnp.clip(jnp.abs(_wrap(hue, 6) - 3) - 1, 0, 1)


def _wrap(x: Array, period: int) -> Array:
    """Return the remainder of numbers in a few periods; XLA computes general remainders slowly."""
    return x - period * jnp.floor(x / period)


# The equations of each change, of images [count, pixels, channels] and factors [count, 1], in the order of colors.cc.
_CHANGES: dict[str, Callable[[Array, Array], Array]] = {
    "hue": _rotate_hue,
    "saturation": _scale_saturation,
    "to_hsv": _convert_to_hsv,
    "from_hsv": _convert_from_hsv,
    "contrast": _scale_contrast,
}
_NAMES = list(_CHANGES)


def make_host_call(change: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """Return a function of host arrays that computes the primitive; None if the kernels are not available."""
    address, integer = host_math.ADDRESS, host_math.INTEGER
    types = (integer, address, address, address, integer, integer, integer)
    loop, code = host_math.find_symbol("meshflow_change_colors", types), _NAMES.index(change)

    def call(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
        images, factors = np.ascontiguousarray(images), np.ascontiguousarray(factors)
        result = np.empty(images.shape, np.float32)
        loop(code, *map(host_math.get_address, (images, factors, result)), *images.shape)
        return result

    return None if loop is None else call


def _choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    loaded = library.load()
    if loaded is None or not loaded.has_handler(library.COLORS):
        return None
    descriptor = [_NAMES.index(parameters["change"])]
    result = jax.ShapeDtypeStruct(results[0].shape, results[0].dtype)
    return lambda *arrays: lowerings.call_handler(descriptor, arrays, result, library.COLORS)


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, change: str
) -> tuple[Array, int]:
    images, factors = move_batch_axes_first(operands, axes)
    shape = images.shape
    flat = images.reshape(shape[0] * shape[1], *shape[2:]), factors.reshape(-1)
    return changed_colors_p.bind(*flat, change=change).reshape(shape), 0


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(
        changed_colors_p, _compute_change, lambda images, *_, **__: images, _choose_handler
    )
    batching.primitive_batchers[changed_colors_p] = _batch
