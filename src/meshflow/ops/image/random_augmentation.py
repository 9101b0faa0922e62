"""Random augmentation of images, with the global seed or with an explicit seed (stateless)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import dispatch_composites, record_in_graph
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int32
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import draw_op_key
from meshflow.environment.types import Array
from meshflow.ops import random as random_ops
from meshflow.ops.array import reshape, where
from meshflow.ops.array import slice as slice_
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.deferred_host_values import DeferredValue, defer_host_values
from meshflow.ops.image import codecs, color, geometry
from meshflow.ops.math import floormod
from meshflow.ops.random import count_counters

__all__ = [
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_jpeg_quality",
    "random_saturation",
    "stateless_random_brightness",
    "stateless_random_contrast",
    "stateless_random_crop",
    "stateless_random_flip_left_right",
    "stateless_random_flip_up_down",
    "stateless_random_hue",
    "stateless_random_jpeg_quality",
    "stateless_random_saturation",
]

# Two integers that determine a stateless op.
Seed: TypeAlias = Sequence[int] | Array | Tensor


def _sample_uniform(key: Tensor, shape: Sequence[int], low: float, high: float) -> Tensor:
    return random_ops.draw_uniform(key, shape, low, high, "float32")


def _make_key(seed: int | None, *sizes: int) -> Tensor:
    return draw_op_key(seed, count_counters(*sizes), "uniform float32")


def _get_sizes(image: TensorLike) -> Sequence[int | None]:
    known = image if isinstance(image, DeferredValue) else convert_to_tensor(image)
    sizes: Sequence[int | None] = known.shape.as_list()
    return sizes


def _make_flip_key(image: TensorLike, seed: int | None) -> Tensor:
    return _make_key(seed, *(1 if n is None else n for n in _get_sizes(image)[:-3]))


# Decorates functions of a key, an image and other arguments that return a value with the spec of the image.
_defer_image = defer_host_values(lambda key, image, *_: image.spec)


@_defer_image
def _flip_randomly(key: Tensor, image: TensorLike, flip: Callable[[Any], Any]) -> Tensor:
    image = convert_to_tensor(image)
    if context.computes_on_host and context.trace is None and not context.tapes and image.ndim == 3:
        sample = random_ops.draw_unit_uniform_on_host(key)
        if sample is not None:
            return flip(image) if sample < 0.5 else image
    batch = image.shape.as_list()[:-3]
    sample = _sample_uniform(key, batch, 0.0, 1.0)
    # TensorFlow flips a single image for values below 0.5, but images of a batch for values above.
    is_flipped = sample > 0.5 if batch else sample < 0.5
    return where(reshape(is_flipped, [*batch, 1, 1, 1]), flip(image), image)


@_defer_image
def _adjust_randomly(
    key: Tensor, image: TensorLike, adjust: Callable[..., Tensor], low: float, high: float
) -> Tensor:
    return adjust(image, _sample_uniform(key, [], low, high))


@record_in_graph
def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """Mirror each image of a batch horizontally with probability 1/2.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> x = tf.constant([[[1], [2]]])
      >>> tf.image.random_flip_left_right(x)[0, :, 0].numpy().tolist() in ([1, 2], [2, 1])
      True
    """
    return _flip_randomly(_make_flip_key(image, seed), image, geometry.flip_left_right)


@record_in_graph
def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """Mirror each image of a batch vertically with probability 1/2.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> x = tf.constant([[[1]], [[2]]])
      >>> tf.image.random_flip_up_down(x)[:, 0, 0].numpy().tolist() in ([1, 2], [2, 1])
      True
    """
    return _flip_randomly(_make_flip_key(image, seed), image, geometry.flip_up_down)


def stateless_random_flip_left_right(image: TensorLike, seed: Seed) -> Tensor:
    """Mirror images horizontally as `random_flip_left_right` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> x = tf.reshape(tf.range(6), [1, 6, 1])
      >>> a, b = (tf.image.stateless_random_flip_left_right(x, seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return _flip_randomly(random_ops.derive_key(seed), image, geometry.flip_left_right)


def stateless_random_flip_up_down(image: TensorLike, seed: Seed) -> Tensor:
    """Mirror images vertically as `random_flip_up_down` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> x = tf.reshape(tf.range(6), [6, 1, 1])
      >>> a, b = (tf.image.stateless_random_flip_up_down(x, seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    return _flip_randomly(random_ops.derive_key(seed), image, geometry.flip_up_down)


def _check_range(low: float, high: float, name: str) -> None:
    if high <= low or low < 0:
        raise ValueError(f"tf.image.{name}: needs 0 <= lower < upper, got {low} and {high}.")


def _check_delta(value: float, name: str, limit: float = float("inf")) -> float:
    if value < 0 or value > limit:
        raise ValueError(f"tf.image.{name}: max_delta must be in [0, {limit}], got {value}.")
    return float(value)


@dispatch_composites
def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Adjust the brightness by a random value in [-max_delta, max_delta).

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> x = tf.image.random_brightness(tf.zeros([2, 2, 1]), max_delta=0.1)
      >>> bool(tf.reduce_max(tf.abs(x)) <= 0.1)
      True
    """
    d = _check_delta(max_delta, "random_brightness")
    return _adjust_randomly(_make_key(seed), image, color.adjust_brightness, -d, d)


@record_in_graph
def random_contrast(
    image: TensorLike, lower: float, upper: float, seed: int | None = None
) -> Tensor:
    """Multiply the contrast by a random factor in [lower, upper).

    Args:
      image: [..., height, width, channels].
      lower: Minimum factor.
      upper: Maximum factor.
      seed: Seed of this op.

    Example:
      >>> tf.image.random_contrast(tf.zeros([2, 2, 3]), 0.5, 1.5).shape
      TensorShape([2, 2, 3])
    """
    _check_range(lower, upper, "random_contrast")
    return _adjust_randomly(_make_key(seed), image, color.adjust_contrast, lower, upper)


@record_in_graph
def random_saturation(
    image: TensorLike, lower: float, upper: float, seed: int | None = None
) -> Tensor:
    """Multiply the saturation by a random factor in [lower, upper).

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> tf.image.random_saturation(tf.zeros([2, 2, 3]), 0.5, 1.5).shape
      TensorShape([2, 2, 3])
    """
    _check_range(lower, upper, "random_saturation")
    return _adjust_randomly(_make_key(seed), image, color.adjust_saturation, lower, upper)


@record_in_graph
def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Adjust the hue by a random value in [-max_delta, max_delta), where max_delta is at most 0.5.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> grey = tf.fill([2, 2, 3], 0.5)
      >>> print(tf.reduce_max(tf.abs(tf.image.random_hue(grey, 0.3) - grey)).numpy())
      0.0
    """
    d = _check_delta(max_delta, "random_hue", 0.5)
    return _adjust_randomly(_make_key(seed), image, color.adjust_hue, -d, d)


@dispatch_composites
def stateless_random_brightness(image: TensorLike, max_delta: float, seed: Seed) -> Tensor:
    """Adjust the brightness as `random_brightness` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> x = tf.zeros([2, 2, 1])
      >>> a, b = (tf.image.stateless_random_brightness(x, 0.5, seed=[1, 2]) for _ in range(2))
      >>> tf.reduce_all(a == b).numpy().item()
      True
    """
    d = _check_delta(max_delta, "stateless_random_brightness")
    return _adjust_randomly(random_ops.derive_key(seed), image, color.adjust_brightness, -d, d)


def stateless_random_contrast(image: TensorLike, lower: float, upper: float, seed: Seed) -> Tensor:
    """Adjust the contrast as `random_contrast` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> tf.image.stateless_random_contrast(tf.zeros([2, 2, 3]), 0.5, 1.5, seed=[1, 2]).shape
      TensorShape([2, 2, 3])
    """
    _check_range(lower, upper, "stateless_random_contrast")
    return _adjust_randomly(random_ops.derive_key(seed), image, color.adjust_contrast, lower, upper)


def stateless_random_saturation(
    image: TensorLike, lower: float, upper: float, seed: Seed | None = None
) -> Tensor:
    """Adjust the saturation as `random_saturation` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> tf.image.stateless_random_saturation(tf.zeros([2, 2, 3]), 0.5, 1.5, seed=[1, 2]).shape
      TensorShape([2, 2, 3])
    """
    _check_range(lower, upper, "stateless_random_saturation")
    return _adjust_randomly(
        random_ops.derive_key(seed), image, color.adjust_saturation, lower, upper
    )


def stateless_random_hue(image: TensorLike, max_delta: float, seed: Seed) -> Tensor:
    """Adjust the hue as `random_hue` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> tf.image.stateless_random_hue(tf.zeros([2, 2, 3]), 0.3, seed=[1, 2]).shape
      TensorShape([2, 2, 3])
    """
    d = _check_delta(max_delta, "stateless_random_hue", 0.5)
    return _adjust_randomly(random_ops.derive_key(seed), image, color.adjust_hue, -d, d)


def _make_crop_spec(_: Tensor, value: DeferredValue, size: StaticInts) -> TensorSpec:
    return TensorSpec(to_static_value(size, "size"), value.dtype)


@defer_host_values(_make_crop_spec)
def _crop_randomly(key: Tensor, value: TensorLike, size: StaticInts) -> Tensor:
    value = convert_to_tensor(value)
    sizes = to_static_value(size, "size")
    shape = value.shape.as_list()
    if len(sizes) != len(shape) or any(s > n for s, n in zip(sizes, shape, strict=False)):
        raise InvalidValueError(
            f"random_crop: size {list(sizes)} must be at most the shape {shape}."
        )
    samples = random_ops.draw_uniform(key, [len(shape)], 0, int32.max, "int32")
    num_offsets = convert_to_tensor([n - s + 1 for n, s in zip(shape, sizes, strict=True)], "int32")
    return slice_(value, floormod(samples, num_offsets), sizes)


@record_in_graph
def random_crop(
    value: TensorLike, size: StaticInts, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Crop a block of a given size at a random offset.

    Args:
      value: A tensor.
      size: Size of the block in each dimension.
      seed: Seed of this op.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the block is larger than the tensor.

    Example:
      >>> tf.image.random_crop(tf.zeros([32, 32, 3]), size=[24, 24, 3]).shape
      TensorShape([24, 24, 3])
    """
    return _crop_randomly(
        draw_op_key(seed, count_counters(len(_get_sizes(value))), "uniform int32"),
        value,
        size,
    )


@record_in_graph
def stateless_random_crop(
    value: TensorLike, size: StaticInts, seed: Seed, name: str | None = None
) -> Tensor:
    """Crop a random block as `random_crop` does, determined only by the seed.

    The result has the shape `size`.

    Example:
      >>> x = tf.range(100)
      >>> a, b = (tf.image.stateless_random_crop(x, [10], seed=[1, 2]) for _ in range(2))
      >>> a.shape, tf.reduce_all(a == b).numpy().item()
      (TensorShape([10]), True)
    """
    return _crop_randomly(random_ops.derive_key(seed), value, size)


@_defer_image
def _degrade_randomly(key: Tensor, image: TensorLike, low: int, high: int) -> Tensor:
    if not 0 <= low < high <= 100:
        raise ValueError(f"random_jpeg_quality: needs 0 <= min < max <= 100, got {low} and {high}.")
    quality = random_ops.draw_uniform(key, [], low, high, "int32")
    return codecs.adjust_jpeg_quality(image, quality)


@record_in_graph
def random_jpeg_quality(
    image: TensorLike, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Tensor:
    """Encode an image as JPEG with a random quality, and decode it again.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> tf.image.random_jpeg_quality(tf.zeros([8, 8, 3]), 50, 90).shape
      TensorShape([8, 8, 3])
    """
    return _degrade_randomly(
        draw_op_key(seed, count_counters(), "uniform int32"),
        image,
        min_jpeg_quality,
        max_jpeg_quality,
    )


@record_in_graph
def stateless_random_jpeg_quality(
    image: TensorLike, min_jpeg_quality: int, max_jpeg_quality: int, seed: Seed
) -> Tensor:
    """Degrade an image as `random_jpeg_quality` does, determined only by the seed.

    Images are (..., height, width, channels); the result has the same shape.

    Example:
      >>> tf.image.stateless_random_jpeg_quality(tf.zeros([8, 8, 3]), 50, 90, seed=[1, 2]).shape
      TensorShape([8, 8, 3])
    """
    return _degrade_randomly(random_ops.derive_key(seed), image, min_jpeg_quality, max_jpeg_quality)
