"""Objects as plain data and back: `{'module', 'class_name', 'config', 'registered_name'}`, as Keras 2.13 and later write them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import is_tensor
from meshflow.keras import function_code
from meshflow.keras.registry import (
    Family,
    everything,
    family_of,
    get_registered_name,
    get_registered_object,
    public_module,
)
from meshflow.keras.safe_mode import HeldCode, in_safe_mode
from meshflow.keras.safe_mode import safe_mode as safe_mode_scope

__all__ = [
    "as_it_was",
    "deserialize_keras_object",
    "legacy",
    "serialize",
    "serialize_keras_object",
    "without_modules",
]


def serialize(obj: Any, use_legacy_format: bool = False) -> Any:
    """What `serialize_keras_object` gives, in either form.

    Args:
      obj: the object.
      use_legacy_format: whether it is the form until Keras 2.12: `{'class_name', 'config'}`, and names of functions.
    """
    return legacy(obj) if use_legacy_format else serialize_keras_object(obj)


def serialize_keras_object(
    obj: Any,
) -> dict[str, Any] | list[Any] | tuple[Any, ...] | str | float | None:
    """A layer, loss, optimizer or the like, a function, or plain values that hold such, as plain data.

    Args:
      obj: anything with `get_config`, a function, numbers, texts, arrays, dtypes, shapes, and lists, tuples and
        dictionaries of these.

    Returns:
      `{'module': ..., 'class_name': ..., 'config': ..., 'registered_name': ...}`, with `build_config` and
      `compile_config` of what was built and compiled; plain values as they are.

    Raises:
      TypeError: for an object without `get_config`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.utils.serialize_keras_object(tf.keras.regularizers.L2(0.5))
      {'module': 'keras.regularizers', 'class_name': 'L2', 'config': {'l2': 0.5}, 'registered_name': None}
    """
    if obj is None or isinstance(obj, (str, bool, int, float, HeldCode)):
        # NumPy's float64 is a float, too.
        return obj.item() if isinstance(obj, np.generic) else obj
    if isinstance(obj, (list, tuple)):
        parts = [serialize_keras_object(part) for part in obj]
        return tuple(parts) if isinstance(obj, tuple) else parts
    if isinstance(obj, dict):
        return {key: serialize_keras_object(value) for key, value in obj.items()}
    if hasattr(obj, "get_config") and not isinstance(obj, type):
        return _configured(obj)
    if callable(obj) and hasattr(obj, "__name__"):
        return _named(obj)
    return _value(obj)


def _configured(obj: Any) -> dict[str, Any]:
    config = obj.get_config()
    if not isinstance(config, dict):
        raise TypeError(
            f"get_config() of {obj!r} should return a dictionary, it returned {config!r}."
        )
    cls = type(obj)
    module = public_module(cls)
    found = {
        "module": module,
        "class_name": cls.__name__,
        "config": serialize_keras_object(config),
        "registered_name": None
        if module and not module.startswith("keras.src.")
        else get_registered_name(cls),
    }
    for more in ("build_config", "compile_config"):
        get = getattr(obj, f"get_{more}", None)
        value = get() if get is not None else None
        if value is not None:
            found[more] = serialize_keras_object(value)
    return found


def _named(obj: Any) -> dict[str, Any]:
    if getattr(obj, "__name__", "") == "<lambda>":
        warnings.warn(
            "A lambda function is written as its code, which is read again with `safe_mode=False` only: give it a name.",
            stacklevel=3,
        )
        return {"class_name": "__lambda__", "config": {"value": function_code.to_data(obj)}}
    kind = "type" if isinstance(obj, type) else "function"
    name = get_registered_name(obj)
    return {"module": "builtins", "class_name": kind, "config": name, "registered_name": kind}


def _value(obj: Any) -> Any:
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
        config = [_value(obj.shape), obj.dtype.name, obj.name]
        home = "tensorflow.python.framework.tensor"
        spec = {"spec_name": "TensorSpec", "module": home, "config": config}
        return {"class_name": "__typespec__", **spec, "registered_name": None}
    raise TypeError(
        f"Cannot serialize object {obj!r} of type {type(obj)}. A class that is to be serialized needs `get_config`."
    )


def legacy(obj: Any) -> Any:
    """The configuration as it was until Keras 2.12: `{'class_name', 'config'}`, or the name of a function.

    Args:
      obj: anything with `get_config`, a function, or None.
    """
    if obj is None or isinstance(obj, (str, dict)):
        return obj
    if not hasattr(obj, "get_config"):
        return get_registered_name(obj)
    name = get_registered_name(type(obj))
    if public_module(type(obj)) == "keras.optimizers":
        name = f"Custom>{name}"
    return {"class_name": name, "config": obj.get_config()}


def without_modules(config: Any) -> Any:
    """A configuration as it was until Keras 2.12, in all its parts.

    Args:
      config: what `serialize_keras_object` or `get_config` gave.

    Returns:
      It, without the modules of its classes and without how objects were built.

    Example:
      >>> from meshflow.keras.serialization import without_modules
      >>> without_modules({"module": "keras.layers", "class_name": "ReLU", "config": {}, "registered_name": None})
      {'class_name': 'ReLU', 'config': {}}
    """
    if isinstance(config, HeldCode):
        return config
    if isinstance(config, (list, tuple)):
        return type(config)(without_modules(part) for part in config)
    if not isinstance(config, dict):
        return config
    if "class_name" not in config or "config" not in config:
        return {key: without_modules(value) for key, value in config.items()}
    if config["class_name"] == "function":
        return config["config"]
    left_out = {"module", "build_config"}
    if config.get("registered_name") in (None, config["class_name"]):
        left_out.add("registered_name")
    return {key: without_modules(value) for key, value in config.items() if key not in left_out}


def deserialize_keras_object(
    config: Any, custom_objects: Any = None, safe_mode: bool = True, **kwargs: Any
) -> Any:
    """The object that `serialize_keras_object` described.

    Args:
      config: what it gave.
      custom_objects: further classes and functions by name.
      safe_mode: whether a configuration is refused that brings code or names files.
      **kwargs: `module_objects`, classes and functions by name, default everything in `tf.keras`, and
        `printable_module_name`, what the thing is called in errors.

    Raises:
      ValueError: for another keyword, for an unknown name, and for what `safe_mode` refuses.
      TypeError: for a configuration of another type.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.saving.serialize_keras_object(tf.keras.layers.Dense(3))
      >>> tf.keras.saving.deserialize_keras_object(config).units
      3
    """
    known = kwargs.pop("module_objects", None)
    what = kwargs.pop("printable_module_name", "object")
    if kwargs:
        raise ValueError(f"deserialize_keras_object takes no argument(s) {sorted(kwargs)}.")
    with safe_mode_scope(safe_mode and in_safe_mode()):
        if known is not None and isinstance(config, (str, dict)):
            return Family(what, known).get(config, custom_objects)
        return _made(config, Family(what, everything()), custom_objects)


def _made(config: Any, known: Family, custom_objects: Any) -> Any:
    if isinstance(config, str):
        found = get_registered_object(config, custom_objects)
        return config if found is None else found
    if config is None or isinstance(config, (bool, int, float)):
        return config
    if isinstance(config, (list, tuple)):
        return [_made(part, known, custom_objects) for part in config]
    if not isinstance(config, dict):
        raise TypeError(f"Could not parse config: {config!r}")
    if "class_name" not in config or "config" not in config:
        return {key: _made(value, known, custom_objects) for key, value in config.items()}
    if config["class_name"] in _SPECIAL:
        return _special(config)
    return as_it_was(family_of(config, known).get(config, custom_objects), config)


def as_it_was(obj: Any, config: Any) -> Any:
    """An object, built and compiled as its configuration says that another one was.

    Args:
      obj: the object.
      config: what `serialize_keras_object` gave.
    """
    for part in ("build", "compile"):
        stored = config.get(f"{part}_config") if isinstance(config, dict) else None
        apply = getattr(obj, f"{part}_from_config", None)
        if stored and apply is not None:
            apply(stored)
    return obj


_SPECIAL = ("__bytes__", "__lambda__", "__numpy__", "__tensor__", "__typespec__")


def _special(config: dict[str, Any]) -> Any:
    """What is no object of Keras'."""
    kind, inner = config["class_name"], config["config"]
    if kind == "__typespec__" and config.get("spec_name") == "TensorSpec":
        shape, dtype, name = inner
        return TensorSpec(shape, dtype, name)
    try:
        value = inner["value"]
        if kind == "__bytes__":
            return value.encode()
        if kind == "__lambda__":
            return function_code.from_data(value, {}, "a `lambda`")
        make: Any = constant if kind == "__tensor__" else np.array
        return make(value, dtype=inner["dtype"])
    except (LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"The configuration of a {kind} is damaged: {error!r}.") from error
