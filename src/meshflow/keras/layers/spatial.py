"""What pooling, padding, cropping and upsampling layers have in common."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec


class SpatialLayer(Layer):
    """A layer over `rank` dimensions beside the batch and the channels.

    Args:
      data_format: 'channels_last' or 'channels_first'; default that of images, for sequences 'channels_last'.
      **kwargs: arguments of `Layer`.
    """

    rank = 2

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.rank == 1:
            data_format = data_format or "channels_last"
        self.data_format = settings.standard_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def _first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._first else f"N{spatial}C"

    def _with_spatial(self, input_shape: Any, change: Any) -> TensorShape:
        shape = TensorShape(input_shape).as_list()
        start = 2 if self._first else 1
        new = [
            None if s is None else change(i, s)
            for i, s in enumerate(shape[start : start + self.rank])
        ]
        return TensorShape([*shape[:start], *new, *shape[start + self.rank :]])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), **self._own_config(), "data_format": self.data_format}

    def _own_config(self) -> dict[str, Any]:
        """What stands before the order of the dimensions."""
        return {}


def config_of_sequences(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A configuration for one dimension: one size instead of a tuple of them, and channels come last."""
    return {**{k: v for k, v in config.items() if k != "data_format"}, name: config[name][0]}
