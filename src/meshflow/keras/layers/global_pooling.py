"""Global pooling layers, which reduce all positions to one value per channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.layers.keyword_arguments import LayerArguments
from meshflow.keras.layers.spatial import SpatialLayer
from meshflow.keras.literals import DataFormat
from meshflow.ops import array, math

__all__ = [
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
]


class GlobalPooling(SpatialLayer):
    """Base class of layers that reduce all positions to one value per channel."""

    _reduce: Callable[..., Any]

    def __init__(
        self,
        data_format: DataFormat | None = None,
        keepdims: bool = False,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.keepdims = keepdims

    def call(self, inputs: TensorLike) -> Tensor:
        """Pool the inputs."""
        start = 2 if self._is_channels_first else 1
        return type(self)._reduce(
            inputs, axis=list(range(start, start + self.rank)), keepdims=self.keepdims
        )

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        shape = TensorShape(input_shape).as_list()
        ones = [1] * self.rank if self.keepdims else []
        if self._is_channels_first:
            return TensorShape([*shape[:2], *ones])
        return TensorShape([shape[0], *ones, shape[-1]])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "keepdims": self.keepdims}


class GlobalMaxPooling1D(GlobalPooling):
    """Global maximum pooling over the steps of sequences.

    Args:
      data_format: 'channels_last' or 'channels_first'.
      keepdims: Whether to keep the dimension of the steps with size 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels), with 'channels_first' (batch, channels, steps).

    Output shape:
      (batch, channels); with `keepdims` (batch, 1, channels) in the same order.

    Example:
      >>> tf.keras.layers.GlobalMaxPooling1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 3])
    """

    rank = 1
    _reduce = staticmethod(math.reduce_max)


class GlobalMaxPooling2D(GlobalPooling):
    """Global maximum pooling over the positions of images.

    Args:
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      keepdims: Whether to keep the 2 spatial dimensions with size 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, channels); with `keepdims` (batch, 1, 1, channels) in the same order.

    Example:
      >>> tf.keras.layers.GlobalMaxPooling2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 3])
    """

    rank = 2
    _reduce = staticmethod(math.reduce_max)


class GlobalMaxPooling3D(GlobalPooling):
    """Global maximum pooling over the positions of volumes.

    Args:
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      keepdims: Whether to keep the 3 spatial dimensions with size 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, channels); with `keepdims` (batch, 1, 1, 1, channels) in the same order.

    Example:
      >>> tf.keras.layers.GlobalMaxPooling3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 3])
    """

    rank = 3
    _reduce = staticmethod(math.reduce_max)


class GlobalAveragePooling1D(GlobalPooling):
    """Global average pooling over the steps of sequences; masked steps are left out.

    Args:
      data_format: 'channels_last' or 'channels_first'.
      keepdims: Whether to keep the dimension of the steps with size 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels), with 'channels_first' (batch, channels, steps).

    Output shape:
      (batch, channels); with `keepdims` (batch, 1, channels) in the same order.

    Example:
      >>> tf.keras.layers.GlobalAveragePooling1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 3])
    """

    rank = 1
    _reduce = staticmethod(math.reduce_mean)

    def __init__(
        self,
        data_format: DataFormat | None = None,
        keepdims: bool = False,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, keepdims, **kwargs)
        self.supports_masking = True

    def call(self, inputs: TensorLike, mask: Tensor | None = None) -> Tensor:
        """Pool the inputs."""
        if mask is None:
            return super().call(inputs)
        axis, mask_axis = (2, 1) if self._is_channels_first else (1, -1)
        weights = array.expand_dims(math.cast(mask, inputs.dtype), mask_axis)
        total = math.reduce_sum(inputs * weights, axis=axis, keepdims=self.keepdims)
        return total / math.reduce_sum(weights, axis=axis, keepdims=self.keepdims)

    def compute_mask(self, inputs: TensorLike, mask: Tensor | None = None) -> None:
        """Return None, because the output has no steps."""
        return None


class GlobalAveragePooling2D(GlobalPooling):
    """Global average pooling over the positions of images.

    Args:
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      keepdims: Whether to keep the 2 spatial dimensions with size 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, channels); with `keepdims` (batch, 1, 1, channels) in the same order.

    Example:
      >>> tf.keras.layers.GlobalAveragePooling2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 3])
    """

    rank = 2
    _reduce = staticmethod(math.reduce_mean)


class GlobalAveragePooling3D(GlobalPooling):
    """Global average pooling over the positions of volumes.

    Args:
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      keepdims: Whether to keep the 3 spatial dimensions with size 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, channels); with `keepdims` (batch, 1, 1, 1, channels) in the same order.

    Example:
      >>> tf.keras.layers.GlobalAveragePooling3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 3])
    """

    rank = 3
    _reduce = staticmethod(math.reduce_mean)


GlobalMaxPool1D = GlobalMaxPooling1D
GlobalMaxPool2D = GlobalMaxPooling2D
GlobalMaxPool3D = GlobalMaxPooling3D
GlobalAvgPool1D = GlobalAveragePooling1D
GlobalAvgPool2D = GlobalAveragePooling2D
GlobalAvgPool3D = GlobalAveragePooling3D
