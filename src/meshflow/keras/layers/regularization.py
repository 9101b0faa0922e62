"""Layers that add noise during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random_streams import SeedStream
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.literals import DataFormat
from meshflow.ops import array, math
from meshflow.ops import random as random_ops
from meshflow.ops.control_flow import cond
from meshflow.ops.nn.activation import apply_dropout, count_dropout_counters

__all__ = [
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
]


class RandomLayer(Layer):
    """Base class of layers with a stream of random keys; its state is not a weight."""

    def __init__(self, seed: int | None = None, **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self._stream = SeedStream(seed)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def call(self, inputs: Tensor, training: Any = None) -> Tensor:
        """Add noise in training mode; return the inputs otherwise."""
        if isinstance(training, Tensor):
            return cond(training, lambda: self.add_noise(inputs), lambda: array.identity(inputs))
        return self.add_noise(inputs) if training else inputs

    def _draw_normal(self, inputs: Tensor, mean: float, deviation: float) -> Tensor:
        """Draw normally distributed values with the shape and dtype of the inputs."""
        dtype = inputs.dtype
        counts = random_ops.count_counters(*inputs.shape)
        key = self._stream.draw_op_key(counts, f"normal {dtype.name}")
        return random_ops.draw_normal(key, inputs.shape, mean, deviation, dtype)

    def add_noise(self, inputs: Tensor) -> Tensor:
        """Add noise to the inputs; subclasses define this method."""
        raise NotImplementedError


def _check_rate(rate: object) -> None:
    if isinstance(rate, (int, float)) and not 0 <= rate <= 1:
        raise ValueError(
            f"Invalid value {rate} received for `rate`, expected a value between 0 and 1."
        )


class Dropout(RandomLayer):
    """Layer that sets a random fraction of inputs to 0 in training, and scales the others up.

    Args:
      rate: Fraction of inputs to drop.
      noise_shape: Shape of the mask; inputs along an axis of size 1 are dropped together.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> dropped = tf.keras.layers.Dropout(0.5)(tf.ones([100]), training=True)
      >>> sorted(set(dropped.numpy().tolist()))
      [0.0, 2.0]
    """

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        _check_rate(rate)
        super().__init__(seed, **kwargs)
        self.rate, self.noise_shape = rate, noise_shape

    def add_noise(self, inputs: Tensor) -> Tensor:
        """Apply dropout to the inputs."""
        if not self.rate:
            return inputs
        if self.rate >= 1:
            return array.zeros_like(inputs)
        noise_shape = self._get_noise_shape(inputs)
        key = self._stream.draw_op_key(
            count_dropout_counters(inputs, noise_shape), f"uniform {inputs.dtype.name}"
        )
        return apply_dropout(inputs, key, self.rate, noise_shape)

    def _get_noise_shape(self, inputs: Tensor) -> Sequence[int | None] | None:
        return self.noise_shape

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "rate": self.rate,
            "noise_shape": self.noise_shape,
            "seed": self.seed,
        }


class _SpatialDropout(Dropout):
    """Base class of layers that drop entire channels."""

    rank = 1

    def __init__(
        self,
        rate: float,
        data_format: DataFormat | None = None,
        seed: int | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(rate, seed=seed, **kwargs)
        self.data_format = settings.normalize_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def _get_noise_shape(self, inputs: Tensor) -> Sequence[int | None] | None:
        ones = (1,) * self.rank
        return (None, None, *ones) if self.data_format == "channels_first" else (None, *ones, None)

    def get_config(self) -> Config:
        """Return the configuration."""
        config = super().get_config()
        # Keras configurations have no data_format; only one that differs from the default is
        # stored.
        if self.rank > 1 and self.data_format != settings.image_data_format():
            config["data_format"] = self.data_format
        return config


class SpatialDropout1D(_SpatialDropout):
    """Dropout of entire channels of sequences.

    Args:
      rate: Fraction of channels to drop.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, channels).

    Output shape:
      The shape of the input.

    Example:
      >>> dropped = tf.keras.layers.SpatialDropout1D(0.5)(tf.ones([1, 3, 20]), training=True)
      >>> all(len(set(channel)) == 1 for channel in dropped.numpy()[0].T.tolist())
      True
    """

    def __init__(
        self, rate: float, seed: int | None = None, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(rate, "channels_last", seed, **kwargs)


class SpatialDropout2D(_SpatialDropout):
    """Dropout of entire channels of images.

    Args:
      rate: Fraction of channels to drop.
      data_format: 'channels_last' or 'channels_first'.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels). With 'channels_first' the channels are the second axis.

    Output shape:
      The shape of the input.

    Example:
      >>> dropped = tf.keras.layers.SpatialDropout2D(0.5)(tf.ones([1, 2, 2, 20]), training=True)
      >>> sorted(set(tf.reduce_sum(dropped, [1, 2]).numpy()[0].tolist()))
      [0.0, 8.0]
    """

    rank = 2


class SpatialDropout3D(_SpatialDropout):
    """Dropout of entire channels of volumes.

    Args:
      rate: Fraction of channels to drop.
      data_format: 'channels_last' or 'channels_first'.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels). With 'channels_first' the channels are the second
      axis.

    Output shape:
      The shape of the input.

    Example:
      >>> dropped = tf.keras.layers.SpatialDropout3D(0.5)(tf.ones([1, 2, 2, 2, 20]), training=True)
      >>> sorted(set(tf.reduce_sum(dropped, [1, 2, 3]).numpy()[0].tolist()))
      [0.0, 16.0]
    """

    rank = 3


class GaussianNoise(RandomLayer):
    """Layer that adds normally distributed noise in training.

    Args:
      stddev: Standard deviation of the noise.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> layer = tf.keras.layers.GaussianNoise(0.1)
      >>> layer(tf.constant([1.0, 2.0])).numpy().tolist()
      [1.0, 2.0]
      >>> (layer(tf.constant([1.0, 2.0]), training=True) == [1.0, 2.0]).numpy().tolist()
      [False, False]
    """

    def __init__(
        self, stddev: float, seed: int | None = None, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(seed, **kwargs)
        self.stddev = stddev

    def add_noise(self, inputs: Tensor) -> Tensor:
        """Add noise to the inputs."""
        return inputs + self._draw_normal(inputs, 0.0, float(self.stddev))

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "stddev": self.stddev, "seed": self.seed}


class GaussianDropout(RandomLayer):
    """Layer that multiplies by normally distributed noise with mean 1 in training.

    Args:
      rate: Dropout rate that has the same variance.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> x = tf.constant([0.0, 3.0])
      >>> noisy = tf.keras.layers.GaussianDropout(0.5)(x, training=True)
      >>> (noisy == x).numpy().tolist()
      [True, False]
    """

    def __init__(
        self, rate: float, seed: int | None = None, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        _check_rate(rate)
        super().__init__(seed, **kwargs)
        self.rate = rate

    def add_noise(self, inputs: Tensor) -> Tensor:
        """Add noise to the inputs."""
        deviation = (self.rate / (1.0 - self.rate)) ** 0.5
        return inputs * self._draw_normal(inputs, 1.0, deviation)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


class AlphaDropout(Dropout):
    """Dropout that preserves mean and variance of SELU activations (arXiv:1706.02515).

    Args:
      rate: Fraction of inputs to drop.
      noise_shape: Shape of the mask; inputs along an axis of size 1 are dropped together.
      seed: Random seed.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> x = tf.constant([1.0, 2.0])
      >>> tf.keras.layers.AlphaDropout(0.5)(x, training=False).numpy().tolist()
      [1.0, 2.0]
    """

    def add_noise(self, inputs: Tensor) -> Tensor:
        """Apply dropout to the inputs."""
        dropped_value = -1.7580993408473766
        shape = inputs.shape if self.noise_shape is None else self.noise_shape
        key = self._stream.draw_op_key(random_ops.count_counters(*shape), "uniform float32")
        mask = random_ops.draw_uniform(key, shape, 0.0, 1.0, "float32") >= float(self.rate)
        mask = math.cast(mask, inputs.dtype)
        scale = ((1 - self.rate) * (1 + self.rate * dropped_value**2)) ** -0.5
        return (
            scale * (inputs * mask + dropped_value * (1.0 - mask))
            - scale * dropped_value * self.rate
        )

    def get_config(self) -> Config:
        """Return the configuration; as in Keras, it contains `noise_shape` only if it was passed."""
        config = super().get_config()
        if config["noise_shape"] is None:
            config.pop("noise_shape")
        return config
