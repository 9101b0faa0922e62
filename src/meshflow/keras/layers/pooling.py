"""Pooling layers, which reduce each window to one value per channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.layers.convolutional import compute_output_size, parse_sizes
from meshflow.keras.layers.spatial import SpatialLayer
from meshflow.keras.literals import DataFormat, Padding
from meshflow.ops import nn

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
]


class Pooling(SpatialLayer):
    """Base class of layers that reduce each window to one value per channel."""

    _pool: Callable[..., Any]

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: Padding = "valid",
        data_format: DataFormat | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.pool_size = parse_sizes(pool_size, self.rank, "pool_size")
        self.strides = (
            self.pool_size if strides is None else parse_sizes(strides, self.rank, "strides")
        )
        self.padding = padding.lower()
        if self.padding not in ("valid", "same"):
            raise ValueError(
                f"The `padding` argument must be one of 'valid', 'same'. Received: {padding}"
            )

    def call(self, inputs: TensorLike) -> Tensor:
        """Pool the inputs."""
        padding = self.padding.upper()
        return type(self)._pool(inputs, self.pool_size, self.strides, padding, self._format)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        shape = self._replace_spatial_sizes(
            input_shape,
            lambda i, s: compute_output_size(s, self.pool_size[i], self.padding, self.strides[i]),
        )
        if any(s is not None and s <= 0 for s in shape[1:]):
            raise ValueError(
                f"{self.name}: windows of {self.pool_size} do not fit into input of shape {tuple(TensorShape(input_shape).as_list())}."
            )
        return shape

    def _get_window_config(self) -> Config:
        size, strides = {"pool_size": self.pool_size}, {"strides": self.strides}
        padding = {"padding": self.padding}
        return strides | size | padding if self.rank == 1 else size | padding | strides


class MaxPooling1D(Pooling):
    """Maximum pooling over windows of sequences.

    Args:
      pool_size: Size of the window: an integer, or a tuple with one integer.
      strides: Stride of the window, like `pool_size`; default `pool_size`.
      padding: 'valid' for windows inside of the input; 'same' for ceil(n / strides) windows.
      data_format: 'channels_last' or 'channels_first'.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels), with 'channels_first' (batch, channels, steps).

    Output shape:
      (batch, new_steps, channels) in the same order. With 'valid', a size n becomes
      (n - pool_size) // strides + 1; with 'same', ceil(n / strides).

    Raises:
      ValueError: If a size or `padding` is invalid, or a window is larger than the input.

    Example:
      >>> tf.keras.layers.MaxPooling1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 2, 3])
    """

    rank = 1
    _pool = staticmethod(nn.max_pool)


class MaxPooling2D(Pooling):
    """Maximum pooling over windows of images.

    Args:
      pool_size: Size of the window: an integer, or 2 integers.
      strides: Stride of the window, like `pool_size`; default `pool_size`.
      padding: 'valid' for windows inside of the input; 'same' for ceil(n / strides) windows.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels) in the same order. With 'valid', a size n becomes
      (n - pool_size) // strides + 1; with 'same', ceil(n / strides).

    Raises:
      ValueError: If a size or `padding` is invalid, or a window is larger than the input.

    Example:
      >>> tf.keras.layers.MaxPooling2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 2, 3, 3])
    """

    rank = 2
    _pool = staticmethod(nn.max_pool)


class MaxPooling3D(Pooling):
    """Maximum pooling over windows of volumes.

    Args:
      pool_size: Size of the window: an integer, or 3 integers.
      strides: Stride of the window, like `pool_size`; default `pool_size`.
      padding: 'valid' for windows inside of the input; 'same' for ceil(n / strides) windows.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, channels) in the same order. A size n becomes (n -
      pool_size) // strides + 1 with 'valid', ceil(n / strides) with 'same'.

    Raises:
      ValueError: If a size or `padding` is invalid, or a window is larger than the input.

    Example:
      >>> tf.keras.layers.MaxPooling3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 2, 3, 4, 3])
    """

    rank = 3
    _pool = staticmethod(nn.max_pool)


class AveragePooling1D(Pooling):
    """Average pooling over windows of sequences.

    Args:
      pool_size: Size of the window: an integer, or a tuple with one integer.
      strides: Stride of the window, like `pool_size`; default `pool_size`.
      padding: 'valid' for windows inside of the input; 'same' for ceil(n / strides) windows.
      data_format: 'channels_last' or 'channels_first'.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels), with 'channels_first' (batch, channels, steps).

    Output shape:
      (batch, new_steps, channels) in the same order. With 'valid', a size n becomes
      (n - pool_size) // strides + 1; with 'same', ceil(n / strides).

    Raises:
      ValueError: If a size or `padding` is invalid, or a window is larger than the input.

    Example:
      >>> tf.keras.layers.AveragePooling1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 2, 3])
    """

    rank = 1
    _pool = staticmethod(nn.avg_pool)


class AveragePooling2D(Pooling):
    """Average pooling over windows of images.

    Args:
      pool_size: Size of the window: an integer, or 2 integers.
      strides: Stride of the window, like `pool_size`; default `pool_size`.
      padding: 'valid' for windows inside of the input; 'same' for ceil(n / strides) windows.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels) in the same order. With 'valid', a size n becomes
      (n - pool_size) // strides + 1; with 'same', ceil(n / strides).

    Raises:
      ValueError: If a size or `padding` is invalid, or a window is larger than the input.

    Example:
      >>> tf.keras.layers.AveragePooling2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 2, 3, 3])
    """

    rank = 2
    _pool = staticmethod(nn.avg_pool)


class AveragePooling3D(Pooling):
    """Average pooling over windows of volumes.

    Args:
      pool_size: Size of the window: an integer, or 3 integers.
      strides: Stride of the window, like `pool_size`; default `pool_size`.
      padding: 'valid' for windows inside of the input; 'same' for ceil(n / strides) windows.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, channels) in the same order. A size n becomes (n -
      pool_size) // strides + 1 with 'valid', ceil(n / strides) with 'same'.

    Raises:
      ValueError: If a size or `padding` is invalid, or a window is larger than the input.

    Example:
      >>> tf.keras.layers.AveragePooling3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 2, 3, 4, 3])
    """

    rank = 3
    _pool = staticmethod(nn.avg_pool)


MaxPool1D = MaxPooling1D
MaxPool2D = MaxPooling2D
MaxPool3D = MaxPooling3D
AvgPool1D = AveragePooling1D
AvgPool2D = AveragePooling2D
AvgPool3D = AveragePooling3D
