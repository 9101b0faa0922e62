"""Layers that change shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments, WrapperArguments
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.literals import DataFormat
from meshflow.ops import array

__all__ = ["Flatten", "Permute", "RepeatVector", "Reshape"]


class Flatten(Layer):
    """Layer that flattens all axes except the batch.

    Args:
      data_format: 'channels_first' moves the channels to the end before flattening.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      (batch, size), where size is the product of all other sizes.

    Example:
      >>> tf.keras.layers.Flatten()(tf.ones([2, 3, 4])).shape
      TensorShape([2, 12])
    """

    def __init__(
        self, data_format: DataFormat | None = None, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.data_format = settings.normalize_data_format(data_format)
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: Tensor) -> Tensor:
        """Flatten the inputs."""
        rank = len(inputs.shape)
        if self.data_format == "channels_first" and rank > 2:
            inputs = array.transpose(inputs, [0, *range(2, rank), 1])
        return array.reshape(inputs, [inputs.shape[0], math.prod(inputs.shape.as_list()[1:])])

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return [batch, product of the other sizes]."""
        batch, *sizes = TensorShape(input_shape).as_list()
        return TensorShape([batch, None if None in sizes else math.prod(sizes)])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "data_format": self.data_format}


class Reshape(Layer):
    """Layer that reshapes each example.

    Args:
      target_shape: Sizes without the batch; one of them may be -1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      (batch, *target_shape).

    Example:
      >>> tf.keras.layers.Reshape((-1, 2))(tf.ones([5, 3, 4])).shape
      TensorShape([5, 6, 2])
    """

    def __init__(self, target_shape: Sequence[int], **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(**kwargs)
        self.target_shape = tuple(target_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Reshape the inputs."""
        return array.reshape(
            inputs, [inputs.shape[0], *self._resolve_sizes(inputs.shape.as_list()[1:])]
        )

    def _resolve_sizes(self, sizes: list[Any]) -> list[int | None]:
        if self.target_shape.count(-1) > 1:
            raise InvalidValueError(
                f"There must be at most one unknown dimension in target_shape. Received: target_shape={self.target_shape}"
            )
        if None in sizes:
            return [None if s == -1 else s for s in self.target_shape]
        total, known = math.prod(sizes), math.prod(s for s in self.target_shape if s != -1)
        if (-1 not in self.target_shape and known != total) or known == 0 or total % known:
            raise InvalidValueError(
                f"total size of new array must be unchanged, input_shape = {sizes}, output_shape = {list(self.target_shape)} (layer {self.name})"
            )
        return [total // known if s == -1 else s for s in self.target_shape]

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return [batch, *target_shape]."""
        batch, *sizes = TensorShape(input_shape).as_list()
        return TensorShape([batch, *self._resolve_sizes(sizes)])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "target_shape": self.target_shape}


class Permute(Layer):
    """Layer that permutes axes.

    Args:
      dims: Order of the axes after the batch, starting at 1.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      (batch, ...), with the axes in the order of `dims`.

    Example:
      >>> tf.keras.layers.Permute((2, 1))(tf.ones([2, 3, 4])).shape
      TensorShape([2, 4, 3])
    """

    def __init__(self, dims: Sequence[int], **kwargs: Unpack[WrapperArguments]) -> None:
        super().__init__(**kwargs)
        self.dims = tuple(dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(
                f"Invalid permutation argument `dims` for Permute Layer. The set of indices in `dims` must be consecutive and start from 1. Received dims={dims}"
            )
        self.input_spec = InputSpec(ndim=len(self.dims) + 1)

    def call(self, inputs: Tensor) -> Tensor:
        """Permute the axes of the inputs."""
        return array.transpose(inputs, (0, *self.dims))

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the permuted shape."""
        sizes = TensorShape(input_shape).as_list()
        return TensorShape([sizes[0], *(sizes[d] for d in self.dims)])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "dims": self.dims}


class RepeatVector(Layer):
    """Layer that repeats a vector: [batch, features] to [batch, n, features].

    Args:
      n: Number of repetitions.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, features).

    Output shape:
      (batch, n, features).

    Example:
      >>> tf.keras.layers.RepeatVector(3)(tf.constant([[1.0, 2.0]])).numpy().tolist()
      [[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]]
    """

    def __init__(self, n: int, **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(**kwargs)
        if not isinstance(n, int):
            raise TypeError(f"Expected an integer value for `n`, got {type(n)}.")
        self.n = n
        self.input_spec = InputSpec(ndim=2)

    def call(self, inputs: Tensor) -> Tensor:
        """Repeat the vectors."""
        return array.tile(array.expand_dims(inputs, 1), [1, self.n, 1])

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return [batch, n, features]."""
        batch, size = TensorShape(input_shape).as_list()
        return TensorShape([batch, self.n, size])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "n": self.n}
