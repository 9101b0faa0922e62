"""Affine transforms of images."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["FILL_MODES", "INTERPOLATIONS", "warp"]

FILL_MODES = ("constant", "nearest", "reflect", "wrap")
INTERPOLATIONS = ("bilinear", "nearest")


def _wrap_position(position: jnp.ndarray, size: int, fill_mode: str) -> jnp.ndarray:
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


@op(same=(), name="warp")
def warp(
    images: TensorLike,
    maps: TensorLike,
    fill_mode: str = "constant",
    interpolation: str = "bilinear",
    fill_value: float = 0.0,
) -> Tensor:
    """Transform images: output pixel (x, y) is the input pixel at `map @ (x, y, 1)`.

    Args:
      images: Floating, [batch, height, width, channels].
      maps: float32, [batch, 2, 3]; the first row yields x, the second y.
      fill_mode: Content outside the image: 'constant', 'nearest' (the edge), 'reflect' (the
        mirrored image) or 'wrap' (the opposite edge).
      interpolation: 'bilinear' or 'nearest'.
      fill_value: Value outside the image for 'constant'.
    """
    count, height, width, _ = images.shape
    y, x = jnp.meshgrid(
        jnp.arange(height, dtype="f4"), jnp.arange(width, dtype="f4"), indexing="ij"
    )
    map_positions = lambda row: (
        maps[:, row, 0, None, None] * x
        + maps[:, row, 1, None, None] * y
        + maps[:, row, 2, None, None]
    )
    across, down = (
        _wrap_position(map_positions(0), width, fill_mode),
        _wrap_position(map_positions(1), height, fill_mode),
    )
    batch = jnp.arange(count)[:, None, None]

    def read(row: jnp.ndarray, column: jnp.ndarray) -> jnp.ndarray:
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        pixels = images[
            batch,
            jnp.clip(row, 0, height - 1).astype("i4"),
            jnp.clip(column, 0, width - 1).astype("i4"),
        ]
        return jnp.where(is_inside[..., None], pixels, jnp.asarray(fill_value, images.dtype))

    if interpolation == "nearest":
        return read(jnp.round(down), jnp.round(across))
    top, left = jnp.floor(down), jnp.floor(across)
    lower, right = (v[..., None].astype(images.dtype) for v in (down - top, across - left))
    above = (1 - right) * read(top, left) + right * read(top, left + 1)
    below = (1 - right) * read(top + 1, left) + right * read(top + 1, left + 1)
    return (1 - lower) * above + lower * below
