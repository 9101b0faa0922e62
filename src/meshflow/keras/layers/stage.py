"""`Stage`: the boundary of a pipeline stage in a model."""

from __future__ import annotations

from meshflow.keras.layers.core import Identity

__all__ = ["Stage"]


class Stage(Identity):
    """Identity layer that starts a new stage of a pipeline.

    `tf.distribute.MeshStrategy(pipeline=...)` splits a model at these layers. Without them, it
    splits the layers by their cost.

    Args:
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape.

    Example:
      >>> layers = tf.keras.layers
      >>> model = tf.keras.Sequential([layers.Dense(4), layers.Stage(), layers.Dense(2)])
      >>> model(tf.ones([1, 3])).shape
      TensorShape([1, 2])
    """

    begins_stage = True
