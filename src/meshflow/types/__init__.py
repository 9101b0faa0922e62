"""`tf.types`: types for annotations."""

from meshflow.types import experimental as experimental

__all__ = ["experimental"]
