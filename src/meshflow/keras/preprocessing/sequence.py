"""`tf.keras.preprocessing.sequence`."""

from meshflow.keras.utils.arrays import pad_sequences

__all__ = ["pad_sequences"]
