"""Layers that repeat positions, or interpolate between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.keras.layers.convolutional import sizes
from meshflow.keras.layers.spatial import SpatialLayer, config_of_sequences
from meshflow.ops import array, image

__all__ = ["UpSampling1D", "UpSampling2D", "UpSampling3D"]


class UpSampling(SpatialLayer):
    """Repeated positions; see the classes below."""

    def __init__(self, size: int | Sequence[int], data_format: str | None, **kwargs: Any) -> None:
        super().__init__(data_format, **kwargs)
        self.size = sizes(size, self.rank, "size")

    def call(self, inputs: Any) -> Any:
        """The larger tensor."""
        for axis, n in enumerate(self.size, start=2 if self._first else 1):
            inputs = array.repeat(inputs, n, axis=axis)
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        return self._with_spatial(input_shape, lambda i, s: s * self.size[i])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = super().get_config()
        return config_of_sequences(config, "size") if self.rank == 1 else config

    def _own_config(self) -> dict[str, Any]:
        return {"size": self.size}


class UpSampling1D(UpSampling):
    """Repeated steps of sequences.

    Args:
      size: how often each step is repeated.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, steps, channels).

    Output shape:
      (batch, new_steps, channels): a size n becomes size * n.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.UpSampling1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 8, 3])
    """

    rank = 1

    def __init__(self, size: int | Sequence[int] = 2, **kwargs: Any) -> None:
        super().__init__(size, None, **kwargs)


class UpSampling2D(UpSampling):
    """Larger images, by repeated pixels or values between them.

    Args:
      size: how often each position stands in the output: an integer, or one for each dimension.
      data_format: 'channels_last' or 'channels_first'; default `tf.keras.backend.image_data_format()`.
      interpolation: 'nearest' repeats; other methods are those of `tf.image.resize` and give float32 under every
        policy.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels) in the same order: a size n becomes size * n.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.UpSampling2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 8, 12, 3])
    """

    rank = 2

    def __init__(
        self,
        size: int | Sequence[int] = (2, 2),
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Any,
    ) -> None:
        super().__init__(size, data_format, **kwargs)
        self.interpolation = interpolation
        # Interpolation gives another dtype than the compute dtype.
        self._traced_shape = interpolation != "nearest"

    def call(self, inputs: Any) -> Any:
        """The larger tensor."""
        if self.interpolation == "nearest":
            return super().call(inputs)
        x = array.transpose(inputs, [0, 2, 3, 1]) if self._first else inputs
        new = [x.shape[1] * self.size[0], x.shape[2] * self.size[1]]
        x = image.resize(x, new, method=self.interpolation)
        return array.transpose(x, [0, 3, 1, 2]) if self._first else x

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "interpolation": self.interpolation}


class UpSampling3D(UpSampling):
    """Larger volumes, by repeated positions.

    Args:
      size: how often each position stands in the output: an integer, or one for each dimension.
      data_format: 'channels_last' or 'channels_first'; default `tf.keras.backend.image_data_format()`.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth, height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, channels) in the same order: a size n becomes size * n.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.UpSampling3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 8, 12, 16, 3])
    """

    rank = 3

    def __init__(
        self, size: int | Sequence[int] = (2, 2, 2), data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(size, data_format, **kwargs)
