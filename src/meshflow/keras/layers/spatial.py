"""Base class of pooling, padding, cropping and upsampling layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.literals import DataFormat


class SpatialLayer(Layer):
    """Layer over `rank` spatial dimensions, in addition to batch and channels.

    Args:
      data_format: 'channels_last' or 'channels_first'; default
        `tf.keras.backend.image_data_format()`, for sequences 'channels_last'.
      **kwargs: Arguments of `Layer`.
    """

    rank = 2

    def __init__(
        self, data_format: DataFormat | None = None, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(**kwargs)
        if self.rank == 1:
            data_format = data_format or "channels_last"
        self.data_format = settings.normalize_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def _is_channels_first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._is_channels_first else f"N{spatial}C"

    def _replace_spatial_sizes(
        self, input_shape: ShapeLike, change: Callable[[int, int], int | None]
    ) -> TensorShape:
        shape = TensorShape(input_shape).as_list()
        start = 2 if self._is_channels_first else 1
        new = [
            None if s is None else change(i, s)
            for i, s in enumerate(shape[start : start + self.rank])
        ]
        return TensorShape([*shape[:start], *new, *shape[start + self.rank :]])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            **self._get_window_config(),
            "data_format": self.data_format,
        }

    def _get_window_config(self) -> Config:
        """Return the part of the configuration before `data_format`."""
        return {}


def to_1d_config(config: Config, name: str) -> Config:
    """Convert a configuration to one dimension, with an integer and no `data_format`."""
    return {**{k: v for k, v in config.items() if k != "data_format"}, name: config[name][0]}
