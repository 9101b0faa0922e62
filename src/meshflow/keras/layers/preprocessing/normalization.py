"""`Normalization`: inputs shifted and scaled to mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.convert import constant
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import settings
from meshflow.keras.layers.preprocessing.adapting import PreprocessingLayer, host_values
from meshflow.ops import array, math

__all__ = ["Normalization"]


class Normalization(PreprocessingLayer):
    """`(inputs - mean) / sqrt(variance)`, with the mean and variance given or learnt by `adapt`.

    Args:
      axis: dimensions that have a mean and a variance for each index, whose sizes must be known;
        None for one mean and one variance.
      mean: the mean, broadcast to the sizes along `axis`.
      variance: the variance, likewise.
      invert: whether to undo the normalization instead.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, ...), or without a batch; the sizes at `axis` are known.

    Output shape:
      The same.

    Raises:
      ValueError: when only one of mean and variance is given; for an axis that does not exist or has
        an unknown size; when `adapt` is called although they were given.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.Normalization()
      >>> layer.adapt([[0.0, 7.0], [2.0, 9.0]])
      >>> layer([[0.0, 9.0]]).numpy()
      array([[-1.,  1.]], dtype=float32)
    """

    def __init__(
        self,
        axis: Any = -1,
        mean: Any = None,
        variance: Any = None,
        invert: bool = False,
        **kwargs: Any,
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
        self._seen: tuple[int, Any, Any] = (0, 0.0, 0.0)

    def build(self, input_shape: Any) -> None:
        """Creates mean, variance and count; checks the axes."""
        sizes = TensorShape(input_shape).as_list()
        rank = len(sizes)
        if any(not -rank <= a < rank for a in self.axis):
            raise ValueError(
                f"All `axis` values must be in the range [-ndim, ndim). Found ndim: `{rank}`, axis: {self.axis}"
            )
        self._kept = sorted(a % rank for a in self.axis)
        self._reduced = tuple(d for d in range(rank) if d not in self._kept)
        for d in self._kept:
            if sizes[d] is None:
                raise ValueError(
                    f"All `axis` values to be kept must have known shape. Got axis: {self.axis}, input shape: "
                    f"{sizes}, with unknown axis at index: {d}"
                )
        self._broadcast = [sizes[d] if d in self._kept else 1 for d in range(rank)]
        shape = [sizes[d] for d in self._kept]
        self._shape = shape
        if self.input_mean is None:
            self.adapt_mean = self._state("mean", shape, "zeros")
            self.adapt_variance = self._state("variance", shape, "ones")
            self.count = self._state("count", (), "zeros", "int64")
        else:
            np.broadcast_to(self.input_mean, shape)
            np.broadcast_to(self.input_variance, shape)  # type: ignore[arg-type]  # both are given
        self.built = True

    def _state(self, name: str, shape: Any, initializer: str, dtype: Any = None) -> Any:
        kind = dtype or self.compute_dtype or settings.floatx()
        return self.add_weight(name, shape, kind, initializer, trainable=False)

    @property
    def mean(self) -> Any:
        """The mean, of a shape that broadcasts with the inputs; None before the layer is built."""
        return self._moment(self.input_mean, "adapt_mean")

    @property
    def variance(self) -> Any:
        """The variance, likewise."""
        return self._moment(self.input_variance, "adapt_variance")

    def _moment(self, given: Any, name: str) -> Any:
        if not self.built:
            return given
        if given is not None:
            value = np.broadcast_to(given, self._shape)
            return constant(value, self.compute_dtype, self._broadcast)
        return array.reshape(getattr(self, name), self._broadcast)

    def update_state(self, data: Any) -> None:
        """Includes a batch in mean and variance.

        Raises:
          ValueError: when mean and variance were given.
          RuntimeError: before the layer is built.
        """
        if self.input_mean is not None:
            raise ValueError(
                "Cannot `adapt` a Normalization layer that is initialized with static `mean` and `variance`, you "
                f"passed mean {self.input_mean} and variance {self.input_variance}."
            )
        if not self.built:
            raise RuntimeError("`build` must be called before `update_state`.")
        values = host_values(data, "data to adapt to").astype(np.float64)
        number = int(np.prod([values.shape[d] for d in self._reduced], dtype=np.int64))
        if not number:
            return
        mean, variance = values.mean(self._reduced), values.var(self._reduced)
        known, old_mean, old_variance = self._seen
        part = number / (known + number)
        both = old_mean + (mean - old_mean) * part
        spread = (old_variance + (old_mean - both) ** 2) * (1.0 - part)
        spread = spread + (variance + (mean - both) ** 2) * part
        self._seen = known + number, both, spread
        self.adapt_mean.assign(both)
        self.adapt_variance.assign(spread)
        self.count.assign(known + number)

    def reset_state(self) -> None:
        """Forgets what was learnt: mean 0, variance 1."""
        self._seen = (0, 0.0, 0.0)
        if self.input_mean is None and self.built:
            self.adapt_mean.assign(np.zeros(self._shape))
            self.adapt_variance.assign(np.ones(self._shape))
            self.count.assign(0)

    def call(self, inputs: Any) -> Any:
        """The normalized inputs, in the compute dtype."""
        inputs = math.cast(inputs, self.compute_dtype or settings.floatx())
        deviation = math.maximum(math.sqrt(self.variance), settings.epsilon())
        if self.invert:
            return self.mean + inputs * deviation
        return (inputs - self.mean) / deviation

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape, of the sizes along `axis` that were learnt."""
        sizes = TensorShape(input_shape).as_list()
        for d in getattr(self, "_kept", ()):
            sizes[d] = self._broadcast[d]
        return TensorShape(sizes)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        plain = lambda value: None if value is None else value.tolist()
        return {
            **super().get_config(),
            "axis": self.axis,
            "invert": self.invert,
            "mean": plain(self.input_mean),
            "variance": plain(self.input_variance),
        }
