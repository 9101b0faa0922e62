"""Ops for brightness, contrast, hue and saturation, and conversions of dtype and color space."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites, record_in_graph
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.staging.scalar_logic import is_symbolic
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels.colors import change_colors
from meshflow.ops.array.shaping import check_rank
from meshflow.ops.deferred_host_values import DeferredValue, defer_host_values
from meshflow.ops.math import cast, log, reduce_mean, saturate_cast, squared_difference
from meshflow.ops.signatures import ColorConversion

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "convert_image_dtype",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "per_image_standardization",
    "psnr",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "total_variation",
    "yiq_to_rgb",
    "yuv_to_rgb",
]


@defer_host_values()
@dispatch_composites
def convert_image_dtype(
    image: TensorLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None
) -> Tensor:
    """Convert an image to another dtype and scale it to the range of that dtype.

    Floats have the range [0, 1], integers the range [0, dtype.max].

    Args:
      image: A tensor.
      dtype: The new dtype.
      saturate: Whether to clip values outside the new range.
      name: Ignored.

    Example:
      >>> print(tf.image.convert_image_dtype(tf.constant([0, 255], tf.uint8), tf.float32).numpy())
      [0. 1.]
    """
    image = convert_to_tensor(image)
    new, old = as_dtype(dtype), image.dtype
    if new is old:
        return image
    if old.is_integer and new.is_integer:
        wide = cast(image, "int64")
        if old.max > new.max:
            return saturate_cast(wide // ((old.max + 1) // (new.max + 1)), new)
        return saturate_cast(wide * ((new.max + 1) // (old.max + 1)), new)
    if old.is_floating and new.is_floating:
        return cast(image, new)
    if old.is_integer:
        array = image.array
        if type(array) is np.ndarray and new.name in ("float32", "float64"):
            # The array is probably a decoded file: XLA would compile a program for every image
            # size.
            return Tensor(array.astype(new.dtype) * new.as_numpy_dtype(1.0 / old.max))
        return cast(image, new) * (1.0 / old.max)
    scaled = image * (new.max + 0.5)
    return saturate_cast(scaled, new) if saturate else cast(scaled, new)


def _apply_in_float(image: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to the image as floats, and convert the result back to the image's dtype."""
    image = image if isinstance(image, DeferredValue) else convert_to_tensor(image)
    if image.dtype.is_floating and image.dtype.name != "float16":
        return function(image)
    return convert_image_dtype(
        function(convert_image_dtype(image, float32)), image.dtype, saturate=True
    )


@dispatch_composites
def adjust_brightness(image: TensorLike, delta: float | Tensor) -> Tensor:
    """Add a value to all pixels, where floats have the range [0, 1].

    Args:
      image: Image of any shape; integers have the range [0, dtype.max].
      delta: Summand, as a fraction of the range.

    Example:
      >>> x = tf.constant([[[100], [250]]], tf.uint8)
      >>> print(tf.image.adjust_brightness(x, 0.2)[0, :, 0].numpy())
      [151 255]
    """
    return _apply_in_float(image, lambda x: x + cast(delta, x.dtype))


@op(name="adjust_contrast", same=("images", "factor"))
def _scale_contrast(images: TensorLike, factor: TensorLike) -> Tensor:
    check_rank(images, 3, "adjust_contrast")
    return change_colors("contrast", images, factor)


def adjust_contrast(images: TensorLike, contrast_factor: float | Tensor) -> Tensor:
    """Multiply the differences from the mean of each channel by a factor.

    Args:
      images: [..., height, width, channels].
      contrast_factor: The factor.

    Example:
      >>> x = tf.constant([[[1.0], [3.0]]])
      >>> print(tf.image.adjust_contrast(x, 2.0)[0, :, 0].numpy())
      [0. 4.]
    """
    is_tensor = isinstance(contrast_factor, Tensor)
    if contrast_factor.shape.rank if is_tensor else np.ndim(contrast_factor):  # type: ignore[union-attr]
        raise InvalidValueError(f"contrast_factor must be scalar, got {contrast_factor}.")
    return _apply_in_float(images, lambda x: _scale_contrast(x, cast(contrast_factor, x.dtype)))


@dispatch_composites
def adjust_gamma(image: TensorLike, gamma: float | Tensor = 1, gain: float = 1) -> Tensor:
    """Compute `gain * image ^ gamma`.

    Images are (..., height, width, channels); the result has the same shape.

    Raises:
      InvalidArgumentError: If gamma is known and negative (also a `ValueError`).

    Example:
      >>> print(tf.image.adjust_gamma(tf.constant([[[0.5], [1.0]]]), gamma=2.0)[0, :, 0].numpy())
      [0.25 1.  ]
    """
    if not is_symbolic(gamma) and float(gamma) < 0:
        raise InvalidValueError("Gamma should be a non-negative real number.")
    return _apply_in_float(image, lambda x: x ** cast(gamma, x.dtype) * gain)


@op(kinds="f")
def rgb_to_hsv(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert RGB to hue, saturation and value, all in [0, 1].

    Args:
      images: Floating, [..., 3], in [0, 1].
      name: Ignored.

    Example:
      >>> print(tf.image.rgb_to_hsv([[0.0, 0.5, 0.0]]).numpy().round(3))
      [[0.333 1.    0.5  ]]
    """
    return change_colors("to_hsv", images, 0)


@op(kinds="f")
def hsv_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert hue, saturation and value to RGB.

    Args:
      images: Floating, [..., 3], in [0, 1].
      name: Ignored.

    Example:
      >>> print(tf.image.hsv_to_rgb([[0.0, 1.0, 0.5]]).numpy().round(3))
      [[0.5 0.  0. ]]
    """
    return change_colors("from_hsv", images, 0)


def adjust_saturation(
    image: TensorLike, saturation_factor: float | Tensor, name: str | None = None
) -> Tensor:
    """Multiply the saturation by a factor.

    Args:
      image: RGB image [..., 3].
      saturation_factor: Factor; 0 results in a gray image.
      name: Ignored.

    Example:
      >>> print(tf.image.adjust_saturation([[[0.8, 0.4, 0.4]]], 0.0).numpy().round(3))
      [[[0.8 0.8 0.8]]]
    """
    return _apply_in_float(image, lambda x: _scale_saturation(x, cast(saturation_factor, x.dtype)))


@op(name="adjust_saturation", kinds="f")
def _scale_saturation(images: TensorLike, factor: TensorLike) -> Tensor:
    return change_colors("saturation", images, factor)


def adjust_hue(image: TensorLike, delta: float | Tensor, name: str | None = None) -> Tensor:
    """Rotate the hue by `delta` turns.

    Args:
      image: RGB image [..., 3].
      delta: Between -1 and 1.
      name: Ignored.

    Example:
      >>> print(tf.image.adjust_hue([[[1.0, 0.0, 0.0]]], 1 / 3).numpy().round(3) + 0)
      [[[0. 1. 0.]]]
    """
    if isinstance(delta, (int, float)) and not -1 <= delta <= 1:
        raise ValueError(f"adjust_hue: delta must be in the interval [-1, 1], got {delta}.")
    return _apply_in_float(image, lambda x: _rotate_hue(x, cast(delta, x.dtype)))


@op(name="adjust_hue", kinds="f")
def _rotate_hue(images: TensorLike, delta: TensorLike) -> Tensor:
    return change_colors("hue", images, delta)


@op(name="rgb_to_grayscale", kinds="f")
def _to_grayscale(images: TensorLike) -> Tensor:
    return jnp.sum(
        images * jnp.array([0.2989, 0.5870, 0.1140], images.dtype), axis=-1, keepdims=True
    )


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert RGB to the brightness, in one channel.

    Args:
      images: [..., 3].
      name: Ignored.

    Returns:
      Tensor [..., 1] of the same dtype.

    Example:
      >>> print(tf.image.rgb_to_grayscale([[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]])[..., 0].numpy().round(2))
      [[1.   0.59]]
    """
    return _apply_in_float(images, _to_grayscale)


@op(same=())
def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Repeat the single channel of images three times.

    Args:
      images: [..., 1].
      name: Ignored.

    Example:
      >>> print(tf.image.grayscale_to_rgb([[[7], [9]]]).numpy())
      [[[7 7 7]
        [9 9 9]]]
    """
    if images.ndim < 2:
        raise ValueError(
            f"A grayscale image must be at least two-dimensional, got shape {list(images.shape)}."
        )
    if images.shape[-1] != 1:
        raise ValueError(
            f"Last dimension of a grayscale image should be size 1, got shape {list(images.shape)}."
        )
    return jnp.broadcast_to(images, (*images.shape[:-1], 3))


@op(same=(), name="per_image_standardization")
def per_image_standardization(image: TensorLike) -> Tensor:
    """Scale each image to mean 0 and variance 1.

    Args:
      image: [..., height, width, channels].

    Returns:
      Float32 tensor of the same shape.

    Example:
      >>> x = tf.reshape([1.0, 3.0, 5.0, 7.0], [2, 2, 1])
      >>> print(tf.image.per_image_standardization(x)[..., 0].numpy().round(3))
      [[-1.342 -0.447]
       [ 0.447  1.342]]
    """
    check_rank(image, 3, "per_image_standardization", "image")
    x = image.astype(jnp.float32)
    axes = (-3, -2, -1)
    count = x.shape[-1] * x.shape[-2] * x.shape[-3]
    deviation = jnp.maximum(
        jnp.std(x, axis=axes, keepdims=True), 1 / jnp.sqrt(jnp.asarray(count, x.dtype))
    )
    return (x - jnp.mean(x, axis=axes, keepdims=True)) / deviation


@op(kinds="f")
def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """Sum the absolute differences of neighboring pixels.

    Args:
      images: [height, width, channels] or a batch of them.
      name: Ignored.

    Example:
      >>> tf.image.total_variation([[[1.0], [4.0]], [[1.0], [2.0]]]).numpy().item()
      6.0
    """
    if images.ndim not in (3, 4):
        raise InvalidValueError(
            f"total_variation: 'images' must be either 3 or 4-dimensional, got shape {list(images.shape)}."
        )
    rows = jnp.sum(jnp.abs(jnp.diff(images, axis=-3)), axis=(-3, -2, -1))
    return rows + jnp.sum(jnp.abs(jnp.diff(images, axis=-2)), axis=(-3, -2, -1))


def to_float_range(max_val: float | Tensor, dtype: DTypeLike) -> Tensor:
    """Return the pixel range of a dtype after a conversion to floats."""
    return convert_image_dtype(cast(max_val, dtype), float32)


@record_in_graph
def psnr(a: TensorLike, b: TensorLike, max_val: float | Tensor, name: str | None = None) -> Tensor:
    """Compute the peak signal-to-noise ratio of images, in decibels.

    Args:
      a: [..., height, width, channels].
      b: Images of the same shape.
      max_val: Range of the pixels, such as 255 or 1.0.
      name: Ignored.

    Returns:
      float32, one value for each pair of images.

    Example:
      >>> a, b = tf.zeros([2, 2, 1]), tf.fill([2, 2, 1], 0.1)
      >>> print(tf.image.psnr(a, b, max_val=1.0).numpy().round(2))
      20.0
    """
    a, b = convert_to_tensor(a), convert_to_tensor(b)
    largest = to_float_range(max_val, a.dtype)
    a, b = convert_image_dtype(a, float32), convert_image_dtype(b, float32)
    error = reduce_mean(squared_difference(a, b), axis=[-3, -2, -1])
    decibel = 10 / math.log(10)
    return 2 * decibel * log(largest) - decibel * log(error)


def _make_color_conversion(name: str, matrix: np.ndarray, summary: str) -> ColorConversion:
    rgb, luma = ("[1.0, 1.0, 1.0]", "[1. 1. 1.]"), ("[1.0, 0.0, 0.0]", "[1. 0. 0.]")
    example_input, example_output = (
        (rgb[0], luma[1]) if name.startswith("rgb") else (luma[0], rgb[1])
    )

    def convert_colors(images: TensorLike) -> Tensor:
        if images.shape[-1] != 3:
            raise ValueError(
                f"{name}: images must have 3 channels, got shape {list(images.shape)}."
            )
        kernel = jnp.asarray(matrix, images.dtype)
        return jnp.matmul(images, kernel, precision="highest")

    convert_colors.__name__ = convert_colors.__qualname__ = name
    convert: Any = op(name=name, kinds="f")(convert_colors)
    convert.__doc__ = f"""{summary}

    Args:
      images: Floating, [..., 3].

    Raises:
      ValueError: If the last axis does not have size 3.

    Example:
      >>> print(tf.abs(tf.image.{name}([{example_input}])).numpy().round(3))  # white
      [{example_output}]
    """
    return convert


# Luma and two chroma components, as NTSC (Y'IQ) and PAL (Y'UV) define them.
_YIQ = np.array(
    [
        [0.299, 0.59590059, 0.2115],
        [0.587, -0.27455667, -0.52273617],
        [0.114, -0.32134392, 0.31119955],
    ]
)
_YUV = np.array(
    [
        [0.299, -0.14714119, 0.61497538],
        [0.587, -0.28886916, -0.51496512],
        [0.114, 0.43601035, -0.10001026],
    ]
)
# The inverse matrices are rounded as in the standards.
_FROM_YIQ = np.array(
    [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]]
)
_FROM_YUV = np.array([[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]])
rgb_to_yiq = _make_color_conversion(
    "rgb_to_yiq", _YIQ, "Convert RGB to the luma and chroma of NTSC television."
)
yiq_to_rgb = _make_color_conversion(
    "yiq_to_rgb", _FROM_YIQ, "Convert luma and chroma of NTSC television to RGB."
)
rgb_to_yuv = _make_color_conversion(
    "rgb_to_yuv", _YUV, "Convert RGB to the luma and chroma of PAL television."
)
yuv_to_rgb = _make_color_conversion(
    "yuv_to_rgb", _FROM_YUV, "Convert luma and chroma of PAL television to RGB."
)
