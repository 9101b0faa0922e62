"""`tf.keras.utils.legacy`: configurations in the format up to Keras 2.12."""

from __future__ import annotations

from meshflow.environment.types import Config, Json
from meshflow.keras import registry, serialization
from meshflow.keras.registry import CustomObjects

__all__ = ["deserialize_keras_object", "serialize_keras_object"]


def deserialize_keras_object(
    identifier: object,
    module_objects: CustomObjects = None,
    custom_objects: CustomObjects = None,
    printable_module_name: str = "object",
) -> Json:
    """Create the object that `serialize_keras_object` described.

    Args:
      identifier: Configuration or name.
      module_objects: Classes and functions by name, by default everything in `tf.keras`.
      custom_objects: Additional classes and functions by name.
      printable_module_name: Noun for the object in error messages.

    Example:
      >>> config = {"class_name": "L2", "config": {"l2": 0.5}}
      >>> tf.keras.utils.legacy.deserialize_keras_object(config).l2
      0.5
    """
    return serialization.deserialize_keras_object(
        identifier,
        custom_objects,
        module_objects=module_objects,
        printable_module_name=printable_module_name,
    )


def serialize_keras_object(instance: object) -> Config | str | None:
    """Convert an object to `{'class_name', 'config'}`, or a function to its name.

    Args:
      instance: An object with `get_config`, a function or class, or None.

    Raises:
      ValueError: For another object.

    Example:
      >>> tf.keras.utils.legacy.serialize_keras_object(tf.keras.regularizers.L2(0.5))
      {'class_name': 'L2', 'config': {'l2': 0.5}}
    """
    if instance is None:
        return None
    if hasattr(instance, "get_config") and not isinstance(instance, type):
        config = serialization.serialize_keras_object(instance.get_config())
        name = registry.get_registered_name(type(instance))
        return {"class_name": name, "config": serialization.to_legacy_config(config)}
    if hasattr(instance, "__name__"):
        return registry.get_registered_name(instance)
    raise ValueError(
        f"Cannot serialize {instance!r}: it is not a function and has no `get_config()` method."
    )
