"""`Stage`: where a stage of a pipeline begins."""

from __future__ import annotations

from meshflow.keras.layers.core import Identity

__all__ = ["Stage"]


class Stage(Identity):
    """Begins a stage of a pipeline; elsewhere it passes its input on.

    With these layers in a model a `tf.distribute.MeshStrategy(pipeline=...)` cuts it where they are, in place of
    sharing out the layers by what they cost.

    Args:
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> layers = tf.keras.layers
      >>> model = tf.keras.Sequential([layers.Dense(4), layers.Stage(), layers.Dense(2)])
      >>> model(tf.ones([1, 3])).shape
      TensorShape([1, 2])
    """

    begins_stage = True
