"""`tf.keras.utils.legacy`: configurations as they were until Keras 2.12."""

from __future__ import annotations

from typing import Any

from meshflow.keras import registry, serialization
from meshflow.keras.serialization import deserialize_keras_object

__all__ = ["deserialize_keras_object", "serialize_keras_object"]


def serialize_keras_object(instance: Any) -> dict[str, Any] | str | None:
    """What an object is, as `{'class_name', 'config'}`, or the name of a function.

    Args:
      instance: anything with `get_config`, a function or class, or None.

    Raises:
      ValueError: for anything else.

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
        f"Cannot serialize {instance!r}: it is no function and has no `get_config()` method."
    )
