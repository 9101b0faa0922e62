"""The values of what has weights, as arrays: read and set all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.variables.variable import Variable

__all__ = ["WeightValues", "set_weights"]


class WeightValues:
    """`get_weights` and `set_weights` of layers and metrics, which have a name and weights."""

    if TYPE_CHECKING:
        # What layers and metrics give it.
        @property
        def name(self) -> str: ...
        @property
        def weights(self) -> list[Variable]: ...

    def get_weights(self) -> list[np.ndarray]:
        """Values of all weights as NumPy arrays, in the order of `weights`.

        Example:
          >>> import meshflow as tf
          >>> layer = tf.keras.layers.Dense(2, kernel_initializer="ones")
          >>> layer.build([None, 1])
          >>> [weight.tolist() for weight in layer.get_weights()]
          [[[1.0, 1.0]], [0.0, 0.0]]
        """
        return [np.asarray(w.numpy()) for w in self.weights]

    def set_weights(self, weights: list[Any]) -> None:
        """Sets all weights.

        Args:
          weights: arrays in the order and with the shapes of `get_weights()`.

        Raises:
          ValueError: when number or shapes differ, naming the layer or metric and the weight.

        Example:
          >>> import meshflow as tf
          >>> layer = tf.keras.layers.Dense(2)
          >>> layer.build([None, 1])
          >>> layer.set_weights([[[3.0, 4.0]], [0.0, 1.0]])
          >>> layer(tf.constant([[10.0]])).numpy().tolist()
          [[30.0, 41.0]]
        """
        set_weights(self.name, self.weights, weights)


def set_weights(name: str, own: Sequence[Variable], weights: Sequence[Any]) -> None:
    """Sets some weights of a layer or metric.

    Args:
      name: the layer's or metric's, for errors.
      own: the weights.
      weights: as many arrays of their shapes.

    Raises:
      ValueError: when number or shapes differ, naming the layer and the weight.
    """
    if len(own) != len(weights):
        raise ValueError(
            f'You called `set_weights(weights)` on layer "{name}" with a weight list of length '
            f"{len(weights)}, but the layer was expecting {len(own)} weights."
        )
    for variable, value in zip(own, weights, strict=True):
        if not variable.shape.is_compatible_with(np.shape(value)):
            raise ValueError(
                f'Layer "{name}" weight {variable.name} has shape {tuple(variable.shape)}, which is not '
                f"compatible with provided weight shape {tuple(np.shape(value))}."
            )
    for variable, value in zip(own, weights, strict=True):
        variable.assign(np.asarray(value).astype(variable.dtype.dtype))
