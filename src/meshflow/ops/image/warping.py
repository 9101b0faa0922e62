"""Affine transforms of images."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike

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
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Transform images: output pixel (x, y) is the input pixel at `map @ (x, y, 1)`.

    Args:
      images: Floating, [batch, height, width, channels].
      maps: float32, [batch, 2, 3]; the first row yields x, the second y. The third row of [batch, 3, 3] yields
        the divisor of both; a pixel with divisor 0 is outside the image.
      fill_mode: Content outside the image: 'constant', 'nearest' (the edge), 'reflect' (the
        mirrored image) or 'wrap' (the opposite edge).
      interpolation: 'bilinear' or 'nearest'.
      fill_value: Value outside the image for 'constant'.
      size: Height and width of the result; default those of the images.
    """
    count, height, width, _ = images.shape
    rows, columns = size or (height, width)
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

    def read(row: jnp.ndarray, column: jnp.ndarray) -> jnp.ndarray:
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
