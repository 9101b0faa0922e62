"""Conversion of configurations that Keras 3 wrote to the form of Keras 2, which the rest of saving reads.

Only data changes: the names in a configuration are looked up as before, and nothing is imported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator

from meshflow.environment.types import Config, Json
from meshflow.keras import registry
from meshflow.keras.engine.layer.keywords import COMMON_KEYWORDS

# Class name under which `keras.engine.models.operation` creates the call of a `keras.ops` function.
OPERATION_CLASS = "Keras3Operation"
_OPS_MODULE = "keras.src.ops."
_TENSOR_CLASS = "__keras_tensor__"
_TEXT_LAYERS = ("TextVectorization", "StringLookup", "IntegerLookup")
# Activations that are different functions in Keras 3: their names here, and in Keras 3.
KERAS_3_ACTIVATION_NAMES = {"keras.ops.hard_sigmoid": "hard_sigmoid"}
_MESHFLOW_ACTIVATION_NAMES = {theirs: name for name, theirs in KERAS_3_ACTIVATION_NAMES.items()}
# Default values of settings that only Keras 3 knows.
_KERAS_3_DEFAULTS = {"oov_method": "floormod"}


def from_keras_3(config: Json) -> Json:
    """Convert a configuration of Keras 3 to the form of Keras 2.

    Dtype policies become their names, input shapes and calls of layers take their older form, and
    settings that Keras 2 does not know are removed if they have no effect.

    Args:
      config: Any part of a configuration. Parts that Keras 2 or Meshflow wrote do not change.

    Raises:
      ValueError: if the configuration holds a dtype policy of quantized weights, or is damaged.
    """
    try:
        return _translate(config)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"A configuration is damaged: {error!r}.") from None


def restore_activation_names(config: Json) -> Json:
    """Replace the names of activations that are different functions in Keras 2 by Meshflow's names.

    Args:
      config: Any part of the configuration of a file of Keras 3.
    """
    if isinstance(config, list):
        return [restore_activation_names(value) for value in config]
    if not isinstance(config, dict):
        return config
    converted = {key: restore_activation_names(value) for key, value in config.items()}
    for key in {"activation", "recurrent_activation"} & set(converted):
        if isinstance(converted[key], str):
            converted[key] = _MESHFLOW_ACTIVATION_NAMES.get(converted[key], converted[key])
    return converted


def _translate(config: Json) -> Json:
    if isinstance(config, list):
        return [_translate(value) for value in config]
    if not isinstance(config, dict):
        return config
    name = config.get("class_name")
    if name == "DTypePolicy":
        return config["config"]["name"]
    if isinstance(name, str) and name.endswith("DTypePolicy"):
        raise ValueError(
            f"The dtype policy {config.get('config')!r} of class {name} describes quantized weights, which cannot be "
            "read. Save the model before `quantize` is called."
        )
    if name == "__tuple__" and "items" in config:
        return tuple(_translate(value) for value in config["items"])
    module = config.get("module")
    if _is_operation(config, name, module):
        config = _convert_operation(config)
    elif isinstance(name, str) and (module is None or str(module).partition(".")[0] == "keras"):
        config = {**config, **_drop_inactive_settings(name, config.get("config"))}
    converted = {key: _translate(v) for key, v in config.items() if key != "inbound_nodes"}
    if "inbound_nodes" in config:
        converted["inbound_nodes"] = [_convert_call(call) for call in config["inbound_nodes"]]
    return converted


# Settings that layers inherit but do not use.
_KERNEL_SETTINGS = ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint")
_UNUSED_SETTINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("SeparableConv1D", "SeparableConv2D"), _KERNEL_SETTINGS),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), ("groups",)),
}


def to_common_form(config: Json) -> Json:
    """Convert a configuration to a form that both Keras 2 and Keras 3 read, where there is one.

    Args:
      config: Any part of a configuration, as JSON values.
    """
    return _convert_to_common_form(config, inside=False)


def _convert_to_common_form(config: Json, inside: bool) -> Json:
    """Convert a part of a configuration.

    Args:
      config: Part of a configuration.
      inside: Whether the part is a layer's setting, where Keras 3 requires the module of a class.
    """
    if isinstance(config, list):
        return [_convert_to_common_form(value, inside) for value in config]
    if not isinstance(config, dict):
        return config
    name = config.get("class_name")
    if name == "Policy" and set(config.get("config", ())) == {"name"}:
        return config["config"]["name"]
    settings = {k: v for k, v in config.items() if (k, v) != ("time_major", False)}
    converted = {
        key: _convert_to_common_form(value, key != "layers" and (inside or key == "config"))
        for key, value in settings.items()
    }
    if isinstance(name, str) and isinstance(converted.get("config"), dict):
        layer_settings = converted["config"]
        converted["config"] = {
            k: v for k, v in layer_settings.items() if k not in _UNUSED_SETTINGS.get(name, ())
        }
        if name == "BatchNormalization" and isinstance(layer_settings.get("axis"), list):
            # Keras 3 accepts only a number.
            (converted["config"]["axis"],) = (
                layer_settings["axis"]
                if len(layer_settings["axis"]) == 1
                else [layer_settings["axis"]]
            )
        if (
            inside
            and "module" not in converted
            and _is_built_in_layer(name)
            and "registered_name" not in converted
        ):
            return {"module": "keras.layers", "registered_name": None, **converted}
    return converted


def _is_built_in_layer(name: str) -> bool:
    """Check whether a name belongs to a built-in layer, and not to a registered custom one."""
    cls = registry.LAYERS.table.get(name)
    return getattr(cls, "__module__", "").startswith("meshflow.keras.layers")


def _is_operation(entry: Config, name: object, module: object) -> bool:
    """Check whether an entry of a graph is a function.

    In `.h5` files the inputs decide, because these files do not record the module of a class.
    """
    if not isinstance(name, str) or not entry.get("inbound_nodes"):
        return False
    if module is not None:
        return isinstance(module, str) and module.startswith(_OPS_MODULE)
    settings = entry.get("config")
    if name in registry.LAYERS.table and set(settings or ()) - {"name", "dtype"}:
        return False  # Some layers omit the setting `trainable`.
    is_function = isinstance(settings, dict) and not {"trainable", "layers"} & set(settings)
    return (
        is_function
        and _contains_tensors(entry["inbound_nodes"])
        and not registry.get_registered_object(name)
    )


def _convert_operation(entry: Config) -> Config:
    """Convert a call of a `keras.ops` function, which Keras 3 stores as an object of a separate class."""
    arguments = dict(entry.get("config") or {})
    name = arguments.pop("name", entry.get("name"))
    if not isinstance(arguments.get("dtype"), str):
        # This is the dtype policy of Keras 3's object, not an argument of the function.
        arguments.pop("dtype", None)
    function = {"name": name, "operation": entry["class_name"], "arguments": arguments}
    return {**entry, "class_name": OPERATION_CLASS, "config": function, "registered_name": None}


def _drop_inactive_settings(name: str, config: Json) -> Config:
    """Remove a built-in class's settings that Keras 2 does not know and that have no effect."""
    if not isinstance(config, dict) or registry.get_registered_object(name) is not None:
        return {}
    config = dict(config)
    if name == "InputLayer" and "batch_shape" in config:
        config["batch_input_shape"] = config.pop("batch_shape")
        config.pop("optional", None)
    if name in _TEXT_LAYERS and isinstance(config.get("dtype"), dict):
        # Keras 3 stores the dtype of the computation here, not that of the inputs.
        config.pop("dtype")
    accepted = set().union(*map(_list_parameters, _find_built_in_classes(name)))
    if accepted:
        inactive = [
            k for k, v in config.items() if v is None or v is False or _KERAS_3_DEFAULTS.get(k) == v
        ]
        config = {k: v for k, v in config.items() if k in accepted or k not in inactive}
    return {"config": config}


def _find_built_in_classes(name: str) -> Iterator[type]:
    for family in registry.REGISTRIES.values():
        cls = family.table.get(name)
        if isinstance(cls, type) and cls.__module__.startswith("meshflow."):
            yield cls


@functools.cache
def _list_parameters(cls: type) -> set[str]:
    """Return the names of a class's arguments, also of those that it passes on to its bases."""
    names = set(COMMON_KEYWORDS)
    for base in cls.__mro__:
        initializer = vars(base).get("__init__")
        names |= (
            set(inspect.signature(initializer).parameters)
            if inspect.isfunction(initializer)
            else set()
        )
    return names


# ---- calls -------------------------------------------------------------------------------


def _convert_call(call: Json) -> Json:
    """Convert a call of a layer in a graph; calls in the form of Keras 2 or Meshflow do not change."""
    if not isinstance(call, dict) or not _contains_tensors(call):
        return call
    return {
        "args": [_convert_argument(value) for value in call["args"]],
        "kwargs": {key: _convert_argument(value) for key, value in call["kwargs"].items()},
    }


def _contains_tensors(value: Json) -> bool:
    """Check whether a value contains a symbolic tensor in Keras 3's form."""
    if isinstance(value, dict):
        return value.get("class_name") == _TENSOR_CLASS or any(
            map(_contains_tensors, value.values())
        )
    return isinstance(value, list) and any(map(_contains_tensors, value))


def _convert_argument(value: Json) -> Json:
    """Convert an argument of a call to Meshflow's form."""
    if isinstance(value, list):
        return {"list": [_convert_argument(v) for v in value]}
    if not isinstance(value, dict):
        return value
    name, config = value.get("class_name"), value.get("config", {})
    if name == _TENSOR_CLASS:
        return {"keras_tensor": list(config["keras_history"])}
    if name == "__tuple__":
        return {"tuple": [_convert_argument(v) for v in value["items"]]}
    if name in ("__tensor__", "__numpy__"):
        return {"constant": config["value"], "of": config["dtype"]}
    if name == "__slice__":
        return {"slice": [config.get(part) for part in ("start", "stop", "step")]}
    if name == "__ellipsis__":
        return {"ellipsis": True}
    if name is None:
        return {"mapping": {key: _convert_argument(v) for key, v in value.items()}}
    return _translate(value)
