"""Layers that resize and crop images [height, width, channels], or batches of them."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.ops.images import channels_last, resize
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


def with_size(
    input_shape: Any, height: int | None, width: int | None, first: bool = False
) -> TensorShape:
    """The shape of images with another height and width; `first`: after their channels."""
    sizes = TensorShape(input_shape).as_list()
    if first:
        return TensorShape([*sizes[:-2], height, width])
    return TensorShape([*sizes[:-3], height, width, sizes[-1]])


class _Sized(Layer):
    """A layer that gives images of one height and width.

    Args:
      height, width: these.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting. Keras 2's configurations have none.
      **kwargs: arguments of `Layer`.
    """

    def __init__(
        self, height: int, width: int, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.height, self.width = height, width
        self.data_format = settings.standard_data_format(data_format)

    @property
    def _first(self) -> bool:
        return self.data_format == "channels_first"

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The input's shape with the layer's height and width."""
        return with_size(input_shape, self.height, self.width, self._first)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        sizes = {"height": self.height, "width": self.width}
        beyond = {"data_format": self.data_format} if self._first else {}
        return super().get_config() | sizes | beyond


class Resizing(_Sized):
    """Images in another size.

    Args:
      height: the new height.
      width: the new width.
      interpolation: a method of `tf.image.resize`.
      crop_to_aspect_ratio: whether images are cropped in the middle instead of distorted.
      pad_to_aspect_ratio: whether they are filled up on both sides instead.
      fill_mode: 'constant'.
      fill_value: what they are filled with.
      antialias: whether the filter widens when images get smaller.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch; or with the channels before the height.

    Output shape:
      The same, with the layer's `height` and `width`.

    Raises:
      NotImplementedError: for an unknown interpolation.
      ValueError: for another `fill_mode`, and when images are to be cropped and filled up.

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
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(height, width, data_format, **kwargs)
        self.interpolation = interpolation
        self.crop_to_aspect_ratio = crop_to_aspect_ratio
        self._method = interpolation_of(interpolation)
        if fill_mode != "constant" or (crop_to_aspect_ratio and pad_to_aspect_ratio):
            raise ValueError(
                "Resizing: `fill_mode` must be 'constant', and only one of `crop_to_aspect_ratio` and "
                f"`pad_to_aspect_ratio` may be True. Received: fill_mode={fill_mode!r}, "
                f"crop_to_aspect_ratio={crop_to_aspect_ratio}, pad_to_aspect_ratio={pad_to_aspect_ratio}."
            )
        # Keras 3's, of which Keras 2's configurations know nothing.
        self._more = {
            "pad_to_aspect_ratio": pad_to_aspect_ratio,
            "fill_value": fill_value,
            "antialias": antialias,
        }

    def call(self, inputs: Any) -> Any:
        """The resized images."""
        images = as_images(self, inputs)
        size = (self.height, self.width)
        if self._first or any(self._more.values()):
            return resize(
                images, size, self._method, data_format=self.data_format,
                crop_to_aspect_ratio=self.crop_to_aspect_ratio, **self._more,
            )  # fmt: skip
        if self.crop_to_aspect_ratio:
            resized = smart_resize(images, size, self._method)
        else:
            resized = image.resize(images, size, self._method)
        return math.cast(resized, images.dtype)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        own = {
            "interpolation": self.interpolation,
            "crop_to_aspect_ratio": self.crop_to_aspect_ratio,
        }
        return super().get_config() | own | {k: v for k, v in self._more.items() if v}


class CenterCrop(_Sized):
    """The middle of images; smaller images are resized and cropped to the aspect ratio.

    Args:
      height: height of the part.
      width: width of the part.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch; or with the channels before the height.

    Output shape:
      The same, with the layer's `height` and `width`.

    Example:
      >>> import meshflow as tf
      >>> image = tf.reshape(tf.range(16.0), [4, 4, 1])
      >>> tf.keras.layers.CenterCrop(2, 2)(image).numpy()[..., 0].tolist()
      [[5.0, 6.0], [9.0, 10.0]]
    """

    def __init__(
        self, height: int, width: int, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(height, width, data_format, **kwargs)

    def call(self, inputs: Any) -> Any:
        """The cropped images."""
        return channels_last(self._cropped, as_images(self, inputs), self.data_format)

    def _cropped(self, images: Any) -> Any:
        top, left = images.shape[-3] - self.height, images.shape[-2] - self.width
        if top < 0 or left < 0:
            return math.cast(smart_resize(images, (self.height, self.width)), images.dtype)
        return image.crop_to_bounding_box(images, top // 2, left // 2, self.height, self.width)
