"""Conversion of objects to plain data and back, in the format of Keras 2.13 and later.

The format is `{'module', 'class_name', 'config', 'registered_name'}`.
"""

from __future__ import annotations

import contextlib
import contextvars
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import is_tensor
from meshflow.environment.types import Config, Json
from meshflow.keras import function_code
from meshflow.keras.registry import (
    OBJECT_MARK,
    CustomObjects,
    ObjectRegistry,
    collect_objects,
    find_registry,
    get_public_module,
    get_registered_name,
    get_registered_object,
    is_overridden,
)
from meshflow.keras.safe_mode import BoundCode, is_in_safe_mode
from meshflow.keras.safe_mode import safe_mode_scope as safe_mode_scope

_marks_objects: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "marks_objects", default=False
)


@contextlib.contextmanager
def mark_objects() -> Iterator[None]:
    """Mark the objects in the result of `get_config`, so that `from_config` receives objects, as for files of Keras 2."""
    token = _marks_objects.set(True)
    try:
        yield
    finally:
        _marks_objects.reset(token)


def serialize(obj: object, use_legacy_format: bool = False) -> Json:
    """Serialize an object in the current or the legacy format.

    Args:
      obj: The object.
      use_legacy_format: Whether to use the format up to Keras 2.12: `{'class_name', 'config'}`, and
        names for functions.
    """
    return serialize_legacy(obj) if use_legacy_format else serialize_keras_object(obj)


def serialize_keras_object(
    obj: object,
) -> Config | list[Any] | tuple[Any, ...] | str | float | None:
    """Convert a Keras object, a function, or a structure with such values to plain data.

    Args:
      obj: An object with `get_config`, a function, number, string, array, dtype or shape, or a
        list, tuple or dictionary of these.

    Returns:
      `{'module': ..., 'class_name': ..., 'config': ..., 'registered_name': ...}`, with
      `build_config` and `compile_config` for built and compiled objects; plain values unchanged.

    Raises:
      TypeError: If an object has no `get_config`.

    Example:
      >>> tf.keras.utils.serialize_keras_object(tf.keras.regularizers.L2(0.5))
      {'module': 'keras.regularizers', 'class_name': 'L2', 'config': {'l2': 0.5}, 'registered_name': None}
    """
    if obj is None or isinstance(obj, (str, bool, int, float, BoundCode)):
        # NumPy's float64 is a subclass of float.
        return obj.item() if isinstance(obj, np.generic) else obj
    if isinstance(obj, (list, tuple)):
        parts = [serialize_keras_object(part) for part in obj]
        return tuple(parts) if isinstance(obj, tuple) else parts
    if isinstance(obj, dict):
        return {key: serialize_keras_object(value) for key, value in obj.items()}
    if _is_object(obj):
        return _serialize_instance(obj)
    if callable(obj) and hasattr(obj, "__name__"):
        return _serialize_function(obj)
    return _serialize_value(obj)


def _serialize_instance(obj: Any) -> Config:
    config = obj.get_config()
    if not isinstance(config, dict):
        raise TypeError(
            f"get_config() of {obj!r} should return a dictionary, it returned {config!r}."
        )
    cls = type(obj)
    module = get_public_module(cls)
    result: Config = {
        "module": module,
        "class_name": cls.__name__,
        "config": {key: _serialize_entry(value) for key, value in config.items()},
        "registered_name": None
        if module and not module.startswith("keras.src.")
        else get_registered_name(cls),
    }
    for entry in ("build_config", "compile_config"):
        get = getattr(obj, f"get_{entry}", None)
        value = get() if get is not None else None
        if value is not None:
            result[entry] = serialize_keras_object(value)
    return result


def _serialize_entry(value: object) -> Json:
    serialized: Any = serialize_keras_object(value)
    is_marked = _marks_objects.get() and _is_object(value)
    return serialized | {OBJECT_MARK: True} if is_marked else serialized


def _is_object(value: object) -> bool:
    return hasattr(value, "get_config") and not isinstance(value, type)


def _serialize_function(obj: Any) -> Config:
    if getattr(obj, "__name__", "") == "<lambda>":
        warnings.warn(
            "A lambda function is saved as its byte code, which is loaded with `safe_mode=False` only: define a named function.",
            stacklevel=3,
        )
        return {"class_name": "__lambda__", "config": {"value": function_code.serialize_code(obj)}}
    kind = "type" if isinstance(obj, type) else "function"
    name = get_registered_name(obj)
    return {"module": "builtins", "class_name": kind, "config": name, "registered_name": kind}


def _serialize_value(obj: Any) -> Json:
    if isinstance(obj, bytes):
        return {"class_name": "__bytes__", "config": {"value": obj.decode()}}
    if isinstance(obj, TensorShape):
        return obj.as_list() if obj.rank is not None else None
    if isinstance(obj, DType):
        return obj.name
    if is_tensor(obj):
        value = {"value": obj.numpy().tolist(), "dtype": obj.dtype.name}
        return {"class_name": "__tensor__", "config": value}
    if isinstance(obj, (np.generic, np.ndarray)):
        if not obj.shape:
            return obj.item()
        return {
            "class_name": "__numpy__",
            "config": {"value": obj.tolist(), "dtype": obj.dtype.name},
        }
    if isinstance(obj, TensorSpec):
        config = [_serialize_value(obj.shape), obj.dtype.name, obj.name]
        home = "tensorflow.python.framework.tensor"
        spec = {"spec_name": "TensorSpec", "module": home, "config": config}
        return {"class_name": "__typespec__", **spec, "registered_name": None}
    raise TypeError(
        f"Cannot serialize object {obj!r} of type {type(obj)}. A class that is to be serialized needs `get_config`."
    )


def serialize_legacy(obj: object) -> Json:
    """Return the configuration in the format up to Keras 2.12: `{'class_name', 'config'}`, or a name.

    Args:
      obj: An object with `get_config`, a function, or None.
    """
    if obj is None or isinstance(obj, (str, dict)):
        return obj
    if not hasattr(obj, "get_config"):
        return get_registered_name(obj)
    name = get_registered_name(type(obj))
    if get_public_module(type(obj)) == "keras.optimizers":
        name = f"Custom>{name}"
    return {"class_name": name, "config": obj.get_config()}


def to_legacy_config(config: object) -> Json:
    """Convert a configuration with all its parts to the format up to Keras 2.12.

    Args:
      config: Result of `serialize_keras_object` or `get_config`.

    Returns:
      The configuration without the modules of its classes, and without `build_config` unless a user's
      `get_build_config` returned it.

    Example:
      >>> from meshflow.keras.serialization import to_legacy_config
      >>> to_legacy_config({"module": "keras.layers", "class_name": "ReLU", "config": {}, "registered_name": None})
      {'class_name': 'ReLU', 'config': {}}
    """
    if isinstance(config, BoundCode):
        return config
    if isinstance(config, (list, tuple)):
        return type(config)(to_legacy_config(part) for part in config)
    if not isinstance(config, dict):
        return config
    if "class_name" not in config or "config" not in config:
        return {key: to_legacy_config(value) for key, value in config.items()}
    if config["class_name"] == "function":
        return config["config"]
    if config["class_name"] == "__numpy__":
        return config["config"]["value"]
    omitted = {"module"}
    if set(config.get("build_config") or ()) <= {"input_shape"}:
        omitted.add("build_config")
    if config.get("registered_name") in (None, config["class_name"]):
        omitted.add("registered_name")
    return {key: to_legacy_config(value) for key, value in config.items() if key not in omitted}


def deserialize_keras_object(
    config: object, custom_objects: CustomObjects = None, safe_mode: bool = True, **kwargs: Any
) -> Json:
    """Create the object that `serialize_keras_object` described.

    Args:
      config: Result of `serialize_keras_object`.
      custom_objects: Additional classes and functions by name.
      safe_mode: Whether to refuse configurations that contain code or name files.
      **kwargs: `module_objects`, classes and functions by name, by default everything in
        `tf.keras`; and `printable_module_name`, a noun for the object in error messages.

    Raises:
      ValueError: For another keyword, for an unknown name, and in safe mode for code.
      TypeError: If the configuration has another type.

    Example:
      >>> config = tf.keras.saving.serialize_keras_object(tf.keras.layers.Dense(3))
      >>> tf.keras.saving.deserialize_keras_object(config).units
      3
    """
    module_objects = kwargs.pop("module_objects", None)
    item_name = kwargs.pop("printable_module_name", "object")
    if kwargs:
        raise ValueError(f"deserialize_keras_object takes no argument(s) {sorted(kwargs)}.")
    with safe_mode_scope(is_in_safe_mode() and safe_mode):
        if module_objects is not None and isinstance(config, (str, dict)):
            return ObjectRegistry(item_name, module_objects).get(config, custom_objects)
        return _deserialize(config, ObjectRegistry(item_name, collect_objects()), custom_objects)


def _deserialize(config: object, registry: ObjectRegistry, custom_objects: CustomObjects) -> Json:
    if isinstance(config, str):
        custom = get_registered_object(config, custom_objects)
        return config if custom is None else custom
    if config is None or isinstance(config, (bool, int, float)):
        return config
    if isinstance(config, (list, tuple)):
        return [_deserialize(part, registry, custom_objects) for part in config]
    if _is_object(config):
        # `from_config` of a class received the object for a marked entry.
        return config
    if not isinstance(config, dict):
        raise TypeError(f"Could not parse config: {config!r}")
    if "class_name" not in config or "config" not in config:
        return {key: _deserialize(value, registry, custom_objects) for key, value in config.items()}
    if config["class_name"] in _SPECIAL_CLASS_NAMES:
        return _deserialize_special(config)
    return build_and_compile(find_registry(config, registry).get(config, custom_objects), config)


def build_and_compile(obj: object, config: object) -> Json:
    """Build and compile an object as its configuration describes.

    Args:
      obj: The object.
      config: Result of `serialize_keras_object`.

    Returns:
      The object.
    """
    for part in ("build", "compile"):
        stored = config.get(f"{part}_config") if isinstance(config, dict) else None
        apply = getattr(obj, f"{part}_from_config", None)
        # The registry has called a user's `build_from_config`.
        if (
            stored
            and apply is not None
            and not (part == "build" and is_overridden(obj, apply.__name__))
        ):
            apply(stored)
    return obj


_SPECIAL_CLASS_NAMES = ("__bytes__", "__lambda__", "__numpy__", "__tensor__", "__typespec__")


def _deserialize_special(config: Config) -> Json:
    """Create a value that is not a Keras object."""
    kind, inner = config["class_name"], config["config"]
    if kind == "__typespec__" and config.get("spec_name") == "TensorSpec":
        shape, dtype, name = inner
        return TensorSpec(shape, dtype, name)
    try:
        value = inner["value"]
        if kind == "__bytes__":
            return value.encode()
        if kind == "__lambda__":
            return function_code.deserialize_code(value, {}, "a `lambda`")
        make: Any = constant if kind == "__tensor__" else np.array
        return make(value, dtype=inner["dtype"])
    except (LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"The configuration of a {kind} is damaged: {error!r}.") from error
