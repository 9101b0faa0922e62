"""Geometric transforms of images: interpolation of pixels at other coordinates.

Example:
  >>> ops.image.map_coordinates([1.0, 3.0], [[0.5]], 1).numpy().tolist()
  [2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.ndimage as ndimage
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras import random
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.images import apply_channels_last, check_images, gaussian_blur
from meshflow.keras.ops.promotion import as_float, as_tensor, promote
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
def _map_coordinates(x: TensorLike, places: TensorLike, fill: float, order: int, mode: str) -> Any:
    return ndimage.map_coordinates(x, list(places), order, mode, fill)


@as_single_layer("image")
def map_coordinates(
    inputs: TensorLike,
    coordinates: TensorLike,
    order: int,
    fill_mode: str = "constant",
    fill_value: float = 0,
) -> Tensor:
    """Interpolate elements at fractional coordinates.

    Args:
      inputs: A tensor.
      coordinates: Coordinates, [rank of `inputs`, ...].
      order: 0 for the nearest element, 1 for linear interpolation.
      fill_mode: Extension beyond the border: 'constant', 'nearest', 'wrap', 'mirror' or 'reflect'.
      fill_value: Value for 'constant'.

    Example:
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
    inputs, coordinate_tensor = as_tensor(inputs), as_float(coordinates)
    if coordinate_tensor.shape[0] != len(inputs.shape):
        raise ValueError(
            f"First dim of `coordinates` must be the same as the rank of `inputs`. Received inputs with shape: "
            f"{tuple(inputs.shape)} and coordinate leading dim of {coordinate_tensor.shape[0]}"
        )
    return _map_coordinates(inputs, coordinate_tensor, float(fill_value), order, fill_mode)


def _warp_images(
    images: TensorLike,
    compute_coordinates: Callable[[np.ndarray, np.ndarray], Tensor],
    interpolation: str,
    mode: str,
    value: float,
    data_format: str | None,
) -> Tensor:
    """Sample images at coordinates that a function computes from their rows and columns."""
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(
            f"Invalid value for argument `interpolation`. Expected one of ['nearest', 'bilinear']. Received: interpolation={interpolation}"
        )
    images = check_images(images, "transform")
    is_single = len(images.shape) == 3

    def warp(x: Tensor) -> Tensor:
        batch = array_ops.expand_dims(x, 0) if is_single else x
        rows, columns = np.meshgrid(
            np.arange(batch.shape[1]), np.arange(batch.shape[2]), indexing="ij"
        )
        coordinates = compute_coordinates(rows.astype("float32"), columns.astype("float32"))
        order = int(interpolation == "bilinear")
        warped = _sample_images(as_float(batch), coordinates, float(value), order, mode)
        warped = casting.cast(warped, batch.dtype)
        return array_ops.squeeze(warped, 0) if is_single else warped

    return apply_channels_last(warp, images, data_format)


@op(same=(), name="read_images")
def _sample_images(x: TensorLike, places: TensorLike, fill: float, order: int, mode: str) -> Any:
    sample_channel = lambda channel, coordinates: ndimage.map_coordinates(
        channel, [coordinates[0], coordinates[1]], order, mode, fill
    )
    sample_image = jax.vmap(sample_channel, (-1, None), -1)
    return jax.vmap(sample_image)(x, jnp.broadcast_to(places, (x.shape[0], *places.shape[1:])))


@as_single_layer("image")
def affine_transform(
    images: TensorLike,
    transform: TensorLike,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Tensor:
    """Apply a projective transform to images.

    Output pixel (x, y) is sampled at `((a x + b y + c) / k, (d x + e y + f) / k)` with
    `k = g x + h y + 1`.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      transform: (a, b, c, d, e, f, g, h), for each image or for all.
      interpolation: 'nearest' or 'bilinear'.
      fill_mode: Extension beyond the border: 'constant', 'nearest', 'wrap', 'mirror' or 'reflect'.
      fill_value: Value for 'constant'.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.affine_transform(ops.ones([2, 2, 1]), [1, 0, 1, 0, 1, 0, 0, 0]).numpy()[..., 0].tolist()
      [[1.0, 0.0], [1.0, 0.0]]
    """
    parameters = as_float(transform)
    if parameters.shape[-1] != 8:
        raise ValueError(
            f"`transform` must have 8 parameters in the last axis. Received: transform.shape={tuple(parameters.shape)}"
        )
    parameters = array_ops.reshape(parameters, [-1, 8])

    def compute_coordinates(rows: np.ndarray, columns: np.ndarray) -> Tensor:
        a, b, c, d, e, f, g, h = (p[:, None, None] for p in array_ops.unstack(parameters, axis=1))
        scale = g * columns + h * rows + 1.0
        return array_ops.stack(
            [(d * columns + e * rows + f) / scale, (a * columns + b * rows + c) / scale], 1
        )

    return _warp_images(
        images, compute_coordinates, interpolation, fill_mode, fill_value, data_format
    )


@as_single_layer("image")
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
    """Deform images elastically by smooth random displacements.

    The displacements are normally distributed values times `sigma`, smoothed by a Gaussian with
    that deviation, times `alpha`.

    Args:
      images: [height, width, channels] or a batch of them (or channels first), of static sizes.
      alpha: Scale of the displacements.
      sigma: Standard deviation of the smoothing, in pixels.
      interpolation: 'nearest' or 'bilinear'.
      fill_mode: Extension beyond the border: 'constant', 'nearest', 'wrap', 'mirror' or 'reflect'.
      fill_value: Value for 'constant'.
      seed: An integer, a `SeedGenerator`, or None.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> ops.image.elastic_transform(ops.ones([8, 8, 3]), sigma=2.0).shape
      TensorShape([8, 8, 3])
    """
    size = 6 * int(sigma) | 1

    def compute_coordinates(rows: np.ndarray, columns: np.ndarray) -> Tensor:
        shape = as_tensor(images).shape.as_list()
        count = (shape[0] or 1) if len(shape) == 4 else 1
        # The two channels are the vertical and horizontal displacements of all images.
        noise = random.normal([count, *rows.shape, 2], dtype="float32", seed=seed) * sigma
        displacements = alpha * gaussian_blur(noise, (size, size), (sigma, sigma), "channels_last")
        down, right = array_ops.unstack(displacements, axis=-1)
        return array_ops.stack([rows + down, columns + right], 1)

    return _warp_images(
        images, compute_coordinates, interpolation, fill_mode, fill_value, data_format
    )


@op(name="perspective")
def _solve_perspective(start: TensorLike, end: TensorLike) -> Any:
    """Compute the eight parameters of the transform from the end points to the start points."""
    x, y = end[..., 0], end[..., 1]
    u, v = start[..., 0], start[..., 1]
    one, zero = jnp.ones_like(x), jnp.zeros_like(x)
    x_rows = jnp.stack([x, y, one, zero, zero, zero, -x * u, -y * u], -1)
    y_rows = jnp.stack([zero, zero, zero, x, y, one, -x * v, -y * v], -1)
    matrix = jnp.concatenate([x_rows, y_rows], -2)
    return jnp.linalg.solve(matrix, jnp.concatenate([u, v], -1)[..., None])[..., 0]


@as_single_layer("image")
def perspective_transform(
    images: TensorLike,
    start_points: TensorLike,
    end_points: TensorLike,
    interpolation: str = "bilinear",
    fill_value: float = 0,
    data_format: str | None = None,
) -> Tensor:
    """Apply the perspective transform that maps four points to four others.

    Args:
      images: [height, width, channels] or a batch of them (or channels first).
      start_points: Points (x, y), [4, 2] or [batch, 4, 2].
      end_points: The points to which they are mapped.
      interpolation: 'nearest' or 'bilinear'.
      fill_value: Value outside of the image.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.

    Example:
      >>> corners = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
      >>> ops.image.perspective_transform(ops.ones([2, 2, 1]), corners, corners).shape
      TensorShape([2, 2, 1])
    """
    start, end = promote(start_points, end_points, also=float)
    if tuple(start.shape[-2:]) != (4, 2) or tuple(end.shape[-2:]) != (4, 2):
        raise ValueError(
            f"start_points and end_points must be [..., 4, 2]. Received: {tuple(start.shape)} and {tuple(end.shape)}."
        )
    return affine_transform(
        images, _solve_perspective(start, end), interpolation, "constant", fill_value, data_format
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
def _scale_and_translate(
    x: TensorLike,
    scale: TensorLike,
    translation: TensorLike,
    shape: tuple[int, ...],
    axes: Any,
    method: str,
    antialias: bool,
) -> Any:
    return jax.image.scale_and_translate(
        x, shape, axes, scale, translation, method, antialias
    ).astype(x.dtype)


@as_single_layer("image")
def scale_and_translate(
    images: TensorLike,
    output_shape: Sequence[int],
    scale: TensorLike,
    translation: TensorLike,
    spatial_dims: Sequence[int],
    method: str,
    antialias: bool = True,
) -> Tensor:
    """Scale and translate images, with interpolation between pixel centers.

    Args:
      images: A tensor.
      output_shape: Shape of the result.
      scale: Factor for each spatial axis.
      translation: Translation along each spatial axis.
      spatial_dims: The spatial axes.
      method: 'linear', 'cubic', 'lanczos3' or 'lanczos5'.
      antialias: Whether to widen the filter when images get smaller.

    Example:
      >>> x = ops.ones([2, 2])
      >>> ops.image.scale_and_translate(x, (4, 4), [2.0, 2.0], [0.0, 0.0], (0, 1), "linear").shape
      TensorShape([4, 4])
    """
    if method not in _METHODS:
        raise ValueError(
            f"Invalid value for argument `method`. Expected of one {_METHODS}. Received: method={method}"
        )
    base_method = method.removeprefix("bi").removeprefix("tri")
    return _scale_and_translate(
        as_float(images),
        as_float(scale),
        as_float(translation),
        tuple(output_shape),
        tuple(spatial_dims),
        base_method,
        antialias,
    )
