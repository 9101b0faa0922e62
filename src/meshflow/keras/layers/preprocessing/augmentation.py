"""What the layers that change images at random have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import SeedStream, weight_seed
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.layers.preprocessing.images import as_images
from meshflow.ops import array
from meshflow.ops import random as random_ops
from meshflow.ops.control_flow import cond

__all__ = ["RandomImageLayer"]


class RandomImageLayer(Layer):
    """A layer that changes each image of a batch in another way; in training only.

    Subclasses define `augment`.

    Args:
      seed: seed.
      **kwargs: arguments of `Layer`.
    """

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        kwargs.pop("force_generator", None)
        self._rng_type = kwargs.pop("rng_type", None)
        super().__init__(**kwargs)
        self.seed = seed
        self._stream = SeedStream(seed)

    def call(self, inputs: Any, training: Any = True) -> Any:
        """Changed images in training, the images otherwise; in the compute dtype.

        Args:
          inputs: an image, a batch of images, or a dictionary with them under 'images'.
          training: whether images are changed.
        """
        if self._stream.seed is None:
            # Among those of the weights, as in Keras.
            self._stream.seed = weight_seed()
        if isinstance(inputs, dict):
            return {**inputs, "images": self.call(inputs["images"], training)}
        images = as_images(self, inputs)
        if isinstance(training, Tensor):
            return cond(training, lambda: self._augmented(images), lambda: self._unchanged(images))
        return self._augmented(images) if training else self._unchanged(images)

    def _augmented(self, images: Any) -> Any:
        if images.ndim == 3:
            return self.augment(array.expand_dims(images, 0))[0]
        return self.augment(images)

    def _unchanged(self, images: Any) -> Any:
        return images

    def augment(self, images: Any) -> Any:
        """Changed images, for a batch [batch, height, width, channels].

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `augment(images)`.")

    def uniform(self, shape: Any, low: float, high: float, dtype: Any = "float32") -> Any:
        """Uniform random numbers from the layer's stream."""
        key = self._stream.next_key(random_ops.counts_of(*shape))
        return random_ops.uniform_from_key(key, shape, low, high, dtype)

    def per_image(self, images: Any, low: float, high: float) -> Any:
        """One uniform number for each image, float32 of shape [batch]."""
        return self.uniform([images.shape[0]], low, high)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), **self._own_config(), "seed": self.seed}

    def _own_config(self) -> dict[str, Any]:
        """What stands before the seed."""
        return {}


def limits(factor: Any, name: str) -> tuple[float, float]:
    """The range that a factor means: a pair, or a number for both sides of 0.

    Raises:
      ValueError: when the upper end is below the lower.
    """
    if isinstance(factor, Sequence):
        low, high = float(factor[0]), float(factor[1])
    else:
        low, high = -float(factor), float(factor)
    if high < low:
        raise ValueError(f"`{name}` cannot have upper bound less than lower bound, got {factor}")
    return low, high


def checked_limits(factor: Any, name: str, least: float, most: float) -> tuple[float, float]:
    """The range that a factor means, within a wider one.

    Raises:
      ValueError: when it is not within that.
    """
    low, high = limits(factor, name)
    if not (least <= low <= most and least <= high <= most):
        raise ValueError(
            f"`{name}` argument must have values between [{least:g}, {most:g}]. Received: {name}={factor}"
        )
    return low, high
