"""Layers that resize and crop images [height, width, channels], or batches of them."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.utils.images import smart_resize
from meshflow.ops import image, math
from meshflow.ops.image.resampling import METHODS

__all__ = ["CenterCrop", "Resizing"]


def interpolation_of(name: str) -> str:
    """A method of `tf.image.resize`.

    Raises:
      NotImplementedError: for another name.
    """
    if name.lower() not in METHODS:
        raise NotImplementedError(
            f"Value not recognized for `interpolation`: {name}. Supported values are: {METHODS}"
        )
    return name.lower()


def as_images(layer: Layer, inputs: Any) -> Any:
    """Inputs as a tensor in the layer's compute dtype."""
    return math.cast(convert_to_tensor(inputs), layer.compute_dtype or settings.floatx())


def with_size(input_shape: Any, height: int | None, width: int | None) -> TensorShape:
    """The shape of images with another height and width."""
    sizes = TensorShape(input_shape).as_list()
    return TensorShape([*sizes[:-3], height, width, sizes[-1]])


class _Sized(Layer):
    """A layer that gives images of one height and width."""

    def __init__(self, height: int, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.height, self.width = height, width

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The input's shape with the layer's height and width."""
        return with_size(input_shape, self.height, self.width)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "height": self.height, "width": self.width}


class Resizing(_Sized):
    """Images in another size.

    Args:
      height: the new height.
      width: the new width.
      interpolation: a method of `tf.image.resize`.
      crop_to_aspect_ratio: whether images are cropped in the middle instead of distorted.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same, with the layer's `height` and `width`.

    Raises:
      NotImplementedError: for an unknown interpolation.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Resizing(2, 3)(tf.ones([1, 8, 8, 3])).shape
      TensorShape([1, 2, 3, 3])
    """

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(height, width, **kwargs)
        self.interpolation = interpolation
        self.crop_to_aspect_ratio = crop_to_aspect_ratio
        self._method = interpolation_of(interpolation)

    def call(self, inputs: Any) -> Any:
        """The resized images."""
        images = as_images(self, inputs)
        size = (self.height, self.width)
        if self.crop_to_aspect_ratio:
            resized = smart_resize(images, size, self._method)
        else:
            resized = image.resize(images, size, self._method)
        return math.cast(resized, images.dtype)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "interpolation": self.interpolation,
            "crop_to_aspect_ratio": self.crop_to_aspect_ratio,
        }


class CenterCrop(_Sized):
    """The middle of images; smaller images are resized and cropped to the aspect ratio.

    Args:
      height: height of the part.
      width: width of the part.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same, with the layer's `height` and `width`.

    Example:
      >>> import meshflow as tf
      >>> image = tf.reshape(tf.range(16.0), [4, 4, 1])
      >>> tf.keras.layers.CenterCrop(2, 2)(image).numpy()[..., 0].tolist()
      [[5.0, 6.0], [9.0, 10.0]]
    """

    def __init__(self, height: int, width: int, **kwargs: Any) -> None:
        super().__init__(height, width, **kwargs)

    def call(self, inputs: Any) -> Any:
        """The cropped images."""
        images = as_images(self, inputs)
        top, left = images.shape[-3] - self.height, images.shape[-2] - self.width
        if top < 0 or left < 0:
            return math.cast(smart_resize(images, (self.height, self.width)), images.dtype)
        return image.crop_to_bounding_box(images, top // 2, left // 2, self.height, self.width)
