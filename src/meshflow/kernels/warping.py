"""Affine and projective transforms of float32 images as a primitive with a CPU handler, which makes one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import batching, jex_core
from meshflow.kernels import host_math, library, lowerings
from meshflow.kernels.composite_primitives import move_batch_axes_first
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall


class _Shaped(Protocol):
    """The type of an operand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""


# In the order of warp.cc.
FILL_MODES = ("constant", "nearest", "reflect", "wrap")

# Operands: images [count, height, width, channels], and maps [count, 2 or 3, 3], both float32.
# Parameters: those of `warp_images`. Result: the images [count, *size, channels].
warped_images_p = jex_core.Primitive("warped_images")


def warp_images(
    images: Array,
    maps: Array,
    *,
    fill_mode: str,
    interpolation: str,
    fill_value: float,
    size: tuple[int, int],
) -> Array:
    """Transform images: output pixel (x, y) is the input pixel at `map @ (x, y, 1)`.

    Args:
      images: Floating, [count, height, width, channels].
      maps: float32, [count, 2, 3], or [count, 3, 3] with a third row for the divisor of both coordinates.
      fill_mode: One of `FILL_MODES`.
      interpolation: 'bilinear' or 'nearest'.
      fill_value: Value outside of an image for 'constant'.
      size: Height and width of the results.
    """
    options: dict[str, Any] = {
        "fill_mode": fill_mode,
        "interpolation": interpolation,
        "fill_value": float(fill_value),
        "size": tuple(size),
    }
    if images.dtype != jnp.float32 or maps.dtype != jnp.float32:
        return _compute_images(images, maps, **options)
    return warped_images_p.bind(images, maps, **options)


def _wrap_position(position: Array, size: int, fill_mode: str) -> Array:
    """Map positions outside an image to positions inside, except for 'constant'."""
    if fill_mode == "reflect":
        # The image and its mirror image alternate: d c b a | a b c d | d c b a.
        turn = position - 2 * size * jnp.floor((position + 0.5) / (2 * size))
        position = jnp.where(turn > size - 0.5, 2 * size - 1 - turn, turn)
    elif fill_mode == "wrap":
        # TensorFlow's period is the distance between the outer pixels.
        period = max(size - 1, 1)
        from_left = position + size * (jnp.floor(-position / period) + 1)
        from_right = position - size * jnp.floor(position / period)
        position = jnp.where(
            position < 0, from_left, jnp.where(position > size - 1, from_right, position)
        )
    return position if fill_mode == "constant" else jnp.clip(position, 0, size - 1)


def _compute_images(
    images: Array,
    maps: Array,
    *,
    fill_mode: str,
    interpolation: str,
    fill_value: float,
    size: tuple[int, int],
) -> Array:
    count, height, width, _ = images.shape
    rows, columns = size
    y, x = jnp.meshgrid(
        jnp.arange(rows, dtype="f4"), jnp.arange(columns, dtype="f4"), indexing="ij"
    )
    map_positions = lambda row: (
        maps[:, row, 0, None, None] * x
        + maps[:, row, 1, None, None] * y
        + maps[:, row, 2, None, None]
    )
    across, down = map_positions(0), map_positions(1)
    is_finite = jnp.ones(across.shape, bool)
    if maps.shape[1] == 3:
        divisor = map_positions(2)
        is_finite = divisor != 0
        divisor = jnp.where(is_finite, divisor, 1)
        across, down = across / divisor, down / divisor
    across = _wrap_position(across, width, fill_mode)
    down = _wrap_position(down, height, fill_mode)
    batch = jnp.arange(count)[:, None, None]

    def read(row: Array, column: Array) -> Array:
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & is_finite
        pixels = images[
            batch,
            jnp.clip(row, 0, height - 1).astype("i4"),
            jnp.clip(column, 0, width - 1).astype("i4"),
        ]
        return jnp.where(is_inside[..., None], pixels, jnp.asarray(fill_value, images.dtype))

    if interpolation == "nearest":
        # Ties are rounded away from zero.
        round_position = lambda v: jnp.sign(v) * jnp.floor(jnp.abs(v) + 0.5)
        return read(round_position(down), round_position(across))
    top, left = jnp.floor(down), jnp.floor(across)
    lower, right = (v[..., None].astype(images.dtype) for v in (down - top, across - left))
    above = (1 - right) * read(top, left) + right * read(top, left + 1)
    below = (1 - right) * read(top + 1, left) + right * read(top + 1, left + 1)
    return (1 - lower) * above + lower * below


def _describe(operands: Sequence[_Shaped], parameters: dict[str, Any]) -> list[int]:
    """Return the descriptor of warp.cc."""
    images, maps = operands
    return [
        *images.shape,
        *parameters["size"],
        3 * maps.shape[1],
        FILL_MODES.index(parameters["fill_mode"]),
        parameters["interpolation"] == "nearest",
        int(np.float32(parameters["fill_value"]).view(np.int32)),
    ]


def _infer_type(
    images: jax.core.ShapedArray, _: object, *, size: tuple[int, int], **__: object
) -> jax.core.ShapedArray:
    result: jax.core.ShapedArray = images.update(shape=(images.shape[0], *size, images.shape[3]))
    return result


def _choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    loaded = library.load()
    if loaded is None or not loaded.has_handler(library.WARPED):
        return None
    descriptor = _describe(operands, parameters)
    result = jax.ShapeDtypeStruct(results[0].shape, results[0].dtype)
    return lambda *arrays: lowerings.call_handler(descriptor, arrays, result, library.WARPED)


def make_host_call(
    inputs: Sequence[_Shaped], parameters: dict[str, Any]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """Return a function of host arrays that computes the primitive; None if the kernels are not available.

    Args:
      inputs: Specs of the operands.
      parameters: Parameters of the primitive.
    """
    function = host_math.find_symbol("meshflow_warp", (host_math.ADDRESS,) * 4)
    if function is None:
        return None
    descriptor = np.array(_describe(inputs, parameters), np.int64)
    shape = (descriptor[0], *parameters["size"], descriptor[3])

    def call(images: np.ndarray, maps: np.ndarray) -> np.ndarray:
        images, maps = np.ascontiguousarray(images), np.ascontiguousarray(maps)
        result = np.empty(shape, np.float32)
        if function(*map(host_math.get_address, (descriptor, images, maps, result))):
            raise MemoryError("The memory for a row of images could not be allocated.")
        return result

    return call


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], **parameters: Any
) -> tuple[Array, int]:
    images, maps = move_batch_axes_first(operands, axes)
    flat = [a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]) for a in (images, maps)]
    result = warped_images_p.bind(*flat, **parameters)
    return result.reshape(*images.shape[:2], *result.shape[1:]), 0


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(warped_images_p, _compute_images, _infer_type, _choose_handler)
    batching.primitive_batchers[warped_images_p] = _batch
