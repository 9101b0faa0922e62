"""Base class and helpers of the layers that transform images at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import SeedStream, draw_weight_seed
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.layers.preprocessing.images import as_images
from meshflow.ops import array
from meshflow.ops import random as random_ops
from meshflow.ops.control_flow import cond


class RandomImageLayer(Layer):
    """Layer that transforms each image of a batch at random, in training only.

    Subclasses define `augment`.

    Args:
      seed: Seed of the random numbers; default a random one.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        kwargs.pop("force_generator", None)
        self._rng_type = kwargs.pop("rng_type", None)
        super().__init__(**kwargs)
        self.seed = seed
        self._stream = SeedStream(seed)

    def call(self, inputs: PyTree, training: bool | Tensor | None = True) -> PyTree:
        """Transform images in training, otherwise return them; the result has the compute dtype.

        Args:
          inputs: Image, batch of images, or a dictionary that contains them under 'images'.
          training: Whether to transform the images.
        """
        if self._stream.seed is None:
            # As in Keras, the seed is drawn in the same sequence as those of the weights.
            self._stream.seed = draw_weight_seed()
        if isinstance(inputs, dict):
            return {**inputs, "images": self.call(inputs["images"], training)}
        images = as_images(self, inputs)
        if isinstance(training, Tensor):
            return cond(
                training,
                lambda: self._augment_images(images),
                lambda: self._prepare_inference(images),
            )
        return self._augment_images(images) if training else self._prepare_inference(images)

    def _augment_images(self, images: Tensor) -> Tensor:
        if images.ndim == 3:
            return self.augment(array.expand_dims(images, 0))[0]
        return self.augment(images)

    def _prepare_inference(self, images: Tensor) -> Tensor:
        return images

    def augment(self, images: TensorLike) -> Tensor:
        """Transform a batch of images [batch, height, width, channels].

        Raises:
          NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `augment(images)`.")

    def draw_uniform(
        self, shape: Sequence[int], low: float, high: float, dtype: DTypeLike = "float32"
    ) -> Tensor:
        """Draw uniform random numbers from the stream of the layer."""
        key = self._stream.next_key(random_ops.count_counters(*shape))
        return random_ops.draw_uniform(key, shape, low, high, dtype)

    def draw_per_image(self, images: TensorLike, low: float, high: float) -> Tensor:
        """Draw one uniform number for each image, float32 [batch]."""
        return self.draw_uniform([images.shape[0]], low, high)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), **self._own_config(), "seed": self.seed}

    def _own_config(self) -> Config:
        """Return the part of the configuration before the seed."""
        return {}


def parse_limits(factor: float | Sequence[float], name: str) -> tuple[float, float]:
    """Return the interval that a factor describes: a pair of bounds, or x for [-x, x].

    Raises:
      ValueError: If the upper bound is less than the lower bound.
    """
    if isinstance(factor, Sequence):
        low, high = float(factor[0]), float(factor[1])
    else:
        low, high = -float(factor), float(factor)
    if high < low:
        raise ValueError(f"`{name}` cannot have upper bound less than lower bound, got {factor}")
    return low, high


def parse_bounded_limits(
    factor: float | Sequence[float], name: str, min_value: float, max_value: float
) -> tuple[float, float]:
    """Return the interval that a factor describes, and check its bounds.

    Raises:
      ValueError: If a bound is not between `min_value` and `max_value`.
    """
    low, high = parse_limits(factor, name)
    if not (min_value <= low <= max_value and min_value <= high <= max_value):
        raise ValueError(
            f"`{name}` argument must have values between [{min_value:g}, {max_value:g}]. Received: {name}={factor}"
        )
    return low, high
