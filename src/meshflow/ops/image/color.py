"""Brightness, contrast, colours, and conversions of dtype and colour space."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import waits
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


@waits()
def convert_image_dtype(
    image: TensorLike, dtype: Any, saturate: bool = False, name: str | None = None
) -> Tensor:
    """Another dtype, scaled: floats run from 0 to 1, integers over their positive range.

    Images are (..., height, width, channels); the result has the same shape.

    Args:
      image: a tensor.
      dtype: the new dtype.
      saturate: whether values beyond the new range are clipped.
      name: ignored.

    Example:
      >>> import meshflow as tf
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
        held = image._value
        if type(held) is np.ndarray and new.name in ("float32", "float64"):
            # A decoded file: files have images of all sizes, for each of which XLA would compile.
            return Tensor(held.astype(new.dtype) * new.as_numpy_dtype(1.0 / old.max))
        return cast(image, new) * (1.0 / old.max)
    scaled = image * (new.max + 0.5)
    return saturate_cast(scaled, new) if saturate else cast(scaled, new)


def _in_floats(image: Any, change: Any) -> Tensor:
    """Applies a change to the image as floats, and goes back to its dtype."""
    image = convert_to_tensor(image)
    if image.dtype.is_floating and image.dtype.name != "float16":
        return change(image)
    return convert_image_dtype(
        change(convert_image_dtype(image, float32)), image.dtype, saturate=True
    )


def adjust_brightness(image: TensorLike, delta: Any) -> Tensor:
    """`image + delta`, where floats run from 0 to 1.

    Images are (..., height, width, channels); the result has the same shape.

    Args:
      image: a tensor; integers run over their positive range.
      delta: what is added, 1 being the whole range.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([[[100], [250]]], tf.uint8)
      >>> print(tf.image.adjust_brightness(x, 0.2)[0, :, 0].numpy())
      [151 255]
    """
    return _in_floats(image, lambda x: x + cast(delta, x.dtype))


@op(name="adjust_contrast", same=("images", "factor"))
def _contrast(images: TensorLike, factor: TensorLike) -> Tensor:
    mean = jnp.mean(images, axis=(-3, -2), keepdims=True)
    return (images - mean) * factor + mean


def adjust_contrast(images: TensorLike, contrast_factor: Any) -> Tensor:
    """Distances from each channel's mean, times a factor.

    Args:
      images: [..., height, width, channels].
      contrast_factor: the factor.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([[[1.0], [3.0]]])
      >>> print(tf.image.adjust_contrast(x, 2.0)[0, :, 0].numpy())
      [0. 4.]
    """
    return _in_floats(images, lambda x: _contrast(x, cast(contrast_factor, x.dtype)))


def adjust_gamma(image: TensorLike, gamma: float = 1, gain: float = 1) -> Tensor:
    """`gain * image ^ gamma`.

    Images are (..., height, width, channels); the result has the same shape.

    Raises:
      ValueError: for a negative gamma.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.adjust_gamma(tf.constant([[[0.5], [1.0]]]), gamma=2.0)[0, :, 0].numpy())
      [0.25 1.  ]
    """
    if isinstance(gamma, (int, float)) and gamma < 0:
        raise ValueError("Gamma should be a non-negative real number.")
    return _in_floats(image, lambda x: x ** float(gamma) * gain)


@op(kinds="f")
def rgb_to_hsv(images: TensorLike, name: str | None = None) -> Tensor:
    """Hue, saturation and value, all in [0, 1].

    Args:
      images: floating, [..., 3], from 0 to 1.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.rgb_to_hsv([[0.0, 0.5, 0.0]]).numpy().round(3))
      [[0.333 1.    0.5  ]]
    """
    r, g, b = jnp.moveaxis(images, -1, 0)
    high, low = jnp.max(images, -1), jnp.min(images, -1)
    span = high - low
    safe = jnp.where(span == 0, 1, span)
    hue = (
        jnp.where(
            high == r, (g - b) / safe, jnp.where(high == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
        )
        / 6
    )
    hue = jnp.where(span == 0, 0, hue % 1)
    saturation = jnp.where(high == 0, 0, span / jnp.where(high == 0, 1, high))
    return jnp.stack([hue, saturation, high], -1).astype(images.dtype)


@op(kinds="f")
def hsv_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Red, green and blue from hue, saturation and value.

    Args:
      images: floating, [..., 3], from 0 to 1.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.hsv_to_rgb([[0.0, 1.0, 0.5]]).numpy().round(3))
      [[0.5 0.  0. ]]
    """
    h, s, v = jnp.moveaxis(images, -1, 0)
    shift = jnp.array([0, 4, 2], images.dtype)
    ramp = jnp.clip(jnp.abs((h[..., None] * 6 + shift) % 6 - 3) - 1, 0, 1)
    return (v[..., None] * (1 - s[..., None] * (1 - ramp))).astype(images.dtype)


def adjust_saturation(image: TensorLike, saturation_factor: Any, name: str | None = None) -> Tensor:
    """Saturation times a factor.

    Args:
      image: [..., 3], red, green and blue.
      saturation_factor: 0 makes it grey.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.adjust_saturation([[[0.8, 0.4, 0.4]]], 0.0).numpy().round(3))
      [[[0.8 0.8 0.8]]]
    """
    return _in_floats(
        image,
        lambda x: hsv_to_rgb(
            _scale_hsv(rgb_to_hsv(x), cast(saturation_factor, x.dtype), cast(0, x.dtype))
        ),
    )


def adjust_hue(image: TensorLike, delta: Any, name: str | None = None) -> Tensor:
    """Hue moved by `delta`, in turns.

    Args:
      image: [..., 3], red, green and blue.
      delta: from -1 to 1.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.adjust_hue([[[1.0, 0.0, 0.0]]], 1 / 3).numpy().round(3) + 0)
      [[[0. 1. 0.]]]
    """
    return _in_floats(
        image,
        lambda x: hsv_to_rgb(_scale_hsv(rgb_to_hsv(x), cast(1, x.dtype), cast(delta, x.dtype))),
    )


@op
def _scale_hsv(hsv: TensorLike, factor: TensorLike, delta: TensorLike) -> Tensor:
    h, s, v = jnp.moveaxis(hsv, -1, 0)
    return jnp.stack([(h + delta) % 1, jnp.clip(s * factor, 0, 1), v], -1)


@op(name="rgb_to_grayscale", kinds="f")
def _gray(images: TensorLike) -> Tensor:
    return jnp.sum(
        images * jnp.array([0.2989, 0.5870, 0.1140], images.dtype), axis=-1, keepdims=True
    )


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """Brightness of colours, in one channel.

    Args:
      images: [..., 3].
      name: ignored.

    Returns:
      Tensor [..., 1] of the same dtype.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.rgb_to_grayscale([[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]])[..., 0].numpy().round(2))
      [[1.   0.59]]
    """
    return _in_floats(images, _gray)


@op(same=())
def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """One channel three times.

    Args:
      images: [..., 1].
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.image.grayscale_to_rgb([[[7], [9]]]).numpy())
      [[[7 7 7]
        [9 9 9]]]
    """
    if images.shape[-1] != 1:
        raise ValueError(
            f"Last dimension of a grayscale image should be size 1, got shape {list(images.shape)}."
        )
    return jnp.broadcast_to(images, (*images.shape[:-1], 3))


@op(same=(), name="per_image_standardization")
def per_image_standardization(image: TensorLike) -> Tensor:
    """Each image scaled to mean 0 and variance 1.

    Args:
      image: [..., height, width, channels].

    Returns:
      float32 tensor of the same shape.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape([1.0, 3.0, 5.0, 7.0], [2, 2, 1])
      >>> print(tf.image.per_image_standardization(x)[..., 0].numpy().round(3))
      [[-1.342 -0.447]
       [ 0.447  1.342]]
    """
    x = image if jnp.issubdtype(image.dtype, jnp.floating) else image.astype(jnp.float32)
    axes = (-3, -2, -1)
    count = x.shape[-1] * x.shape[-2] * x.shape[-3]
    deviation = jnp.maximum(
        jnp.std(x, axis=axes, keepdims=True), 1 / jnp.sqrt(jnp.asarray(count, x.dtype))
    )
    return (x - jnp.mean(x, axis=axes, keepdims=True)) / deviation


@op(kinds="f")
def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """Sums of absolute differences of neighbouring pixels.

    Args:
      images: [height, width, channels] or a batch of them.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.image.total_variation([[[1.0], [4.0]], [[1.0], [2.0]]]).numpy().item()
      6.0
    """
    rows = jnp.sum(jnp.abs(jnp.diff(images, axis=-3)), axis=(-3, -2, -1))
    return rows + jnp.sum(jnp.abs(jnp.diff(images, axis=-2)), axis=(-3, -2, -1))


def as_range(max_val: Any, dtype: Any) -> float:
    """The range of pixels of a dtype after they are converted to floats."""
    return float(convert_image_dtype(cast(max_val, dtype), float32))


def psnr(a: TensorLike, b: TensorLike, max_val: Any, name: str | None = None) -> Tensor:
    """Peak signal-to-noise ratio of images, in decibels.

    Args:
      a: [..., height, width, channels].
      b: likewise.
      max_val: range of the pixels, such as 255 or 1.0.
      name: ignored.

    Returns:
      float32, one number for each pair of images.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.zeros([2, 2, 1]), tf.fill([2, 2, 1], 0.1)
      >>> print(tf.image.psnr(a, b, max_val=1.0).numpy().round(2))
      20.0
    """
    a, b = convert_to_tensor(a), convert_to_tensor(b)
    largest = as_range(max_val, a.dtype)
    a, b = convert_image_dtype(a, float32), convert_image_dtype(b, float32)
    error = reduce_mean(squared_difference(a, b), axis=[-3, -2, -1])
    decibel = 10 / math.log(10)
    return 2 * decibel * math.log(largest) - decibel * log(error)


def _colour_space(name: str, matrix: Any, what: str) -> ColorConversion:
    rgb, luma = ("[1.0, 1.0, 1.0]", "[1. 1. 1.]"), ("[1.0, 0.0, 0.0]", "[1. 0. 0.]")
    given, gives = (rgb[0], luma[1]) if name.startswith("rgb") else (luma[0], rgb[1])

    def converted(images: TensorLike) -> Tensor:
        if images.shape[-1] != 3:
            raise ValueError(
                f"{name}: images must have 3 channels, got shape {list(images.shape)}."
            )
        kernel = jnp.asarray(matrix, images.dtype)
        return jnp.matmul(images, kernel, precision="highest")

    converted.__name__ = converted.__qualname__ = name
    convert: Any = op(name=name, kinds="f")(converted)
    convert.__doc__ = f"""{what}

    Args:
      images: floats [..., 3].

    Returns:
      Floats [..., 3].

    Raises:
      ValueError: when there are not 3 channels.

    Example:
      >>> import meshflow as tf
      >>> print(tf.abs(tf.image.{name}([{given}])).numpy().round(3))  # white
      [{gives}]
    """
    return convert


# Luma, then two differences of colours, as NTSC (Y'IQ) and PAL (Y'UV) define them.
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
# The inverses, rounded as the standards print them.
_FROM_YIQ = np.array(
    [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]]
)
_FROM_YUV = np.array([[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]])
rgb_to_yiq = _colour_space("rgb_to_yiq", _YIQ, "Luma and chroma of NTSC television.")
yiq_to_rgb = _colour_space("yiq_to_rgb", _FROM_YIQ, "The inverse of `rgb_to_yiq`.")
rgb_to_yuv = _colour_space("rgb_to_yuv", _YUV, "Luma and chroma of PAL television.")
yuv_to_rgb = _colour_space("yuv_to_rgb", _FROM_YUV, "The inverse of `rgb_to_yuv`.")
