"""`tf.compat.v1.image`: resizing with TensorFlow 1's positions of pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic_unnamed, dispatch_composites
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.image.geometry import (
    check_image_shape,
    fit_size,
    resize_and_pad,
    resize_with_crop_or_pad,
)
from meshflow.ops.image.resampling import Taps, apply_taps, compute_taps

__all__ = [
    "ResizeMethod",
    "resize",
    "resize_area",
    "resize_bicubic",
    "resize_bilinear",
    "resize_image_with_crop_or_pad",
    "resize_image_with_pad",
    "resize_images",
    "resize_nearest_neighbor",
]

F = TypeVar("F", bound=Callable[..., Tensor])

# The coefficient of the cubic kernel, and the number of steps to which positions are rounded.
_CUBIC_COEFFICIENT, _CUBIC_STEPS = -0.75, 1024


def _register(function: F) -> F:
    """Accept symbolic Keras tensors, and use TensorFlow's name of the function in files."""
    return op_names.register_name(
        accept_symbolic_unnamed(function), f"compat.v1.image.{function.__name__}"
    )


class ResizeMethod:
    """Numbers of the interpolation methods.

    Example:
      >>> v1 = tf.compat.v1.image
      >>> v1.resize_images(tf.ones([2, 2, 1]), [4, 6], v1.ResizeMethod.BICUBIC).shape
      TensorShape([4, 6, 1])
    """

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


def _compute_step(new: int, old: int, align_corners: bool) -> np.float32:
    """Return the distance of output pixels in the input."""
    if align_corners and new > 1:
        return np.float32((old - 1) / np.float32(new - 1))
    return np.float32(old / np.float32(new))


def _compute_positions(
    new: int, old: int, align_corners: bool, half_pixel_centers: bool
) -> np.ndarray:
    """Return the positions of the output pixels in the input."""
    offset = np.float32(0.5 if half_pixel_centers else 0)
    return (np.arange(new, dtype=np.float32) + offset) * _compute_step(new, old, align_corners)


@functools.lru_cache(1024)
def _compute_v1_taps(new: int, old: int, method: str, align_corners: bool) -> Taps:
    """Compute the taps of a resize whose first pixels coincide."""
    step = _compute_step(new, old, align_corners)
    positions = _compute_positions(new, old, align_corners, False)
    if method == "bilinear":
        return Taps.from_positions(positions, old)
    first = np.floor(positions).astype(np.int64)
    if method == "area":
        ends = (np.arange(new, dtype=np.float32) + np.float32(1)) * step
        count = int((np.ceil(ends) - first).max())
        pixels = first[:, None] + np.arange(count)
        covered = np.minimum(ends[:, None], pixels + 1) - np.maximum(positions[:, None], pixels)
        return Taps.from_pixels(pixels, np.maximum(covered, 0.0) / step, old)
    pixels = first[:, None] + np.arange(-1, 3)
    fractions = np.rint((positions - first) * _CUBIC_STEPS) / _CUBIC_STEPS
    distances = np.abs(np.arange(-1, 3) - fractions[:, None])
    a, x = _CUBIC_COEFFICIENT, distances
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return Taps.from_pixels(pixels, np.where(x <= 1, near, far), old)


@op(same=(), name="resize")
def _resize(
    images: TensorLike,
    height: int,
    width: int,
    method: str,
    align_corners: bool,
    half_pixel_centers: bool,
) -> Tensor:
    """Resize a batch of images."""
    sizes = ((-2, width), (-3, height))
    if method == "nearest":
        for axis, new in sizes:
            old = images.shape[axis]
            positions = _compute_positions(new, old, align_corners, half_pixel_centers)
            # NumPy would round halves to even.
            rounded = np.floor(positions + np.float32(0.5 if align_corners else 0))
            indices = np.clip(rounded, 0, old - 1).astype(np.int32)
            images = jnp.take(images, indices, axis=axis)
        return images
    wide = images if images.dtype in (jnp.float32, jnp.float64) else images.astype(jnp.float32)
    for axis, new in sizes:
        old = wide.shape[axis]
        if half_pixel_centers or (method == "area" and not align_corners):
            taps = compute_taps(new, old, method, False)
        else:
            taps = _compute_v1_taps(new, old, method, align_corners)
        wide = apply_taps(wide, taps, axis)
    return wide.astype(jnp.float32)


def _resize_batch(
    images: TensorLike,
    size: StaticInts,
    method: str,
    align_corners: bool,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Check the arguments of a resize of a batch of images, and resize it."""
    images = convert_to_tensor(images)
    if len(images.shape) != 4:
        raise InvalidValueError(f"images must be 4-dimensional, got shape {tuple(images.shape)}.")
    sizes = to_static_value(size, "size")
    if not isinstance(sizes, tuple) or len(sizes) != 2:
        raise InvalidValueError(f"size must have two elements, (height, width), got {size}.")
    if min(sizes) <= 0:
        raise InvalidValueError(f"output dimensions must be positive, got {list(sizes)}.")
    if half_pixel_centers and align_corners:
        raise InvalidValueError("If half_pixel_centers is True, align_corners must be False.")
    return _resize(images, *sizes, method, bool(align_corners), bool(half_pixel_centers))


@_register
def resize_bilinear(
    images: TensorLike,
    size: StaticInts,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Resize a batch of images by bilinear interpolation.

    By default, output pixel `i` is at `i * old_size / new_size` in the input.

    Args:
      images: [batch, height, width, channels].
      size: New (height, width).
      align_corners: Whether the centers of the four corner pixels coincide.
      name: Ignored.
      half_pixel_centers: Whether the images, and not the centers of their first pixels, coincide,
        as in `tf.image.resize`.

    Returns:
      float32 images.

    Raises:
      InvalidArgumentError: If the rank or the size is another one, or both options are set.

    Example:
      >>> x = tf.reshape([0.0, 10.0], [1, 1, 2, 1])
      >>> print(tf.compat.v1.image.resize_bilinear(x, [1, 4])[0, 0, :, 0].numpy())
      [ 0.  5. 10. 10.]
      >>> print(tf.compat.v1.image.resize_bilinear(x, [1, 3], align_corners=True)[0, 0, :, 0].numpy())
      [ 0.  5. 10.]
    """
    return _resize_batch(images, size, "bilinear", align_corners, half_pixel_centers)


@_register
def resize_nearest_neighbor(
    images: TensorLike,
    size: StaticInts,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Resize a batch of images by copies of the nearest pixels.

    The arguments are those of `resize_bilinear`.

    Returns:
      Images of the input's dtype.

    Example:
      >>> x = tf.reshape([0, 10, 20], [1, 1, 3, 1])
      >>> print(tf.compat.v1.image.resize_nearest_neighbor(x, [1, 2])[0, 0, :, 0].numpy())
      [ 0 10]
    """
    return _resize_batch(images, size, "nearest", align_corners, half_pixel_centers)


@_register
def resize_bicubic(
    images: TensorLike,
    size: StaticInts,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Resize a batch of images by bicubic interpolation.

    The arguments are those of `resize_bilinear`. The coefficient of the kernel is -0.75, or -0.5
    with `half_pixel_centers`.

    Returns:
      float32 images.

    Example:
      >>> x = tf.reshape([0.0, 10.0], [1, 1, 2, 1])
      >>> print(tf.compat.v1.image.resize_bicubic(x, [1, 4])[0, 0, :, 0].numpy())
      [ 0.      5.     10.     10.9375]
    """
    return _resize_batch(images, size, "bicubic", align_corners, half_pixel_centers)


@_register
def resize_area(
    images: TensorLike, size: StaticInts, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """Resize a batch of images by averages of the covered pixels.

    The arguments are those of `resize_bilinear`.

    Returns:
      float32 images.

    Example:
      >>> x = tf.reshape([0.0, 10.0, 20.0], [1, 1, 3, 1])
      >>> print(tf.compat.v1.image.resize_area(x, [1, 1])[0, 0, :, 0].numpy())
      [10.]
    """
    return _resize_batch(images, size, "area", align_corners)


_METHODS = {
    **dict.fromkeys([ResizeMethod.BILINEAR, "bilinear"], "bilinear"),
    **dict.fromkeys([ResizeMethod.NEAREST_NEIGHBOR, "nearest"], "nearest"),
    **dict.fromkeys([ResizeMethod.BICUBIC, "bicubic"], "bicubic"),
    **dict.fromkeys([ResizeMethod.AREA, "area"], "area"),
}


@_register
@dispatch_composites
def resize_images(
    images: TensorLike,
    size: StaticInts,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resize images with TensorFlow 1's positions of pixels.

    Args:
      images: [height, width, channels] or a batch of them.
      size: New (height, width).
      method: A `ResizeMethod`, or its name.
      align_corners: As in `resize_bilinear`.
      preserve_aspect_ratio: Whether to resize to the largest size that fits into `size`, without
        distortion.
      name: Ignored.

    Returns:
      float32 images, or images of the input's dtype for the nearest neighbor and for images that
      have the requested size.

    Raises:
      ValueError: If the method or the rank is another one.

    Example:
      >>> tf.compat.v1.image.resize_images(tf.ones([8, 8, 3]), [4, 6], align_corners=True).shape
      TensorShape([4, 6, 3])
    """
    if method not in _METHODS:
        raise ValueError(f"Resize method is not implemented: {method}")
    images = convert_to_tensor(images)
    check_image_shape(images.shape)
    sizes = to_static_value(size, "size")
    if not isinstance(sizes, tuple) or len(sizes) != 2:
        raise ValueError(f"'size' must have 2 elements, (height, width), got {size}.")
    old_sizes = tuple(images.shape[-3:-1])
    if preserve_aspect_ratio:
        sizes = fit_size(sizes, old_sizes)
    if sizes == old_sizes:
        return images
    if len(images.shape) == 4:
        return _resize_batch(images, sizes, _METHODS[method], align_corners)
    batch = array.expand_dims(images, 0)
    return array.squeeze(_resize_batch(batch, sizes, _METHODS[method], align_corners), 0)


resize = resize_images


def resize_image_with_pad(
    image: TensorLike,
    target_height: int,
    target_width: int,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """Resize without distortion and pad with zeros.

    Args:
      image: [height, width, channels] or a batch of them.
      target_height: Height of the result.
      target_width: Width of the result.
      method: As in `resize_images`.
      align_corners: As in `resize_bilinear`.

    Example:
      >>> tf.compat.v1.image.resize_image_with_pad(tf.ones([2, 4, 1]), 4, 4)[:, 0, 0].numpy()
      array([0., 1., 1., 0.], dtype=float32)
    """
    return resize_and_pad(
        image,
        target_height,
        target_width,
        lambda images, size: resize_images(images, size, method, align_corners),
    )


def resize_image_with_crop_or_pad(
    image: TensorLike, target_height: int, target_width: int
) -> Tensor:
    """Crop images centrally or pad them with zeros; see `tf.image.resize_with_crop_or_pad`."""
    return resize_with_crop_or_pad(image, target_height, target_width)
