"""Layers that stretch images at random, to sizes that differ from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers.preprocessing.augmentation import RandomImageLayer, parse_limits
from meshflow.keras.layers.preprocessing.images import parse_interpolation, replace_image_size
from meshflow.keras.literals import Interpolation
from meshflow.ops import image, math

__all__ = ["RandomHeight", "RandomWidth"]


class _StretchLayer(RandomImageLayer):
    """Layer that stretches all images of a batch to the same random height or width."""

    stretched_axis = "height"

    def __init__(
        self,
        factor: float | Sequence[float],
        interpolation: Interpolation = "bilinear",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        self.factor, self.interpolation = factor, interpolation
        self._method = parse_interpolation(interpolation)
        self._limits = parse_limits(factor, "factor")
        if min(self._limits) < -1.0:
            raise ValueError(
                f"`factor` argument must have values larger than -1. Received: factor={factor}"
            )

    def augment(self, images: TensorLike) -> Tensor:
        """Stretch the images."""
        height, width = images.shape[1], images.shape[2]
        scale = 1.0 + self.draw_uniform([], *self._limits)
        try:
            factor = float(scale)
        except TypeError:
            raise NotImplementedError(
                f"{type(self).__name__} returns images of another size every time, but XLA compiles for one size. Use "
                "it in Dataset.map, which does not compile it, or compile the model with run_eagerly=True."
            ) from None
        if self.stretched_axis == "height":
            height = int(height * factor)
        else:
            width = int(width * factor)
        return math.cast(image.resize(images, (height, width), self._method), images.dtype)

    def _infer_outputs(
        self, inputs: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KerasTensor:
        spec = TensorSpec(self.compute_output_shape(inputs.shape), self.compute_dtype)
        return KerasTensor(spec)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input, with None for the stretched axis."""
        sizes = TensorShape(input_shape).as_list()
        if self.stretched_axis == "height":
            return replace_image_size(input_shape, None, sizes[-2])
        return replace_image_size(input_shape, sizes[-3], None)

    def _own_config(self) -> Config:
        return {"factor": self.factor, "interpolation": self.interpolation}


class RandomHeight(_StretchLayer):
    """Random stretch of images to another height.

    Args:
      factor: Change of the height as a fraction: x for [-x, x], or a pair of bounds.
      interpolation: Method of `tf.image.resize`.
      seed: Seed of the random numbers; default a random one.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      (batch, new_height, width, channels) in training; otherwise the input shape.

    Raises:
      ValueError: If the factor is less than -1.
      NotImplementedError: If the layer is compiled, because the size is unknown then.

    Example:
      >>> tf.keras.layers.RandomHeight((0.5, 0.5))(tf.ones([1, 4, 6, 3]), training=True).shape
      TensorShape([1, 6, 6, 3])
    """


class RandomWidth(_StretchLayer):
    """Random stretch of images to another width; arguments and errors as in `RandomHeight`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      (batch, height, new_width, channels) in training; otherwise the input shape.

    Example:
      >>> tf.keras.layers.RandomWidth((0.5, 0.5))(tf.ones([1, 4, 6, 3]), training=True).shape
      TensorShape([1, 4, 9, 3])
    """

    stretched_axis = "width"
