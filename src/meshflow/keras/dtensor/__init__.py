"""`tf.keras.dtensor`: layouts for the weights of layers."""

from meshflow.keras.dtensor import experimental

__all__ = ["experimental"]
