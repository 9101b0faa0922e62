"""Images read at other places, which an affine map gives."""

from __future__ import annotations

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["FILL_MODES", "INTERPOLATIONS", "warp"]

FILL_MODES = ("constant", "nearest", "reflect", "wrap")
INTERPOLATIONS = ("bilinear", "nearest")


def _inside(place: jnp.ndarray, size: int, fill_mode: str) -> jnp.ndarray:
    """Places within an image for places outside of it; as they are for 'constant'."""
    if fill_mode == "reflect":
        # The image and its mirror image repeat: d c b a | a b c d | d c b a.
        turn = place - 2 * size * jnp.floor((place + 0.5) / (2 * size))
        place = jnp.where(turn > size - 0.5, 2 * size - 1 - turn, turn)
    elif fill_mode == "wrap":
        # TensorFlow counts the images passed by the distance between their outer pixels.
        period = max(size - 1, 1)
        before = place + size * (jnp.floor(-place / period) + 1)
        after = place - size * jnp.floor(place / period)
        place = jnp.where(place < 0, before, jnp.where(place > size - 1, after, place))
    return place if fill_mode == "constant" else jnp.clip(place, 0, size - 1)


@op(same=(), name="warp")
def warp(
    images: TensorLike,
    maps: TensorLike,
    fill_mode: str = "constant",
    interpolation: str = "bilinear",
    fill_value: float = 0.0,
) -> Tensor:
    """Each pixel (x, y) takes what an image has at `map @ (x, y, 1)`.

    Args:
      images: [batch, height, width, channels], floating.
      maps: float32, [batch, 2, 3]; the first row gives x, the second y.
      fill_mode: what is outside the image: 'constant', 'nearest' (its edge), 'reflect' (itself,
        mirrored), 'wrap' (its other end).
      interpolation: 'bilinear' or 'nearest'.
      fill_value: the number outside for 'constant'.

    Returns:
      Images of the same shape and dtype.
    """
    count, height, width, _ = images.shape
    y, x = jnp.meshgrid(
        jnp.arange(height, dtype="f4"), jnp.arange(width, dtype="f4"), indexing="ij"
    )
    part = lambda row: (
        maps[:, row, 0, None, None] * x
        + maps[:, row, 1, None, None] * y
        + maps[:, row, 2, None, None]
    )
    across, down = _inside(part(0), width, fill_mode), _inside(part(1), height, fill_mode)
    batch = jnp.arange(count)[:, None, None]

    def read(row: jnp.ndarray, column: jnp.ndarray) -> jnp.ndarray:
        known = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        found = images[
            batch,
            jnp.clip(row, 0, height - 1).astype("i4"),
            jnp.clip(column, 0, width - 1).astype("i4"),
        ]
        return jnp.where(known[..., None], found, jnp.asarray(fill_value, images.dtype))

    if interpolation == "nearest":
        return read(jnp.round(down), jnp.round(across))
    top, left = jnp.floor(down), jnp.floor(across)
    lower, right = (v[..., None].astype(images.dtype) for v in (down - top, across - left))
    above = (1 - right) * read(top, left) + right * read(top, left + 1)
    below = (1 - right) * read(top + 1, left) + right * read(top + 1, left + 1)
    return (1 - lower) * above + lower * below
