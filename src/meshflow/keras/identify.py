"""Looking things up by name: 'relu', 'adam', {'class_name': ..., 'config': ...}, classes, objects."""

from __future__ import annotations

import re
from typing import Any

_custom: dict[str, Any] = {}
_names: dict[Any, str] = {}


def get_custom_objects() -> dict[str, Any]:
    """The dictionary of registered custom objects; changing it registers more.

    Example:
      >>> import meshflow as tf
      >>> "Doubled" in tf.keras.saving.get_custom_objects()
      False
      >>> tf.keras.saving.get_custom_objects()["Doubled"] = lambda x: 2 * x
      >>> tf.keras.activations.get("Doubled")(3)
      6
      >>> del tf.keras.saving.get_custom_objects()["Doubled"]
    """
    return _custom


class custom_object_scope:
    """Makes custom classes and functions known by name inside a `with` block.

    Args:
      objects: dictionary from name to class or function.

    Example:
      >>> import meshflow as tf
      >>> with tf.keras.utils.custom_object_scope({"twice": lambda x: 2 * x}):
      ...     layer = tf.keras.layers.Activation("twice")
    """

    def __init__(self, *args: dict[str, Any]) -> None:
        self._objects = args
        self._saved: dict[str, Any] = {}

    def __enter__(self) -> custom_object_scope:
        self._saved = dict(_custom)
        for objects in self._objects:
            _custom.update(objects)
        return self

    def __exit__(self, *_: object) -> None:
        _custom.clear()
        _custom.update(self._saved)


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Any:
    """Decorator that makes a class or function known by name when models are loaded.

    Args:
      package: prefix of the name.
      name: default the class's or function's own.

    Returns:
      A decorator.

    Raises:
      ValueError: for a class without `get_config`.

    Example:
      >>> import meshflow as tf
      >>> @tf.keras.saving.register_keras_serializable(package="zoo")
      ... class Penguin(tf.keras.layers.Layer):
      ...     pass
      >>> tf.keras.saving.get_registered_name(Penguin)
      'zoo>Penguin'
    """

    def decorate(target: Any) -> Any:
        if isinstance(target, type) and not hasattr(target, "get_config"):
            raise ValueError("Cannot register a class that does not have a get_config() method.")
        full = f"{package}>{name or target.__name__}"
        _custom[full] = target
        _names[target] = full
        return target

    return decorate


def get_registered_name(obj: Any) -> str:
    """The name a class or function was registered under, else its own.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.saving.get_registered_name(tf.keras.layers.Dense)
      'Dense'
    """
    return _names.get(obj, getattr(obj, "__name__", str(obj)))


def get_registered_object(name: str, custom_objects: Any = None, module_objects: Any = None) -> Any:
    """The class or function with a name, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.saving.get_registered_object("Length", custom_objects={"Length": len})("abc")
      3
    """
    for source in (custom_objects, _custom, module_objects):
        if source and name in source:
            return source[name]
    return None


def snake_case(name: str) -> str:
    """`MeanSquaredError` -> `mean_squared_error`."""
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()


def lookup(identifier: Any, known: dict[str, Any], what: str, custom_objects: Any = None) -> Any:
    """What an identifier means.

    Args:
      identifier: a name, a configuration, a class, an object or a function; None gives None.
      known: classes and functions by name.
      what: the kind of thing, for the error.
      custom_objects: further names.

    Returns:
      An instance for names of classes and configurations; functions and objects as they are.

    Raises:
      ValueError: for an unknown name; close ones are listed.
    """
    if identifier is None:
        return None
    if isinstance(identifier, dict):
        name, config = identifier["class_name"], identifier.get("config", {})
        found = _find(identifier.get("registered_name") or name, known, custom_objects)
        if found is None:
            found = _find(name, known, custom_objects)
        if found is None:
            raise _unknown(name, known, what)
        if isinstance(found, type):
            return _from_config(found, config, custom_objects)
        return found
    if isinstance(identifier, str):
        found = _find(identifier, known, custom_objects)
        if found is None:
            raise _unknown(identifier, known, what)
        return found() if isinstance(found, type) else found
    if isinstance(identifier, type):
        return identifier()
    if callable(identifier):
        return identifier
    raise ValueError(f"Could not interpret {what} identifier: {identifier!r}")


def _from_config(cls: Any, config: dict[str, Any], custom_objects: Any) -> Any:
    import inspect

    if "custom_objects" in inspect.signature(cls.from_config).parameters:
        return cls.from_config(config, custom_objects=custom_objects)
    # What the configuration names in turn is found among them, too.
    with custom_object_scope(custom_objects or {}):
        return cls.from_config(config)


def _find(name: str, known: dict[str, Any], custom_objects: Any) -> Any:
    found = get_registered_object(name, custom_objects, known)
    return found if found is not None else known.get(name.lower())


def _unknown(name: str, known: dict[str, Any], what: str) -> ValueError:
    import difflib

    close = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    hint = (
        f" Did you mean {' or '.join(map(repr, close))}?"
        if close
        else f" Known are {sorted(known)}."
    )
    return ValueError(
        f"Unknown {what}: {name!r}. Please ensure you are using a `keras.utils.custom_object_scope` and that this "
        f"object is included in the scope.{hint}"
    )


def serialize(obj: Any) -> Any:
    """A configuration, or the name of a function."""
    if obj is None or isinstance(obj, (str, dict)):
        return obj
    if hasattr(obj, "get_config"):
        cls = type(obj)
        config = {"class_name": cls.__name__, "config": obj.get_config()}
        name = get_registered_name(cls)
        return config | ({"registered_name": name} if name != cls.__name__ else {})
    return get_registered_name(obj)


def serialize_keras_object(obj: Any) -> Any:
    """The configuration of a layer, loss, optimizer or the like, or the name of a function.

    Args:
      obj: anything with `get_config`, or a function.

    Returns:
      `{'class_name': ..., 'config': ...}`, or a name.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.utils.serialize_keras_object(tf.keras.regularizers.L2(0.5))
      >>> config["class_name"], config["config"]
      ('L2', {'l2': 0.5})
    """
    return serialize(obj)


def deserialize_keras_object(
    identifier: Any,
    module_objects: dict[str, Any] | None = None,
    custom_objects: Any = None,
    printable_module_name: str = "object",
) -> Any:
    """The object that `serialize_keras_object` described.

    Args:
      identifier: a configuration or a name.
      module_objects: classes and functions by name; default everything in `tf.keras`.
      custom_objects: further classes and functions by name.
      printable_module_name: what the thing is called in errors.

    Raises:
      ValueError: for an unknown name.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.saving.serialize_keras_object(tf.keras.layers.Dense(3))
      >>> tf.keras.saving.deserialize_keras_object(config).units
      3
    """
    known = _everything() if module_objects is None else module_objects
    return lookup(identifier, known, printable_module_name, custom_objects)


def _everything() -> dict[str, Any]:
    """Classes and functions of all parts of Keras by name."""
    from meshflow import keras

    parts: Any = (
        *(keras.activations, keras.constraints, keras.initializers, keras.regularizers),
        *(keras.optimizers.schedules, keras.optimizers, keras.metrics, keras.losses, keras.layers),
        keras.models,
    )
    return {name: getattr(part, name) for part in parts for name in part.__all__}


def name_table(*classes: Any, **aliases: Any) -> dict[str, Any]:
    """Names for `lookup`: each class or function by its own name and in snake case, and aliases."""
    table: dict[str, Any] = {}
    for item in classes:
        table[item.__name__] = item
        table.setdefault(snake_case(item.__name__), item)
        table.setdefault(item.__name__.lower(), item)
    return table | aliases
