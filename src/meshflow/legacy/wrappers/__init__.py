"""`tf.keras.wrappers`: adapters of models to other libraries."""

from meshflow.legacy.wrappers import scikit_learn

__all__ = ["scikit_learn"]
