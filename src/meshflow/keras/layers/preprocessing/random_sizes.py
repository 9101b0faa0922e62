"""Layers that stretch images at random, to sizes that differ from batch to batch."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.layers.preprocessing.augmentation import RandomImageLayer, limits
from meshflow.keras.layers.preprocessing.images import interpolation_of, with_size
from meshflow.ops import image, math

__all__ = ["RandomHeight", "RandomWidth"]


class _Stretch(RandomImageLayer):
    """Another height or width, the same for a whole batch."""

    along = "height"

    def __init__(
        self,
        factor: Any,
        interpolation: str = "bilinear",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        self.factor, self.interpolation = factor, interpolation
        self._method = interpolation_of(interpolation)
        self._limits = limits(factor, "factor")
        if min(self._limits) < -1.0:
            raise ValueError(
                f"`factor` argument must have values larger than -1. Received: factor={factor}"
            )

    def augment(self, images: Any) -> Any:
        """Stretched images."""
        height, width = images.shape[1], images.shape[2]
        scale = 1.0 + self.uniform([], *self._limits)
        try:
            factor = float(scale)
        except TypeError:
            raise NotImplementedError(
                f"{type(self).__name__} gives images of another size every time, and XLA compiles one size. Use it "
                "in Dataset.map, which runs it as it is, or compile the model with run_eagerly=True."
            ) from None
        if self.along == "height":
            height = int(height * factor)
        else:
            width = int(width * factor)
        return math.cast(image.resize(images, (height, width), self._method), images.dtype)

    def _infer_outputs(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        spec = TensorSpec(self.compute_output_shape(inputs.shape), self.compute_dtype)
        return KerasTensor(spec)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The input's shape, with the stretched dimension unknown."""
        sizes = TensorShape(input_shape).as_list()
        if self.along == "height":
            return with_size(input_shape, None, sizes[-2])
        return with_size(input_shape, sizes[-3], None)

    def _own_config(self) -> dict[str, Any]:
        return {"factor": self.factor, "interpolation": self.interpolation}


class RandomHeight(_Stretch):
    """Stretches images to a random height.

    Args:
      factor: by which part of it the height grows: a pair of ends, or a number for minus and plus it.
      interpolation: a method of `tf.image.resize`.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same with another height, in training.

    Raises:
      ValueError: for a factor below -1.
      NotImplementedError: where it would be compiled, as the size is not known then.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.RandomHeight((0.5, 0.5))(tf.ones([1, 4, 6, 3]), training=True).shape
      TensorShape([1, 6, 6, 3])
    """


class RandomWidth(_Stretch):
    """Stretches images to a random width; arguments and errors as for `RandomHeight`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same with another width, in training.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.RandomWidth((0.5, 0.5))(tf.ones([1, 4, 6, 3]), training=True).shape
      TensorShape([1, 4, 9, 3])
    """

    along = "width"
