"""Layers for zero padding and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.symbolic_sizes import may_be_positive
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config
from meshflow.keras.layers.keyword_arguments import LayerArguments
from meshflow.keras.layers.spatial import SpatialLayer, to_1d_config
from meshflow.keras.literals import DataFormat
from meshflow.ops import array

__all__ = [
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
]


def _parse_pairs(value: int | Sequence[Any], rank: int, name: str) -> tuple[tuple[int, int], ...]:
    value = to_static_value(value, name)
    if isinstance(value, int):
        return ((value, value),) * rank
    if not isinstance(value, tuple):
        raise ValueError(f"`{name}` should be an int or a tuple. Received: {value!r}.")
    if rank == 1 and len(value) == 2 and all(isinstance(v, int) for v in value):
        return (tuple(value),)
    if len(value) != rank:
        raise ValueError(f"`{name}` should have {rank} elements. Received: {value}.")
    pairs = tuple((v, v) if isinstance(v, int) else tuple(v) for v in value)
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"`{name}` should hold integers or pairs of them. Received: {value}.")
    return pairs


class ZeroPadding(SpatialLayer):
    """Base class of layers that pad with zeros."""

    def __init__(
        self,
        padding: int | Sequence[Any],
        data_format: DataFormat | None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.padding = _parse_pairs(padding, self.rank, "padding")

    def call(self, inputs: Tensor) -> Tensor:
        """Pad the inputs."""
        before, after = ([(0, 0)] * 2, []) if self._is_channels_first else ([(0, 0)], [(0, 0)])
        return array.pad(inputs, [*before, *self.padding, *after])

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        return self._replace_spatial_sizes(input_shape, lambda i, s: s + sum(self.padding[i]))

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        if self.rank > 1:
            return config
        # The configuration in Keras 2 has no data_format.
        data_format = {"data_format": self.data_format} if self._is_channels_first else {}
        return to_1d_config(config, "padding") | data_format

    def _get_window_config(self) -> Config:
        return {"padding": self.padding}


class Cropping(SpatialLayer):
    """Base class of layers that crop."""

    def __init__(
        self,
        cropping: int | Sequence[Any],
        data_format: DataFormat | None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.cropping = _parse_pairs(cropping, self.rank, "cropping")

    def call(self, inputs: Tensor) -> Tensor:
        """Crop the inputs."""
        spatial = (
            inputs.shape.as_list()[2:] if self._is_channels_first else inputs.shape.as_list()[1:-1]
        )
        pairs = list(zip(self.cropping, spatial, strict=True))
        if any(not may_be_positive(n - sum(cut)) for cut, n in pairs):
            raise ValueError(
                "Values in `cropping` argument should be smaller than the corresponding spatial dimension of the "
                f"input. Received: input_shape={inputs.shape}, cropping={self.cropping}"
            )
        cuts = tuple(slice(a, -b if b else None) for a, b in self.cropping)
        return inputs[
            (slice(None), slice(None), *cuts) if self._is_channels_first else (slice(None), *cuts)
        ]

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        return self._replace_spatial_sizes(input_shape, lambda i, s: s - sum(self.cropping[i]))

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        return to_1d_config(config, "cropping") if self.rank == 1 else config

    def _get_window_config(self) -> Config:
        return {"cropping": self.cropping}


class ZeroPadding1D(ZeroPadding):
    """Zero padding of sequences.

    Args:
      padding: Number of zeros: an integer, or a pair (before, after).
      data_format: 'channels_last' (default) or 'channels_first'.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels), or (batch, channels, steps).

    Output shape:
      (batch, new_steps, channels): a size n becomes before + n + after.

    Raises:
      ValueError: If `padding` has another form.

    Example:
      >>> tf.keras.layers.ZeroPadding1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 6, 3])
    """

    rank = 1

    def __init__(
        self,
        padding: int | Sequence[Any] = 1,
        data_format: DataFormat | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(padding, data_format, **kwargs)


class ZeroPadding2D(ZeroPadding):
    """Zero padding of images.

    Args:
      padding: Number of zeros: an integer, or an integer or pair (before, after) for each axis.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels) in the same order: a size n becomes before + n +
      after.

    Raises:
      ValueError: If `padding` has another form.

    Example:
      >>> tf.keras.layers.ZeroPadding2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 6, 8, 3])
    """

    rank = 2

    def __init__(
        self,
        padding: int | Sequence[Any] = (1, 1),
        data_format: DataFormat | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(padding, data_format, **kwargs)


class ZeroPadding3D(ZeroPadding):
    """Zero padding of volumes.

    Args:
      padding: Number of zeros: an integer, or an integer or pair (before, after) for each axis.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, channels) in the same order: a size n becomes before
      + n + after.

    Raises:
      ValueError: If `padding` has another form.

    Example:
      >>> tf.keras.layers.ZeroPadding3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 6, 8, 10, 3])
    """

    rank = 3

    def __init__(
        self,
        padding: int | Sequence[Any] = (1, 1, 1),
        data_format: DataFormat | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(padding, data_format, **kwargs)


class Cropping1D(Cropping):
    """Cropping of sequences.

    Args:
      cropping: Number of steps to remove: an integer, or a pair (before, after).
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels).

    Output shape:
      (batch, new_steps, channels): a size n becomes n - before - after.

    Raises:
      ValueError: If `cropping` has another form, or if nothing remains.

    Example:
      >>> tf.keras.layers.Cropping1D()(tf.ones([1, 4, 3])).shape
      TensorShape([1, 2, 3])
    """

    rank = 1

    def __init__(
        self, cropping: int | Sequence[Any] = (1, 1), **kwargs: Unpack[LayerArguments]
    ) -> None:
        super().__init__(cropping, None, **kwargs)


class Cropping2D(Cropping):
    """Cropping of images; by default nothing is removed.

    Args:
      cropping: Sizes to remove: an integer, or an integer or pair (before, after) for each axis.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), with 'channels_first' (batch, channels, height, width).

    Output shape:
      (batch, new_height, new_width, channels) in the same order: a size n becomes n - before -
      after.

    Raises:
      ValueError: If `cropping` has another form, or if nothing remains.

    Example:
      >>> tf.keras.layers.Cropping2D()(tf.ones([1, 4, 6, 3])).shape
      TensorShape([1, 4, 6, 3])
    """

    rank = 2

    def __init__(
        self,
        cropping: int | Sequence[Any] = ((0, 0), (0, 0)),
        data_format: DataFormat | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)


class Cropping3D(Cropping):
    """Cropping of volumes.

    Args:
      cropping: Sizes to remove: an integer, or an integer or pair (before, after) for each axis.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels), with 'channels_first' (batch, channels, depth,
      height, width).

    Output shape:
      (batch, new_depth, new_height, new_width, channels) in the same order: a size n becomes n -
      before - after.

    Raises:
      ValueError: If `cropping` has another form, or if nothing remains.

    Example:
      >>> tf.keras.layers.Cropping3D()(tf.ones([1, 4, 6, 8, 3])).shape
      TensorShape([1, 2, 4, 6, 3])
    """

    rank = 3

    def __init__(
        self,
        cropping: int | Sequence[Any] = ((1, 1), (1, 1), (1, 1)),
        data_format: DataFormat | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)
