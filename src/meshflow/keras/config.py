"""`tf.keras.config`: settings that Keras 3 added."""

from meshflow.keras.safe_mode import enable_unsafe_deserialization

__all__ = ["enable_unsafe_deserialization"]
