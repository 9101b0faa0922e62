"""Glimpses: windows around points of images, which may exceed them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops import random as random_ops
from meshflow.ops.array.shaping import StaticInts

__all__ = ["extract_glimpse"]


@op(kinds="f", same=["input", "offsets", "noise"])
def _extract(
    input: TensorLike,
    offsets: TensorLike,
    noise: TensorLike,
    size: tuple[int, int],
    centered: bool,
    normalized: bool,
) -> Tensor:
    height, width = size
    sizes = jnp.array(input.shape[1:3], offsets.dtype)
    window = jnp.array([height, width], offsets.dtype)
    starts = offsets * sizes if normalized else offsets
    if centered:
        # Offset 0 is the center of the image, and -1 and 1 are its borders.
        starts = (starts + sizes - window) / 2 if normalized else starts + sizes / 2
    starts = starts.astype(jnp.int32)

    def crop(image: jax.Array, start: jax.Array, fill: jax.Array) -> jax.Array:
        rows, columns = start[0] + jnp.arange(height), start[1] + jnp.arange(width)
        inside = ((rows >= 0) & (rows < image.shape[0]))[:, None] & (
            (columns >= 0) & (columns < image.shape[1])
        )
        pixels = image[jnp.clip(rows, 0, image.shape[0] - 1)][
            :, jnp.clip(columns, 0, image.shape[1] - 1)
        ]
        return jnp.where(inside[..., None], pixels, fill)

    return jax.vmap(crop)(input, starts, noise)


@record_in_graph
def extract_glimpse(
    input: TensorLike,
    size: StaticInts,
    offsets: TensorLike,
    centered: bool = True,
    normalized: bool = True,
    noise: str = "uniform",
    name: str | None = None,
) -> Tensor:
    """Return a window of each image; pixels outside of the image are noise.

    Args:
      input: float32 images of shape [batch, height, width, channels].
      size: Height and width of the windows.
      offsets: Centers of the windows, of shape [batch, 2].
      centered: Whether offset 0 is the center of an image instead of its upper left corner.
      normalized: Whether offsets are fractions of the size of an image.
      noise: 'uniform', 'gaussian' or 'zero'.
      name: Ignored.

    Raises:
      ValueError: If `noise` is unknown.

    Example:
      >>> image = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
      >>> tf.image.extract_glimpse(image, [1, 1], [[0.0, 0.0]]).numpy().ravel()
      array([4.], dtype=float32)
    """
    if noise not in ("uniform", "gaussian", "zero"):
        raise InvalidValueError(
            f"extract_glimpse: noise must be 'uniform', 'gaussian' or 'zero', got {noise!r}."
        )
    images = convert_to_tensor(input, dtype="float32")
    height, width = (int(n) for n in convert_to_tensor(size).numpy())
    shape = [images.shape[0], height, width, images.shape[3]]
    if noise == "zero":
        fill = array.zeros(shape)
    elif noise == "gaussian":
        mean, variance = math.reduce_mean(images), math.reduce_variance(images)
        fill = random_ops.normal(shape) * math.sqrt(variance) + mean
    else:
        fill = random_ops.uniform(shape, math.reduce_min(images), math.reduce_max(images))
    return _extract(
        images,
        convert_to_tensor(offsets, dtype="float32"),
        fill,
        (height, width),
        centered,
        normalized,
    )
