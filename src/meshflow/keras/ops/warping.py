"""Images read at other places.

Example:
  >>> from meshflow.keras import ops
  >>> ops.image.map_coordinates([1.0, 3.0], [[0.5]], 1).numpy().tolist()
  [2.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.ndimage as ndimage
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras import random
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.images import channels_last, checked_images, gaussian_blur
from meshflow.keras.ops.promotion import as_float, common, tensor
from meshflow.ops import array as array_ops
from meshflow.ops import casting

__all__ = [
    "affine_transform",
    "elastic_transform",
    "map_coordinates",
    "perspective_transform",
    "scale_and_translate",
]


_FILL_MODES = ("constant", "mirror", "nearest", "reflect", "wrap")


@op(same=(), name="map_coordinates")
def _sampled(x: TensorLike, places: TensorLike, fill: float, order: int, mode: str) -> Any:
    return ndimage.map_coordinates(x, list(places), order, mode, fill)


@one_layer("image")
def map_coordinates(
    inputs: TensorLike,
    coordinates: TensorLike,
    order: int,
    fill_mode: str = "constant",
    fill_value: float = 0,
) -> Tensor:
    """Elements at places between the elements.

    Args:
      inputs: a tensor.
      coordinates: [rank of `inputs`, ...].
      order: 0 for the nearest element, 1 for linear interpolation.
      fill_mode: what is outside: 'constant', 'nearest', 'wrap', 'mirror' or 'reflect'.
      fill_value: the element of 'constant'.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.image.map_coordinates([1.0, 3.0], [[0.5]], 1).numpy().tolist()
      [2.0]
    """
    if fill_mode not in _FILL_MODES:
        raise ValueError(
            f"Invalid value for argument `fill_mode`. Expected one of {_FILL_MODES}. Received: fill_mode={fill_mode}"
        )
    if order not in (0, 1):
        raise ValueError(
            f"Invalid value for argument `order`. Expected one of [0, 1]. Received: order={order}"
        )
    inputs, places = tensor(inputs), as_float(coordinates)
    if places.shape[0] != len(inputs.shape):
        raise ValueError(
            f"First dim of `coordinates` must be the same as the rank of `inputs`. Received inputs with shape: "
            f"{tuple(inputs.shape)} and coordinate leading dim of {places.shape[0]}"
        )
    return _sampled(inputs, places, float(fill_value), order, fill_mode)


def _moved(
    images: Any,
    places: Callable[[Any, Any], Any],
    interpolation: str,
    mode: str,
    value: Any,
    data_format: Any,
) -> Any:
    """Images read at places that a function of (rows, columns) gives for each of them."""
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(
            f"Invalid value for argument `interpolation`. Expected one of ['nearest', 'bilinear']. Received: interpolation={interpolation}"
        )
    images = checked_images(images, "transform")
    alone = len(images.shape) == 3

    def moved(x: Any) -> Any:
        batch = array_ops.expand_dims(x, 0) if alone else x
        kind = batch.dtype
        rows, columns = np.meshgrid(
            np.arange(batch.shape[1]), np.arange(batch.shape[2]), indexing="ij"
        )
        laid = places(rows.astype("float32"), columns.astype("float32"))
        linear = int(interpolation == "bilinear")
        found = _read(as_float(batch), laid, float(value), linear, mode)
        found = casting.cast(found, kind)
        return array_ops.squeeze(found, 0) if alone else found

    return channels_last(moved, images, data_format)


@op(same=(), name="read_images")
def _read(x: TensorLike, places: TensorLike, fill: float, order: int, mode: str) -> Any:
    one = lambda channel, at: ndimage.map_coordinates(channel, [at[0], at[1]], order, mode, fill)
    whole = jax.vmap(one, (-1, None), -1)
    return jax.vmap(whole)(x, jnp.broadcast_to(places, (x.shape[0], *places.shape[1:])))


@one_layer("image")
def affine_transform(
    images: TensorLike,
    transform: TensorLike,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Tensor:
    """Images whose pixel (x, y) is read at `((a x + b y + c) / k, (d x + e y + f) / k)`, `k = g x + h y + 1`.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      transform: (a, b, c, d, e, f, g, h), of each image or of all.
      interpolation: 'nearest' or 'bilinear'.
      fill_mode: what is outside: 'constant', 'nearest', 'wrap', 'mirror' or 'reflect'.
      fill_value: the element of 'constant'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.image.affine_transform(ops.ones([2, 2, 1]), [1, 0, 1, 0, 1, 0, 0, 0]).numpy()[..., 0].tolist()
      [[1.0, 0.0], [1.0, 0.0]]
    """
    numbers = as_float(transform)
    if numbers.shape[-1] != 8:
        raise ValueError(
            f"`transform` must have 8 numbers. Received: transform.shape={tuple(numbers.shape)}"
        )
    numbers = array_ops.reshape(numbers, [-1, 8])

    def places(rows: Any, columns: Any) -> Any:
        a, b, c, d, e, f, g, h = (n[:, None, None] for n in array_ops.unstack(numbers, axis=1))
        scale = g * columns + h * rows + 1.0
        return array_ops.stack(
            [(d * columns + e * rows + f) / scale, (a * columns + b * rows + c) / scale], 1
        )

    return _moved(images, places, interpolation, fill_mode, fill_value, data_format)


@one_layer("image")
def elastic_transform(
    images: TensorLike,
    alpha: float = 20.0,
    sigma: float = 5.0,
    interpolation: str = "bilinear",
    fill_mode: str = "reflect",
    fill_value: float = 0.0,
    seed: Any = None,
    data_format: str | None = None,
) -> Tensor:
    """Images drawn on rubber: each pixel is read a random way off, and neighbours go nearly the same way.

    The ways are normally distributed numbers times `sigma`, smoothed by a bell of that deviation, times `alpha`.

    Args:
      images: [height, width, channels] or a batch of them (or channels first), whose sizes are known.
      alpha: how far pixels move.
      sigma: over how many pixels ways are smoothed.
      interpolation: 'nearest' or 'bilinear'.
      fill_mode: what is outside: 'constant', 'nearest', 'wrap', 'mirror' or 'reflect'.
      fill_value: the element of 'constant'.
      seed: a whole number, a `SeedGenerator`, or None.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.image.elastic_transform(ops.ones([8, 8, 3]), sigma=2.0).shape
      TensorShape([8, 8, 3])
    """
    size = 6 * int(sigma) | 1

    def places(rows: Any, columns: Any) -> Any:
        shape = tensor(images).shape.as_list()
        count = (shape[0] or 1) if len(shape) == 4 else 1
        # Both ways of all images at once, as two channels.
        drawn = random.normal([count, *rows.shape, 2], dtype="float32", seed=seed) * sigma
        ways = alpha * gaussian_blur(drawn, (size, size), (sigma, sigma), "channels_last")
        down, right = array_ops.unstack(ways, axis=-1)
        return array_ops.stack([rows + down, columns + right], 1)

    return _moved(images, places, interpolation, fill_mode, fill_value, data_format)


@op(name="perspective")
def _perspective(start: TensorLike, end: TensorLike) -> Any:
    """The eight numbers that bring the end points to the start points."""
    x, y = end[..., 0], end[..., 1]
    u, v = start[..., 0], start[..., 1]
    one, none = jnp.ones_like(x), jnp.zeros_like(x)
    above = jnp.stack([x, y, one, none, none, none, -x * u, -y * u], -1)
    below = jnp.stack([none, none, none, x, y, one, -x * v, -y * v], -1)
    matrix = jnp.concatenate([above, below], -2)
    return jnp.linalg.solve(matrix, jnp.concatenate([u, v], -1)[..., None])[..., 0]


@one_layer("image")
def perspective_transform(
    images: TensorLike,
    start_points: TensorLike,
    end_points: TensorLike,
    interpolation: str = "bilinear",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Tensor:
    """Images seen so that four points come to four others.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      start_points: [4, 2] or [batch, 4, 2], points (x, y).
      end_points: where they come to.
      interpolation: 'nearest' or 'bilinear'.
      fill_value: what is outside.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> from meshflow.keras import ops
      >>> corners = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
      >>> ops.image.perspective_transform(ops.ones([2, 2, 1]), corners, corners).shape
      TensorShape([2, 2, 1])
    """
    start, end = common(start_points, end_points, also=float)
    if tuple(start.shape[-2:]) != (4, 2) or tuple(end.shape[-2:]) != (4, 2):
        raise ValueError(
            f"start_points and end_points must be [..., 4, 2]. Received: {tuple(start.shape)} and {tuple(end.shape)}."
        )
    return affine_transform(
        images, _perspective(start, end), interpolation, "constant", fill_value, data_format
    )


_METHODS = (
    "linear",
    "bilinear",
    "trilinear",
    "cubic",
    "bicubic",
    "tricubic",
    "lanczos3",
    "lanczos5",
)


@op(same=(), name="scale_and_translate")
def _scaled(
    x: TensorLike,
    scale: TensorLike,
    translation: TensorLike,
    shape: Any,
    axes: Any,
    method: str,
    antialias: bool,
) -> Any:
    return jax.image.scale_and_translate(
        x, shape, axes, scale, translation, method, antialias
    ).astype(x.dtype)


@one_layer("image")
def scale_and_translate(
    images: TensorLike,
    output_shape: Any,
    scale: TensorLike,
    translation: TensorLike,
    spatial_dims: Any,
    method: str,
    antialias: bool = True,
) -> Tensor:
    """Images scaled and moved, by interpolation between pixel centres.

    Args:
      images: a tensor.
      output_shape: the shape of the result.
      scale: a factor for each spatial dimension.
      translation: how far each is moved.
      spatial_dims: which dimensions these are.
      method: 'linear', 'cubic', 'lanczos3' or 'lanczos5'.
      antialias: whether the filter widens when images get smaller.

    Example:
      >>> from meshflow.keras import ops
      >>> x = ops.ones([2, 2])
      >>> ops.image.scale_and_translate(x, (4, 4), [2.0, 2.0], [0.0, 0.0], (0, 1), "linear").shape
      TensorShape([4, 4])
    """
    if method not in _METHODS:
        raise ValueError(
            f"Invalid value for argument `method`. Expected of one {_METHODS}. Received: method={method}"
        )
    plain = method.removeprefix("bi").removeprefix("tri")
    return _scaled(
        as_float(images),
        as_float(scale),
        as_float(translation),
        tuple(output_shape),
        tuple(spatial_dims),
        plain,
        antialias,
    )
