"""Upsampling layers, which repeat positions or interpolate between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, get_args

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.layers.convolutional import parse_sizes
from meshflow.keras.layers.spatial import SpatialLayer, to_1d_config
from meshflow.keras.literals import DataFormat, Interpolation
from meshflow.ops import array, image

__all__ = ["UpSampling1D", "UpSampling2D", "UpSampling3D"]


class UpSampling(SpatialLayer):
    """Base class of layers that repeat positions."""

    def __init__(
        self,
        size: int | Sequence[int],
        data_format: DataFormat | None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.size = parse_sizes(size, self.rank, "size")

    def call(self, inputs: TensorLike) -> Tensor:
        """Upsample the inputs."""
        for axis, n in enumerate(self.size, start=2 if self._is_channels_first else 1):
            inputs = array.repeat(inputs, n, axis=axis)
        return inputs

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        return self._replace_spatial_sizes(input_shape, lambda i, s: s * self.size[i])

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        return to_1d_config(config, "size") if self.rank == 1 else config

    def _get_window_config(self) -> Config:
        return {"size": self.size}


class UpSampling1D(UpSampling):
    """Repetition of the steps of sequences.

    Args:
      size: Number of repetitions of each step.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels).

    Output shape:
      (batch, new_steps, channels): a size n becomes size * n.

    Example:
      >>> tf.keras.layers.UpSampling1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 8, 3])
    """

    rank = 1

    def __init__(
        self, size: int | Sequence[int] = 2, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(size, None, **kwargs)


class UpSampling2D(UpSampling):
    """Upsampling of images by repetition of pixels or by interpolation.

    Args:
      size: Factor of the sizes: an integer, or one for each dimension.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      interpolation: 'nearest' repeats pixels; other methods are those of `tf.image.resize`,
        with float32 outputs.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels) in the same order: a size n becomes size * n.

    Example:
      >>> tf.keras.layers.UpSampling2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 8, 12, 3])
    """

    rank = 2

    def __init__(
        self,
        size: int | Sequence[int] = (2, 2),
        data_format: DataFormat | None = None,
        interpolation: Interpolation = "nearest",
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(size, data_format, **kwargs)
        if interpolation not in get_args(Interpolation):
            raise NotImplementedError(
                f"{type(self).__name__}: expected an interpolation in {get_args(Interpolation)}, got {interpolation!r}."
            )
        self.interpolation = interpolation
        # The interpolated outputs are float32 with any compute dtype.
        self._traced_shape = interpolation != "nearest"

    def call(self, inputs: TensorLike) -> Tensor:
        """Upsample the inputs."""
        if self.interpolation == "nearest":
            return super().call(inputs)
        x = array.transpose(inputs, [0, 2, 3, 1]) if self._is_channels_first else inputs
        new = [x.shape[1] * self.size[0], x.shape[2] * self.size[1]]
        x = image.resize(x, new, method=self.interpolation)
        return array.transpose(x, [0, 3, 1, 2]) if self._is_channels_first else x

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "interpolation": self.interpolation}


class UpSampling3D(UpSampling):
    """Upsampling of volumes by repetition of positions.

    Args:
      size: Factor of the sizes: an integer, or one for each dimension.
      data_format: 'channels_last' or 'channels_first'; default the `tf.keras.backend` setting.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, channels) in the same order: a size n becomes size *
      n.

    Example:
      >>> tf.keras.layers.UpSampling3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 8, 12, 16, 3])
    """

    rank = 3

    def __init__(
        self,
        size: int | Sequence[int] = (2, 2, 2),
        data_format: DataFormat | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(size, data_format, **kwargs)
