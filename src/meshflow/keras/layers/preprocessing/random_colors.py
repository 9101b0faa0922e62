"""Layers that change the brightness and the contrast of images at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.layers.keyword_arguments import RandomImageArguments
from meshflow.keras.layers.preprocessing.augmentation import RandomImageLayer
from meshflow.ops import array, math

__all__ = ["RandomBrightness", "RandomContrast"]


class RandomContrast(RandomImageLayer):
    """Random change of contrast: scales the distance of each channel to its mean.

    Args:
      factor: Range of the scale: x for [1 - x, 1 + x], or a pair (x, y) for [1 - x, 1 + y].
      seed: Seed of the random numbers; default a random one.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If the lower value is outside of [0, 1], or the upper value is negative.

    Example:
      >>> tf.keras.layers.RandomContrast(0.2)(tf.ones([1, 2, 2, 3])).shape
      TensorShape([1, 2, 2, 3])
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        seed: int | None = None,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(seed, **kwargs)
        self.factor = factor
        self.lower, self.upper = factor if isinstance(factor, Sequence) else (factor, factor)
        if self.lower < 0.0 or self.upper < 0.0 or self.lower > 1.0:
            raise ValueError(
                "`factor` argument cannot have negative values or values greater than 1. "
                f"Received: factor={factor}"
            )

    def augment(self, images: TensorLike) -> Tensor:
        """Change the contrast, and clip to [0, 255]."""
        factor = array.reshape(
            self.draw_per_image(images, 1.0 - self.lower, 1.0 + self.upper), [-1, 1, 1, 1]
        )
        mean = math.reduce_mean(images, axis=[1, 2], keepdims=True)
        changed = (images - mean) * math.cast(factor, images.dtype) + mean
        return math.clip_by_value(changed, 0, 255)

    def _own_config(self) -> Config:
        return {"factor": self.factor}


class RandomBrightness(RandomImageLayer):
    """Random change of brightness: adds a number to each image, and clips to the range of values.

    Args:
      factor: Range of the number as a fraction of the width of `value_range`: x for [-x, x], or a
        pair of bounds.
      value_range: Smallest and largest value of images.
      seed: Seed of the random numbers; default a random one.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If a factor is outside of [-1, 1], or `value_range` is not a pair of numbers.

    Example:
      >>> layer = tf.keras.layers.RandomBrightness((0.5, 0.5), value_range=(0, 1))
      >>> layer(tf.constant([[[0.25, 0.75]]]), training=True).numpy().tolist()
      [[[0.75, 1.0]]]
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        value_range: Sequence[float] = (0, 255),
        seed: int | None = None,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(seed, **kwargs)
        self._factor = _parse_brightness_limits(factor)
        if not isinstance(value_range, Sequence) or len(value_range) != 2:
            raise ValueError(
                f"The `value_range` argument should be a list of two numbers. Got {value_range}"
            )
        self._value_range = sorted(value_range)

    def augment(self, images: TensorLike) -> Tensor:
        """Change the brightness."""
        low, high = self._value_range
        added = self.draw_per_image(images, *self._factor) * float(high - low)
        added = math.cast(array.reshape(added, [-1, 1, 1, 1]), images.dtype)
        return math.clip_by_value(images + added, low, high)

    def _own_config(self) -> Config:
        return {
            "factor": list(self._factor),
            "value_range": list(self._value_range),
        }


def _parse_brightness_limits(factor: float | Sequence[float]) -> list[float]:
    pair: list[Any] = [*factor] if isinstance(factor, (tuple, list)) else [factor]
    are_fractions = all(isinstance(f, (int, float)) and -1 <= f <= 1 for f in pair)
    if len(pair) not in (1, 2) or not are_fractions:
        raise ValueError(
            "The `factor` argument should be a number (or a list of two numbers) in the range [-1.0, 1.0]. "
            f"Got {factor}"
        )
    return sorted(pair) if len(pair) == 2 else [-abs(pair[0]), abs(pair[0])]
