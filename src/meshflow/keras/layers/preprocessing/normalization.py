"""`Normalization`: inputs shifted and scaled to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from meshflow.core.values.convert import constant
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.layers.preprocessing.preprocessing_layer import (
    PreprocessingLayer,
    read_host_values,
)
from meshflow.ops import array, math

__all__ = ["Normalization"]


class Normalization(PreprocessingLayer):
    """Normalization `(inputs - mean) / sqrt(variance)`; `adapt` can learn the moments.

    Args:
      axis: Axes with a mean and a variance for each index, of known size; None for a single
        mean and variance.
      mean: Mean, broadcast to the sizes along `axis`.
      variance: Variance, broadcast to the sizes along `axis`.
      invert: Whether to undo the normalization instead.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ...), or without a batch; the sizes along `axis` are known.

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If only one of mean and variance is passed, an axis does not exist or has an
        unknown size, or `adapt` is called although they were passed.

    Example:
      >>> layer = tf.keras.layers.Normalization()
      >>> layer.adapt([[0.0, 7.0], [2.0, 9.0]])
      >>> layer([[0.0, 9.0]]).numpy()
      array([[-1.,  1.]], dtype=float32)
    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: TensorLike = None,
        variance: TensorLike = None,
        invert: bool = False,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(**kwargs)
        axis = () if axis is None else axis
        self.axis = (axis,) if isinstance(axis, int) else tuple(axis)
        if (mean is None) != (variance is None):
            raise ValueError(
                "When setting values directly, both `mean` and `variance` must be set. "
                f"Got mean: {mean} and variance: {variance}"
            )
        self.invert = invert
        self.input_mean = None if mean is None else np.asarray(mean)
        self.input_variance = None if variance is None else np.asarray(variance)
        self._running_moments: tuple[int, Any, Any] = (0, 0.0, 0.0)

    def build(self, input_shape: ShapeLike) -> None:
        """Create mean, variance and count, and check the axes."""
        sizes = TensorShape(input_shape).as_list()
        rank = len(sizes)
        if any(not -rank <= a < rank for a in self.axis):
            raise ValueError(
                f"All `axis` values must be in the range [-ndim, ndim). Found ndim: `{rank}`, axis: {self.axis}"
            )
        self._feature_axes = sorted(a % rank for a in self.axis)
        self._reduced_axes = tuple(d for d in range(rank) if d not in self._feature_axes)
        for d in self._feature_axes:
            if sizes[d] is None:
                raise ValueError(
                    f"All `axis` values to be kept must have known shape. Got axis: {self.axis}, input shape: "
                    f"{sizes}, with unknown axis at index: {d}"
                )
        self._broadcast_shape = [sizes[d] if d in self._feature_axes else 1 for d in range(rank)]
        shape = [sizes[d] for d in self._feature_axes]
        self._moments_shape = shape
        if self.input_mean is None:
            self.adapt_mean = self._add_state("mean", shape, "zeros")
            self.adapt_variance = self._add_state("variance", shape, "ones")
            self.count = self._add_state("count", (), "zeros", "int64")
        else:
            np.broadcast_to(self.input_mean, shape)
            np.broadcast_to(self.input_variance, shape)  # type: ignore[arg-type]  # Both are set.
        self.built = True

    def _add_state(
        self, name: str, shape: Sequence[int], initializer: str, dtype: str | None = None
    ) -> Variable:
        state_dtype = dtype or self.compute_dtype or settings.floatx()
        return self.add_weight(name, shape, state_dtype, initializer, trainable=False)

    @property
    def mean(self) -> TensorLike:
        """Return the mean, in a shape that broadcasts with the inputs."""
        return self._read_moment(self.input_mean, "adapt_mean")

    @property
    def variance(self) -> TensorLike:
        """Return the variance, in a shape that broadcasts with the inputs."""
        return self._read_moment(self.input_variance, "adapt_variance")

    def _read_moment(self, constant_value: np.ndarray | None, name: str) -> TensorLike:
        if not self.built:
            return constant_value
        if constant_value is not None:
            value = np.broadcast_to(constant_value, self._moments_shape)
            return constant(value, self.compute_dtype, self._broadcast_shape)
        return array.reshape(getattr(self, name), self._broadcast_shape)

    def update_state(self, data: TensorLike) -> None:
        """Include a batch in mean and variance.

        Raises:
          ValueError: If mean and variance were passed to the constructor.
          RuntimeError: If the layer is not built.
        """
        if self.input_mean is not None:
            raise ValueError(
                "Cannot `adapt` a Normalization layer that is initialized with static `mean` and `variance`, you "
                f"passed mean {self.input_mean} and variance {self.input_variance}."
            )
        if not self.built:
            raise RuntimeError("`build` must be called before `update_state`.")
        values = read_host_values(data, "data to adapt to").astype(np.float64)
        count = int(np.prod([values.shape[d] for d in self._reduced_axes], dtype=np.int64))
        if not count:
            return
        mean, variance = values.mean(self._reduced_axes), values.var(self._reduced_axes)
        old_count, old_mean, old_variance = self._running_moments
        weight = count / (old_count + count)
        new_mean = old_mean + (mean - old_mean) * weight
        new_variance = (old_variance + (old_mean - new_mean) ** 2) * (1.0 - weight)
        new_variance = new_variance + (variance + (mean - new_mean) ** 2) * weight
        self._running_moments = old_count + count, new_mean, new_variance
        self.adapt_mean.assign(new_mean)
        self.adapt_variance.assign(new_variance)
        self.count.assign(old_count + count)

    def reset_state(self) -> None:
        """Reset the learned state to mean 0 and variance 1."""
        self._running_moments = (0, 0.0, 0.0)
        if self.input_mean is None and self.built:
            self.adapt_mean.assign(np.zeros(self._moments_shape))
            self.adapt_variance.assign(np.ones(self._moments_shape))
            self.count.assign(0)

    def call(self, inputs: TensorLike) -> Tensor:
        """Normalize the inputs, in the compute dtype."""
        inputs = math.cast(inputs, self.compute_dtype or settings.floatx())
        deviation = math.maximum(math.sqrt(self.variance), settings.epsilon())
        if self.invert:
            return self.mean + inputs * deviation
        return (inputs - self.mean) / deviation

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input, which may have more dimensions than the data of `adapt`."""
        shape = TensorShape(input_shape)
        if not self.built or shape.rank is None:
            return shape
        sizes = array.broadcast_static_shape(shape, TensorShape(self._broadcast_shape)).as_list()
        for d in self._feature_axes:
            position = d - len(self._broadcast_shape)
            if sizes[position] is None:
                sizes[position] = self._broadcast_shape[d]
        return TensorShape(sizes)

    def get_config(self) -> Config:
        """Return the configuration."""
        to_list = lambda value: None if value is None else value.tolist()
        return {
            **super().get_config(),
            "axis": self.axis,
            "invert": self.invert,
            "mean": to_list(self.input_mean),
            "variance": to_list(self.input_variance),
        }
