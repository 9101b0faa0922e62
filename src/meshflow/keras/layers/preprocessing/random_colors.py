"""Layers that change the brightness and the contrast of images at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.keras.layers.preprocessing.augmentation import RandomImageLayer
from meshflow.ops import array, math

__all__ = ["RandomBrightness", "RandomContrast"]


class RandomContrast(RandomImageLayer):
    """Moves each channel's numbers towards their mean, or away from it, by a random factor.

    Args:
      factor: the factor lies in [1 - factor, 1 + factor]; or a pair of such numbers.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same.

    Raises:
      ValueError: when the lower number is outside [0, 1] or the upper is negative.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.RandomContrast(0.2)(tf.ones([1, 2, 2, 3])).shape
      TensorShape([1, 2, 2, 3])
    """

    def __init__(self, factor: Any, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.factor = factor
        self.lower, self.upper = factor if isinstance(factor, Sequence) else (factor, factor)
        if self.lower < 0.0 or self.upper < 0.0 or self.lower > 1.0:
            raise ValueError(
                "`factor` argument cannot have negative values or values greater than 1. "
                f"Received: factor={factor}"
            )

    def augment(self, images: Any) -> Any:
        """Images with another contrast, clipped to 0..255."""
        factor = array.reshape(
            self.per_image(images, 1.0 - self.lower, 1.0 + self.upper), [-1, 1, 1, 1]
        )
        mean = math.reduce_mean(images, axis=[1, 2], keepdims=True)
        changed = (images - mean) * math.cast(factor, images.dtype) + mean
        return math.clip_by_value(changed, 0, 255)

    def _own_config(self) -> dict[str, Any]:
        return {"factor": self.factor}


class RandomBrightness(RandomImageLayer):
    """Adds a random number to each image, and clips the sum to the range of values.

    Args:
      factor: the number lies in [-factor, factor], as a part of the width of the range; or a pair.
      value_range: the least and the greatest value.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same.

    Raises:
      ValueError: for factors outside [-1, 1], or a range that is not two ascending numbers.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.RandomBrightness((0.5, 0.5), value_range=(0, 1))
      >>> layer(tf.constant([[[0.25, 0.75]]]), training=True).numpy().tolist()
      [[[0.75, 1.0]]]
    """

    def __init__(
        self,
        factor: Any,
        value_range: Any = (0, 255),
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        self._factor = _brightness_limits(factor)
        if not isinstance(value_range, Sequence) or len(value_range) != 2:
            raise ValueError(
                f"The `value_range` argument should be a list of two numbers. Got {value_range}"
            )
        self._value_range = sorted(value_range)

    def augment(self, images: Any) -> Any:
        """Brighter and darker images."""
        least, most = self._value_range
        added = self.per_image(images, *self._factor) * float(most - least)
        added = math.cast(array.reshape(added, [-1, 1, 1, 1]), images.dtype)
        return math.clip_by_value(images + added, least, most)

    def _own_config(self) -> dict[str, Any]:
        return {
            "factor": list(self._factor),
            "value_range": list(self._value_range),
        }


def _brightness_limits(factor: Any) -> list[float]:
    pair = list(factor) if isinstance(factor, (tuple, list)) else [factor]
    numbers = len(pair) in (1, 2) and all(
        isinstance(f, (int, float)) and -1 <= f <= 1 for f in pair
    )
    if not numbers or (not isinstance(factor, (tuple, list)) and len(pair) != 1):
        raise ValueError(
            "The `factor` argument should be a number (or a list of two numbers) in the range [-1.0, 1.0]. "
            f"Got {factor}"
        )
    return sorted(pair) if len(pair) == 2 else [-abs(pair[0]), abs(pair[0])]
