"""Layers that add noise during training."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import SeedStream
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.ops import array, math
from meshflow.ops import random as random_ops
from meshflow.ops.control_flow import cond
from meshflow.ops.nn.activation import dropout_counts, dropout_from_key

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
    """A layer with a stream of random keys; its state is not a weight."""

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self._stream = SeedStream(seed)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Noise in training, the input otherwise."""
        if isinstance(training, Tensor):
            return cond(training, lambda: self.noisy(inputs), lambda: array.identity(inputs))
        return self.noisy(inputs) if training else inputs

    def _normal(self, inputs: Any, mean: float, deviation: float) -> Any:
        """Normal numbers for all of the input."""
        dtype = inputs.dtype
        used = random_ops.counts_of(*inputs.shape)
        key = self._stream.op_key(used, f"normal {dtype.name}")
        return random_ops.normal_from_key(key, inputs.shape, mean, deviation, dtype)

    def noisy(self, inputs: Any) -> Any:
        """The input with noise."""
        raise NotImplementedError


def _check_rate(rate: Any) -> None:
    if isinstance(rate, (int, float)) and not 0 <= rate <= 1:
        raise ValueError(
            f"Invalid value {rate} received for `rate`, expected a value between 0 and 1."
        )


class Dropout(RandomLayer):
    """Sets a random fraction of inputs to 0 in training, and scales up the rest.

    Args:
      rate: the fraction.
      noise_shape: shape of the mask; sizes of 1 share a decision.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> dropped = tf.keras.layers.Dropout(0.5)(tf.ones([100]), training=True)
      >>> sorted(set(dropped.numpy().tolist()))
      [0.0, 2.0]
    """

    def __init__(
        self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any
    ) -> None:
        _check_rate(rate)
        super().__init__(seed, **kwargs)
        self.rate, self.noise_shape = rate, noise_shape

    def noisy(self, inputs: Any) -> Any:
        """The input with dropout."""
        if not self.rate:
            return inputs
        if self.rate >= 1:
            return array.zeros_like(inputs)
        noise_shape = self._noise_shape(inputs)
        key = self._stream.op_key(
            dropout_counts(inputs, noise_shape), f"uniform {inputs.dtype.name}"
        )
        return dropout_from_key(inputs, key, self.rate, noise_shape)

    def _noise_shape(self, inputs: Any) -> Any:
        return self.noise_shape

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "rate": self.rate,
            "noise_shape": self.noise_shape,
            "seed": self.seed,
        }


class _SpatialDropout(Dropout):
    rank = 1

    def __init__(
        self, rate: float, data_format: str | None = None, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(rate, seed=seed, **kwargs)
        self.data_format = settings.standard_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def _noise_shape(self, inputs: Any) -> Any:
        ones = (1,) * self.rank
        return (None, None, *ones) if self.data_format == "channels_first" else (None, *ones, None)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = super().get_config()
        # Keras' configurations have no data_format; one that is not the usual is kept.
        if self.rank > 1 and self.data_format != settings.image_data_format():
            config["data_format"] = self.data_format
        return config


class SpatialDropout1D(_SpatialDropout):
    """Dropout of whole channels of sequences.

    Args:
      rate: the fraction.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, steps, channels).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> dropped = tf.keras.layers.SpatialDropout1D(0.5)(tf.ones([1, 3, 20]), training=True)
      >>> all(len(set(channel)) == 1 for channel in dropped.numpy()[0].T.tolist())
      True
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(rate, "channels_last", seed, **kwargs)


class SpatialDropout2D(_SpatialDropout):
    """Dropout of whole channels of images.

    Args:
      rate: the fraction.
      data_format: 'channels_last' or 'channels_first'.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels). With 'channels_first' the channels come second.

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> dropped = tf.keras.layers.SpatialDropout2D(0.5)(tf.ones([1, 2, 2, 20]), training=True)
      >>> sorted(set(tf.reduce_sum(dropped, [1, 2]).numpy()[0].tolist()))
      [0.0, 8.0]
    """

    rank = 2


class SpatialDropout3D(_SpatialDropout):
    """Dropout of whole channels of volumes.

    Args:
      rate: the fraction.
      data_format: 'channels_last' or 'channels_first'.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, depth, height, width, channels). With 'channels_first' the channels come second.

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> dropped = tf.keras.layers.SpatialDropout3D(0.5)(tf.ones([1, 2, 2, 2, 20]), training=True)
      >>> sorted(set(tf.reduce_sum(dropped, [1, 2, 3]).numpy()[0].tolist()))
      [0.0, 16.0]
    """

    rank = 3


class GaussianNoise(RandomLayer):
    """Adds normal noise in training.

    Args:
      stddev: its standard deviation.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.GaussianNoise(0.1)
      >>> layer(tf.constant([1.0, 2.0])).numpy().tolist()
      [1.0, 2.0]
      >>> (layer(tf.constant([1.0, 2.0]), training=True) == [1.0, 2.0]).numpy().tolist()
      [False, False]
    """

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.stddev = stddev

    def noisy(self, inputs: Any) -> Any:
        """The input with noise."""
        return inputs + self._normal(inputs, 0.0, float(self.stddev))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "stddev": self.stddev, "seed": self.seed}


class GaussianDropout(RandomLayer):
    """Multiplies by normal noise around 1 in training.

    Args:
      rate: the drop rate with the same variance.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([0.0, 3.0])
      >>> noisy = tf.keras.layers.GaussianDropout(0.5)(x, training=True)
      >>> (noisy == x).numpy().tolist()
      [True, False]
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        _check_rate(rate)
        super().__init__(seed, **kwargs)
        self.rate = rate

    def noisy(self, inputs: Any) -> Any:
        """The input with noise."""
        deviation = (self.rate / (1.0 - self.rate)) ** 0.5
        return inputs * self._normal(inputs, 1.0, deviation)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


class AlphaDropout(Dropout):
    """Dropout that keeps mean and variance of SELU activations (arXiv:1706.02515).

    Args:
      rate: the fraction.
      noise_shape: shape of the mask; sizes of 1 share a decision.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([1.0, 2.0])
      >>> tf.keras.layers.AlphaDropout(0.5)(x, training=False).numpy().tolist()
      [1.0, 2.0]
    """

    def noisy(self, inputs: Any) -> Any:
        """The input with dropout."""
        low = -1.7580993408473766
        shape = inputs.shape if self.noise_shape is None else self.noise_shape
        key = self._stream.op_key(random_ops.counts_of(*shape), "uniform float32")
        kept = random_ops.uniform_from_key(key, shape, 0.0, 1.0, "float32") >= float(self.rate)
        kept = math.cast(kept, inputs.dtype)
        a = ((1 - self.rate) * (1 + self.rate * low**2)) ** -0.5
        return a * (inputs * kept + low * (1.0 - kept)) - a * low * self.rate

    def get_config(self) -> dict[str, Any]:
        """The configuration; as Keras', without a `noise_shape` that was not given."""
        config = super().get_config()
        if config["noise_shape"] is None:
            config.pop("noise_shape")
        return config
