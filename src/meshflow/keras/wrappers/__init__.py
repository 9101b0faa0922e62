"""`tf.keras.wrappers`: models in the dress of other libraries."""

from meshflow.keras.wrappers import scikit_learn

__all__ = ["scikit_learn"]
