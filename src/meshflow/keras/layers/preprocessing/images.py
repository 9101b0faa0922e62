"""Layers that resize and crop images [height, width, channels], or batches of images."""

from __future__ import annotations

from typing import Any, Unpack

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.literals import DataFormat, FillMode, Interpolation
from meshflow.keras.ops.images import apply_channels_last, resize
from meshflow.keras.utils.images import smart_resize
from meshflow.ops import image, math
from meshflow.ops.image.geometry import check_image_shape
from meshflow.ops.image.resampling import METHODS

__all__ = ["CenterCrop", "Resizing"]


def parse_interpolation(name: str) -> str:
    """Check the name of a method of `tf.image.resize`.

    Raises:
      NotImplementedError: If the method is unknown.
    """
    if name.lower() not in METHODS:
        raise NotImplementedError(
            f"Value not recognized for `interpolation`: {name}. Supported values are: {METHODS}"
        )
    return name.lower()


def as_images(layer: Layer, inputs: TensorLike) -> Tensor:
    """Convert inputs to a tensor in the compute dtype of the layer."""
    images = convert_to_tensor(inputs)
    if images.shape.rank is not None and images.shape.rank < 3:
        raise InvalidValueError(
            f"{type(layer).__name__}(name={layer.name!r}): expected images of rank 3 or 4, got shape {images.shape}."
        )
    return math.cast(images, layer.compute_dtype or settings.floatx())


def replace_image_size(
    input_shape: ShapeLike, height: int | None, width: int | None, channels_first: bool = False
) -> TensorShape:
    """Replace height and width in a shape of images."""
    sizes = TensorShape(input_shape).as_list()
    check_image_shape(sizes)
    if channels_first:
        return TensorShape([*sizes[:-2], height, width])
    return TensorShape([*sizes[:-3], height, width, sizes[-1]])


class _FixedSizeLayer(Layer):
    """Layer with output images of a fixed height and width.

    Args:
      height: Height of the output.
      width: Width of the output.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting. Configurations of Keras 2 do not contain it.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self,
        height: int,
        width: int,
        data_format: DataFormat | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.height, self.width = height, width
        self.data_format = settings.normalize_data_format(data_format)

    @property
    def _is_channels_first(self) -> bool:
        return self.data_format == "channels_first"

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Replace height and width in the shape of the input."""
        return replace_image_size(input_shape, self.height, self.width, self._is_channels_first)

    def get_config(self) -> Config:
        """Return the configuration."""
        sizes = {"height": self.height, "width": self.width}
        data_format = {"data_format": self.data_format} if self._is_channels_first else {}
        return super().get_config() | sizes | data_format


class Resizing(_FixedSizeLayer):
    """Resizing of images.

    Args:
      height: Height of the output.
      width: Width of the output.
      interpolation: Method of `tf.image.resize`.
      crop_to_aspect_ratio: Whether to crop the center of the images instead of distorting them.
      pad_to_aspect_ratio: Whether to pad the images on both sides instead of distorting them.
      fill_mode: 'constant'.
      fill_value: Value of the padding.
      antialias: Whether to widen the filter when images get smaller.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels). With
      'channels_first' the channels are before the height.

    Output shape:
      The input shape, with the `height` and `width` of the layer.

    Raises:
      NotImplementedError: If the interpolation is unknown.
      ValueError: If `fill_mode` is not 'constant', or both cropping and padding are requested.

    Example:
      >>> tf.keras.layers.Resizing(2, 3)(tf.ones([1, 8, 8, 3])).shape
      TensorShape([1, 2, 3, 3])
    """

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: Interpolation = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: FillMode = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: DataFormat | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(height, width, data_format, **kwargs)
        self.interpolation = interpolation
        self.crop_to_aspect_ratio = crop_to_aspect_ratio
        self._method = parse_interpolation(interpolation)
        if fill_mode != "constant" or (crop_to_aspect_ratio and pad_to_aspect_ratio):
            raise ValueError(
                "Resizing: `fill_mode` must be 'constant', and only one of `crop_to_aspect_ratio` and "
                f"`pad_to_aspect_ratio` may be True. Received: fill_mode={fill_mode!r}, "
                f"crop_to_aspect_ratio={crop_to_aspect_ratio}, pad_to_aspect_ratio={pad_to_aspect_ratio}."
            )
        # Configurations contain these options of Keras 3 only if they are set, so that Keras 2 can
        # read them.
        self._keras3_options: dict[str, Any] = {
            "pad_to_aspect_ratio": pad_to_aspect_ratio,
            "fill_value": fill_value,
            "antialias": antialias,
        }

    def call(self, inputs: TensorLike) -> Tensor:
        """Resize the images."""
        images = as_images(self, inputs)
        size = (self.height, self.width)
        if self._is_channels_first or any(self._keras3_options.values()):
            return resize(
                images, size, self._method, data_format=self.data_format,
                crop_to_aspect_ratio=self.crop_to_aspect_ratio, **self._keras3_options,
            )  # fmt: skip
        if self.crop_to_aspect_ratio:
            resized = smart_resize(images, size, self._method)
        else:
            resized = image.resize(images, size, self._method)
        return math.cast(resized, images.dtype)

    def get_config(self) -> Config:
        """Return the configuration."""
        options = {
            "interpolation": self.interpolation,
            "crop_to_aspect_ratio": self.crop_to_aspect_ratio,
        }
        return super().get_config() | options | {k: v for k, v in self._keras3_options.items() if v}


class CenterCrop(_FixedSizeLayer):
    """Crop of the center of images; smaller images are resized and cropped to the aspect ratio.

    Args:
      height: Height of the output.
      width: Width of the output.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels). With
      'channels_first' the channels are before the height.

    Output shape:
      The input shape, with the `height` and `width` of the layer.

    Example:
      >>> image = tf.reshape(tf.range(16.0), [4, 4, 1])
      >>> tf.keras.layers.CenterCrop(2, 2)(image).numpy()[..., 0].tolist()
      [[5.0, 6.0], [9.0, 10.0]]
    """

    def __init__(
        self,
        height: int,
        width: int,
        data_format: DataFormat | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(height, width, data_format, **kwargs)

    def call(self, inputs: TensorLike) -> Tensor:
        """Crop the images."""
        return apply_channels_last(self._crop_center, as_images(self, inputs), self.data_format)

    def _crop_center(self, images: Tensor) -> Tensor:
        top, left = images.shape[-3] - self.height, images.shape[-2] - self.width
        if top < 0 or left < 0:
            return math.cast(smart_resize(images, (self.height, self.width)), images.dtype)
        return image.crop_to_bounding_box(images, top // 2, left // 2, self.height, self.width)
