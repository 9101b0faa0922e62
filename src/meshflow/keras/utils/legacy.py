"""`tf.keras.utils.legacy`: configurations in the format up to Keras 2.12."""

from __future__ import annotations

from meshflow.environment.types import Config
from meshflow.keras import registry, serialization
from meshflow.keras.serialization import deserialize_keras_object

__all__ = ["deserialize_keras_object", "serialize_keras_object"]


def serialize_keras_object(instance: object) -> Config | str | None:
    """Convert an object to `{'class_name', 'config'}`, or a function to its name.

    Args:
      instance: An object with `get_config`, a function or class, or None.

    Raises:
      ValueError: For another object.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.utils.legacy.serialize_keras_object(tf.keras.regularizers.L2(0.5))
      {'class_name': 'L2', 'config': {'l2': 0.5}}
    """
    if instance is None:
        return None
    if hasattr(instance, "get_config") and not isinstance(instance, type):
        config = serialization.serialize_keras_object(instance.get_config())
        name = registry.get_registered_name(type(instance))
        return {"class_name": name, "config": serialization.without_modules(config)}
    if hasattr(instance, "__name__"):
        return registry.get_registered_name(instance)
    raise ValueError(
        f"Cannot serialize {instance!r}: it is not a function and has no `get_config()` method."
    )
