"""Ops that resize, crop, pad, flip and rotate images [height, width, channels] or batches of them."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import dispatch_composites, record_in_graph
from meshflow.core.runtime.bounds_checks import check_classes
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError, UnimplementedError
from meshflow.core.staging.scalar_logic import is_symbolic
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, int32
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import as_size, has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.ops.array import pad, slice
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.casting import cast
from meshflow.ops.deferred_host_values import DeferredValue, UnrecordableError, defer_host_values
from meshflow.ops.host import register_host_function
from meshflow.ops.image.resampling import (
    METHODS,
    apply_taps,
    compute_taps,
    interpolate_linearly,
    resize_array,
)

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "ResizeMethod",
    "central_crop",
    "crop_to_bounding_box",
    "flip_left_right",
    "flip_up_down",
    "pad_to_bounding_box",
    "resize",
    "resize_with_crop_or_pad",
    "resize_with_pad",
    "rot90",
    "transpose",
]


class ResizeMethod:
    """Names of the interpolation methods.

    Example:
      >>> tf.image.resize(tf.ones([2, 2, 1]), [4, 6], tf.image.ResizeMethod.NEAREST_NEIGHBOR).shape
      TensorShape([4, 6, 1])
    """

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


def _check_image(image: jax.Array | Tensor, name: str) -> None:
    """Check that an image is not empty, and has the dimensions of an image or of a batch of them."""
    sizes = tuple(image.shape)
    if len(sizes) not in (3, 4):
        raise InvalidValueError(
            f"tf.image.{name}: 'image' must be at least three-dimensional; it must have either 3 or 4 dimensions. Got "
            f"shape {sizes}."
        )
    if any(isinstance(size, int) and size == 0 for size in sizes[-3:]):
        raise InvalidValueError(
            f"tf.image.{name}: inner 3 dims of 'image.shape' must be > 0, got shape {sizes}."
        )


@op(same=(), name="resize")
def _resize(images: TensorLike, height: int, width: int, method: str, antialias: bool) -> Tensor:
    shape = (*images.shape[:-3], height, width, images.shape[-1])
    if method == "nearest":
        rows = _find_nearest(height, images.shape[-3])
        columns = _find_nearest(width, images.shape[-2])
        return jnp.take(jnp.take(images, rows, axis=-3), columns, axis=-2)
    wide = images.astype(jnp.float32)
    # The other kernels smooth images of the same size, too, or read their neighbors.
    if wide.shape == shape and (method == "area" or (method == "bilinear" and not antialias)):
        return wide
    for axis, new in ((-2, width), (-3, height)):
        wide = _resize_axis(wide, axis, new, method, antialias)
    return wide.astype(jnp.float32)


def _resize_axis(x: jax.Array, axis: int, new: int, method: str, antialias: bool) -> jax.Array:
    """Resize along an axis, also for sizes that are unknown in a shape-polymorphic function."""
    old = x.shape[axis]
    if not has_symbolic_size((new, old)):
        return apply_taps(x, compute_taps(new, old, method, antialias), axis)
    if method != "bilinear" or antialias:
        raise UnimplementedError(
            f"tf.image.resize: method={method!r}, antialias={antialias} needs known sizes in a program for any size; "
            "method='bilinear' and 'nearest' without antialias do not."
        )
    positions = (jnp.arange(new, dtype=jnp.float32) + 0.5) * jnp.float32(old / new) - 0.5
    low = jnp.floor(positions)
    first, second = (p.astype(jnp.int32) for p in (low, jnp.ceil(positions)))
    first, second = jnp.maximum(first, 0), jnp.minimum(second, old - 1)
    return interpolate_linearly(x, axis, first, second, positions - low)


def _find_nearest(output_size: int, input_size: int) -> jax.Array:
    """Return the input indices at the centers of the output pixels."""
    return jnp.minimum(
        jnp.floor((jnp.arange(output_size) + 0.5) * (input_size / output_size)), input_size - 1
    ).astype(jnp.int32)


def _make_resize_spec(
    images: object,
    size: StaticInts,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> TensorSpec:
    """Return the spec of the result for an image of unknown size."""
    if not isinstance(images, DeferredValue) or images.shape.rank != 3 or method not in METHODS:
        raise UnrecordableError("a resize of a batch or by an unknown method")
    sizes = (
        [None, None] if preserve_aspect_ratio else [int(n) for n in to_static_value(size, "size")]
    )
    dtype = images.dtype if method == "nearest" else float32
    return TensorSpec([*sizes, images.shape.as_list()[-1]], dtype)


def check_image_shape(shape: Sequence[int]) -> None:
    """Check that a shape is that of an image [height, width, channels] or a batch of them."""
    if len(shape) not in (3, 4):
        raise ValueError(f"'images' must have either 3 or 4 dimensions, got shape {tuple(shape)}.")


def fit_size(size: Sequence[int], old_size: Sequence[int]) -> tuple[int, ...]:
    """Return the largest (height, width) within `size` with the aspect ratio of `old_size`."""
    scale = min(new / old for new, old in zip(size, old_size, strict=True))
    return tuple(round(old * scale) for old in old_size)


@defer_host_values(_make_resize_spec)
@dispatch_composites
def resize(
    images: TensorLike,
    size: StaticInts,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resize images by interpolation between pixel centers.

    Args:
      images: [height, width, channels] or a batch of them.
      size: New (height, width).
      method: 'bilinear', 'nearest', 'bicubic', 'area', 'lanczos3', 'lanczos5', 'gaussian' or
        'mitchellcubic'.
      preserve_aspect_ratio: Whether to resize to the largest size that fits into `size`, without
        distortion.
      antialias: Whether to widen the filter if an image is downscaled.
      name: Ignored.

    Returns:
      float32 images, or images of the input's dtype for 'nearest'.

    Raises:
      ValueError: If the method or the rank is another one.

    Example:
      >>> tf.image.resize(tf.ones([8, 8, 3]), [4, 6]).shape
      TensorShape([4, 6, 3])
    """
    if method not in METHODS:
        raise ValueError(f"tf.image.resize: method must be one of {METHODS}, got {method!r}.")
    images = images if hasattr(images, "_keras_history") else convert_to_tensor(images)
    check_image_shape(images.shape)
    if isinstance(size, (list, tuple)):
        # Sequences of tensors are cast, as by `tf.convert_to_tensor(size, tf.int32)`.
        size = [cast(s, int32) if is_tensor(s) and s.dtype.is_floating else s for s in size]
    sizes = to_static_value(size, "size")
    if not isinstance(sizes, tuple) or len(sizes) != 2:
        raise ValueError(
            f"'size' must be a 1-D Tensor of 2 elements: new_height, new_width, got {size}."
        )
    if any(isinstance(s, (str, bytes, float)) for s in sizes):
        raise ValueError(f"'size' must be a 1-D int32 Tensor, got {size}.")
    sizes = tuple(map(as_size, sizes))
    if has_symbolic_size((*sizes, *images.shape[-3:-1])) and not preserve_aspect_ratio:
        height, width = sizes
        return _resize(images, height, width, method, antialias)
    if any(s < 0 for s in sizes):
        raise InvalidValueError(
            f"Dimension {min(sizes)} must be >= 0, got a 'size' of {list(sizes)}."
        )
    height, width = sizes
    if 0 in sizes:
        raise InvalidValueError(
            f"tf.image.resize: output dimensions must be positive, got a 'size' of {list(sizes)}."
        )
    if 0 in images.shape[-3:-1]:
        raise InvalidValueError(
            f"tf.image.resize: input image must be of non-zero size, got shape {tuple(images.shape)}."
        )
    if preserve_aspect_ratio:
        height, width = fit_size((height, width), images.shape[-3:-1])
    array: Any = getattr(images, "_value", None)
    on_host = type(array) is np.ndarray and array.ndim == 3
    if on_host and not antialias and not any(t.watches(images) for t in context.tapes):
        # The array is probably a decoded file: XLA would compile a program for every image size.
        return Tensor(resize_array(array, height, width, method))
    return _resize(images, height, width, method, antialias)


def _check_target_size(height: object, width: object) -> None:
    for size, name in ((height, "target_height"), (width, "target_width")):
        if isinstance(size, int) and size <= 0:
            raise InvalidValueError(f"{name} must be > 0. Got {size}.")


@defer_host_values()
@record_in_graph
def resize_with_pad(
    image: TensorLike,
    target_height: int,
    target_width: int,
    method: str = "bilinear",
    antialias: bool = False,
) -> Tensor:
    """Resize without distortion and pad with zeros.

    Args:
      image: [height, width, channels] or a batch of them.
      target_height: Height of the result.
      target_width: Width of the result.
      method: As in `resize`.
      antialias: As in `resize`.

    Example:
      >>> x = tf.image.resize_with_pad(tf.ones([2, 4, 1]), 4, 4)
      >>> print(x[..., 0].numpy())
      [[0. 0. 0. 0.]
       [1. 1. 1. 1.]
       [1. 1. 1. 1.]
       [0. 0. 0. 0.]]
    """
    return resize_and_pad(
        image,
        target_height,
        target_width,
        lambda images, size: resize(images, size, method, antialias=antialias),
    )


def resize_and_pad(
    image: TensorLike,
    target_height: int,
    target_width: int,
    resize_images: Callable[[Tensor, tuple[int, int]], Tensor],
) -> Tensor:
    """Resize with a function without distortion, and pad with zeros."""
    image = image if hasattr(image, "_keras_history") else convert_to_tensor(image)
    _check_target_size(target_height, target_width)
    height, width = image.shape[-3], image.shape[-2]
    ratio = max(width / target_width, height / target_height)
    resized = resize_images(image, (int(height / ratio), int(width / ratio)))
    top, left = int((target_height - height / ratio) / 2), int((target_width - width / ratio) / 2)
    return pad_to_bounding_box(resized, max(top, 0), max(left, 0), target_height, target_width)


@defer_host_values()
@record_in_graph
def crop_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Tensor:
    """Crop a window out of images; its offset may be computed at run time.

    Args:
      image: [height, width, channels] or a batch of them.
      offset_height: First row.
      offset_width: First column.
      target_height: Number of rows.
      target_width: Number of columns.

    Raises:
      InvalidArgumentError: If the window is empty or not inside the image (also a `ValueError`).

    Example:
      >>> x = tf.reshape(tf.range(9), [3, 3, 1])
      >>> print(tf.image.crop_to_bounding_box(x, 1, 0, 2, 2)[..., 0].numpy())
      [[3 4]
       [6 7]]
    """
    image = convert_to_tensor(image)
    _check_image(image, "crop_to_bounding_box")
    target_height = to_static_value(target_height, "target_height")
    target_width = to_static_value(target_width, "target_width")
    _check_target_size(target_height, target_width)
    height, width = image.shape[-3], image.shape[-2]
    offset_height = _check_offset(offset_height, target_height, height, "height")
    offset_width = _check_offset(offset_width, target_width, width, "width")
    if is_symbolic(offset_height) or is_symbolic(offset_width):
        before = [0] * (image.ndim - 3)
        return slice(
            image,
            [*before, offset_height, offset_width, 0],
            [*image.shape[:-3], target_height, target_width, image.shape[-1]],
        )
    return image[
        ...,
        offset_height : offset_height + target_height,
        offset_width : offset_width + target_width,
        :,
    ]


def _check_offset(offset: Any, size: int, limit: int, name: str) -> Any:
    """Check the offset of a window of some size along an axis, and return it."""
    negative, too_large = f"offset_{name} must be >= 0.", f"{name} must be >= target + offset."
    if is_symbolic(offset):
        if isinstance(limit, int) and size > limit:
            raise InvalidValueError(too_large)
        return check_classes(convert_to_tensor(offset), limit - size + 1, negative, too_large)
    if offset < 0:
        raise InvalidValueError(negative)
    if offset + size > limit:
        raise InvalidValueError(too_large)
    return offset


@record_in_graph
def pad_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Tensor:
    """Pad images with zeros to a larger size.

    Args:
      image: [height, width, channels] or a batch of them.
      offset_height: Number of rows of zeros above the image.
      offset_width: Number of columns of zeros left of the image.
      target_height: Height of the result.
      target_width: Width of the result.

    Raises:
      InvalidArgumentError: If the image does not fit (also a `ValueError`).

    Example:
      >>> print(tf.image.pad_to_bounding_box(tf.ones([1, 2, 1]), 1, 0, 2, 3)[..., 0].numpy())
      [[0. 0. 0.]
       [1. 1. 0.]]
    """
    image = convert_to_tensor(image)
    _check_image(image, "pad_to_bounding_box")
    offset_height, offset_width, target_height, target_width = to_static_value(
        (offset_height, offset_width, target_height, target_width), "offset and target"
    )
    below, right = (
        target_height - offset_height - image.shape[-3],
        target_width - offset_width - image.shape[-2],
    )
    for name, offset, rest in (("width", offset_width, right), ("height", offset_height, below)):
        if offset < 0:
            raise InvalidValueError(f"offset_{name} must be >= 0, got {offset}.")
        if rest < 0:
            raise InvalidValueError(
                f"{name} must be <= target - offset: pad_to_bounding_box of an image of shape {tuple(image.shape)} at "
                f"({offset_height}, {offset_width}) to ({target_height}, {target_width})."
            )
    edges = [(offset_height, below), (offset_width, right), (0, 0)]
    if all(type(n) is int and n == 0 for edge in edges for n in edge):
        return image
    return pad(image, edges if image.ndim == 3 else [(0, 0), *edges])


@defer_host_values()
@record_in_graph
def resize_with_crop_or_pad(image: TensorLike, target_height: int, target_width: int) -> Tensor:
    """Crop images centrally or pad them with zeros on all sides, to a given size.

    Args:
      image: [height, width, channels] or a batch of them.
      target_height: Height of the result.
      target_width: Width of the result.

    Example:
      >>> x = tf.ones([1, 4, 1])
      >>> print(tf.image.resize_with_crop_or_pad(x, 3, 2)[..., 0].numpy())
      [[0. 0.]
       [1. 1.]
       [0. 0.]]
    """
    target_height, target_width = to_static_value((target_height, target_width), "target size")
    _check_target_size(target_height, target_width)
    image = convert_to_tensor(image)
    height, width = min(target_height, image.shape[-3]), min(target_width, image.shape[-2])
    cropped = crop_to_bounding_box(
        image, (image.shape[-3] - height) // 2, (image.shape[-2] - width) // 2, height, width
    )
    return pad_to_bounding_box(
        cropped,
        (target_height - height) // 2,
        (target_width - width) // 2,
        target_height,
        target_width,
    )


@defer_host_values()
@record_in_graph
def central_crop(image: TensorLike, central_fraction: float) -> Tensor:
    """Crop the central window of images.

    Args:
      image: [height, width, channels] or a batch of them.
      central_fraction: Fraction of height and width to keep, in (0, 1].

    Example:
      >>> x = tf.reshape(tf.range(16), [4, 4, 1])
      >>> print(tf.image.central_crop(x, 0.5)[..., 0].numpy())
      [[ 5  6]
       [ 9 10]]
    """
    central_fraction = to_static_value(central_fraction, "central_fraction")
    if not 0 < central_fraction <= 1:
        raise ValueError(f"central_fraction must be within (0, 1], got {central_fraction}.")
    image = convert_to_tensor(image)
    _check_image(image, "central_crop")
    top = int((image.shape[-3] - image.shape[-3] * central_fraction) / 2)
    left = int((image.shape[-2] - image.shape[-2] * central_fraction) / 2)
    return crop_to_bounding_box(
        image, top, left, image.shape[-3] - 2 * top, image.shape[-2] - 2 * left
    )


@op(same=())
def flip_left_right(image: TensorLike) -> Tensor:
    """Mirror images horizontally.

    Args:
      image: [height, width, channels] or a batch of them.

    Example:
      >>> x = tf.constant([[[1], [2]], [[3], [4]]])
      >>> print(tf.image.flip_left_right(x)[..., 0].numpy())
      [[2 1]
       [4 3]]
    """
    _check_image(image, "flip_left_right")
    return jnp.flip(image, -2)


@op(same=())
def flip_up_down(image: TensorLike) -> Tensor:
    """Mirror images vertically.

    Args:
      image: [height, width, channels] or a batch of them.

    Example:
      >>> x = tf.constant([[[1], [2]], [[3], [4]]])
      >>> print(tf.image.flip_up_down(x)[..., 0].numpy())
      [[3 4]
       [1 2]]
    """
    _check_image(image, "flip_up_down")
    return jnp.flip(image, -3)


def _flip_on_host(images: Sequence[np.ndarray], axis: int) -> np.ndarray | None:
    sizes = images[0].shape
    return np.flip(images[0], axis) if len(sizes) in (3, 4) and 0 not in sizes[-3:] else None


register_host_function(flip_left_right.op, lambda images, _: _flip_on_host(images, -2))  # type: ignore[attr-defined]
register_host_function(flip_up_down.op, lambda images, _: _flip_on_host(images, -3))  # type: ignore[attr-defined]


@op(same=(), name="rot90_square")
def _rotate_square(image: TensorLike, k: TensorLike) -> Tensor:
    _check_image(image, "rot90")
    k = k % 4
    image = jnp.where(k % 2 == 1, jnp.swapaxes(image, -3, -2), image)
    image = jnp.where((k == 1) | (k == 2), jnp.flip(image, -3), image)
    return jnp.where(k >= 2, jnp.flip(image, -2), image)


def _accept_computed_turns(rotate: F) -> F:
    """Decorate `rot90` so that a compiled function can rotate square images by a computed number."""

    @functools.wraps(rotate)
    def public(image: TensorLike, k: TensorLike = 1, *args: Any, **kwargs: Any) -> Any:
        if is_symbolic(k) and getattr(image, "shape", TensorShape(None)).rank in (3, 4):
            height, width = image.shape[-3:-1]
            if height == width is not None:
                return _rotate_square(image, k)
            # The comparisons of jnp.rot90 do not guard a computed number of turns.
            convert_to_tensor(k).require_value("k of rot90 for images that are not square")
        return rotate(image, k, *args, **kwargs)

    return typing.cast(F, public)


@_accept_computed_turns
@op(same=())
def rot90(image: TensorLike, k: int = 1, name: str | None = None) -> Tensor:
    """Rotate images counterclockwise by k right angles.

    Args:
      image: [height, width, channels] or a batch of them.
      k: Number of right angles. If it is computed and the images are not square, a function of it runs op by op.
      name: Ignored.

    Example:
      >>> x = tf.constant([[[1], [2]], [[3], [4]]])
      >>> print(tf.image.rot90(x)[..., 0].numpy())
      [[2 4]
       [1 3]]
    """
    _check_image(image, "rot90")
    return jnp.rot90(image, k, (-3, -2))


@op(same=())
def transpose(image: TensorLike, name: str | None = None) -> Tensor:
    """Swap the height and width of images.

    Args:
      image: [height, width, channels] or a batch of them.
      name: Ignored.

    Example:
      >>> tf.image.transpose(tf.zeros([8, 2, 3, 1])).shape
      TensorShape([8, 3, 2, 1])
    """
    _check_image(image, "transpose")
    return jnp.swapaxes(image, -3, -2)
