"""Reading and setting all weights of a layer or metric as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import ArrayLike
from meshflow.files.arrays import cast_weight


class WeightValues:
    """Mixin with `get_weights` and `set_weights` for layers and metrics."""

    if TYPE_CHECKING:
        # Layers and metrics implement these properties.
        @property
        def name(self) -> str:
            """Return the name."""
            ...

        @property
        def weights(self) -> list[Variable]:
            """Return the variables."""
            ...

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of all weights as NumPy arrays, in the order of `weights`.

        Example:
          >>> layer = tf.keras.layers.Dense(2, kernel_initializer="ones")
          >>> layer.build([None, 1])
          >>> [weight.tolist() for weight in layer.get_weights()]
          [[[1.0, 1.0]], [0.0, 0.0]]
        """
        return [np.asarray(w.numpy()) for w in self.weights]

    @run_outside_of_graphs
    def set_weights(self, weights: list[Any]) -> None:
        """Set the values of all weights.

        Args:
          weights: Arrays in the order and with the shapes of `get_weights()`.

        Raises:
          ValueError: If the number of arrays or a shape differs; the message names the object and
            the weight.

        Example:
          >>> layer = tf.keras.layers.Dense(2)
          >>> layer.build([None, 1])
          >>> layer.set_weights([[[3.0, 4.0]], [0.0, 1.0]])
          >>> layer(tf.constant([[10.0]])).numpy().tolist()
          [[30.0, 41.0]]
        """
        set_weights(self.name, self.weights, weights)


def set_weights(name: str, variables: Sequence[Variable], weights: Sequence[ArrayLike]) -> None:
    """Set the values of variables of a layer or metric.

    Args:
      name: Name of the layer or metric, for error messages.
      variables: The variables.
      weights: An array for each variable, of its shape.

    Raises:
      ValueError: If the number of arrays or a shape differs; the message names the layer and the
        weight.
    """
    if len(variables) != len(weights):
        raise ValueError(
            f'You called `set_weights(weights)` on layer "{name}" with a weight list of length '
            f"{len(weights)}, but the layer was expecting {len(variables)} weights."
        )
    for variable, value in zip(variables, weights, strict=True):
        if not variable.shape.is_compatible_with(np.shape(value)):
            raise ValueError(
                f'Layer "{name}" weight {variable.name} has shape {tuple(variable.shape)}, which is not '
                f"compatible with provided weight shape {tuple(np.shape(value))}."
            )
    for variable, value in zip(variables, weights, strict=True):
        label = f'Layer "{name}" weight {variable.name}'
        variable.assign(cast_weight(np.asarray(value), variable.dtype.dtype, label))
