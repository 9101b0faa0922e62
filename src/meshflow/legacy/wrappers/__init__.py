"""`tf.keras.wrappers`: models in the dress of other libraries."""

from meshflow.legacy.wrappers import scikit_learn

__all__ = ["scikit_learn"]
