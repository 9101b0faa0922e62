"""Configurations that Keras 3 wrote, in the form of Keras 2, which the rest of saving reads.

Only data is changed: what a configuration names is looked up as ever, and nothing is imported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from meshflow.keras import registry
from meshflow.keras.engine.layer.keywords import KNOWN

__all__ = [
    "OPERATION",
    "OTHERWISE_IN_KERAS_3",
    "for_all_versions",
    "from_keras_3",
    "with_its_functions",
]

# The class name under which `keras.engine.models.operation` makes a call of a `keras.ops` function.
OPERATION = "Keras3Operation"
_OPS_MODULE = "keras.src.ops."
_TENSOR = "__keras_tensor__"
_TAKE_WORDS = ("TextVectorization", "StringLookup", "IntegerLookup")
# Activations that are other functions in Keras 3: our names of those, and its names.
OTHERWISE_IN_KERAS_3 = {"keras.ops.hard_sigmoid": "hard_sigmoid"}
_OURS = {theirs: name for name, theirs in OTHERWISE_IN_KERAS_3.items()}
# What only Keras 3 can set, as it is when nobody did.
_USUAL = {"oov_method": "floormod"}


def from_keras_3(config: Any) -> Any:
    """A configuration with everything that only Keras 3 writes put into Keras 2's words.

    Dtype policies become their names, shapes of inputs and calls of layers take their older form, and settings that
    Keras 2 does not have are left out where they are off.

    Args:
      config: any part of a configuration; what Keras 2 or Meshflow wrote comes back as it is.

    Raises:
      ValueError: for a policy of quantized weights, naming it, and for what cannot be read.
    """
    try:
        return _translated(config)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"A configuration is damaged: {error!r}.") from None


def with_its_functions(config: Any) -> Any:
    """A configuration of a file of Keras 3, with our names of activations that are other functions in Keras 2.

    Args:
      config: any part of the configuration.
    """
    if isinstance(config, list):
        return [with_its_functions(value) for value in config]
    if not isinstance(config, dict):
        return config
    found = {key: with_its_functions(value) for key, value in config.items()}
    for key in {"activation", "recurrent_activation"} & set(found):
        if isinstance(found[key], str):
            found[key] = _OURS.get(found[key], found[key])
    return found


def _translated(config: Any) -> Any:
    if isinstance(config, list):
        return [_translated(value) for value in config]
    if not isinstance(config, dict):
        return config
    name = config.get("class_name")
    if name == "DTypePolicy":
        return config["config"]["name"]
    if isinstance(name, str) and name.endswith("DTypePolicy"):
        raise ValueError(
            f"The dtype policy {config.get('config')!r} of class {name} is one of quantized weights, which are not read. "
            "Save the model before `quantize` is called."
        )
    if name == "__tuple__" and "items" in config:
        return tuple(_translated(value) for value in config["items"])
    module = config.get("module")
    if _is_operation(config, name, module):
        config = _operation(config)
    elif isinstance(name, str) and (module is None or str(module).partition(".")[0] == "keras"):
        config = {**config, **_known_only(name, config.get("config"))}
    found = {key: _translated(v) for key, v in config.items() if key != "inbound_nodes"}
    if "inbound_nodes" in config:
        found["inbound_nodes"] = [_call(call) for call in config["inbound_nodes"]]
    return found


# What layers inherit and do not use.
_KERNEL = ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint")
_UNUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("SeparableConv1D", "SeparableConv2D"), _KERNEL),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), ("groups",)),
}


def for_all_versions(config: Any) -> Any:
    """A configuration in words of Keras 2 that Keras 3 understands, too, where there are such.

    Args:
      config: any part of a configuration, as JSON holds it.
    """
    return _understood(config, inside=False)


def _understood(config: Any, inside: bool) -> Any:
    """`inside`: whether this is among a layer's settings, where Keras 3 asks for the module of a class."""
    if isinstance(config, list):
        return [_understood(value, inside) for value in config]
    if not isinstance(config, dict):
        return config
    name = config.get("class_name")
    if name == "Policy" and set(config.get("config", ())) == {"name"}:
        return config["config"]["name"]
    kept = {k: v for k, v in config.items() if (k, v) != ("time_major", False)}
    found = {
        key: _understood(value, key != "layers" and (inside or key == "config"))
        for key, value in kept.items()
    }
    if isinstance(name, str) and isinstance(found.get("config"), dict):
        own = found["config"]
        found["config"] = {k: v for k, v in own.items() if k not in _UNUSED.get(name, ())}
        if name == "BatchNormalization" and isinstance(own.get("axis"), list):
            # Keras 3 takes a number only.
            (found["config"]["axis"],) = own["axis"] if len(own["axis"]) == 1 else [own["axis"]]
        if inside and "module" not in found and _is_ours(name) and "registered_name" not in found:
            return {"module": "keras.layers", "registered_name": None, **found}
    return found


def _is_ours(name: str) -> bool:
    """Whether a class of layers is Keras', which nobody registered under that name."""
    known = registry.LAYERS.table.get(name)
    return getattr(known, "__module__", "").startswith("meshflow.keras.layers")


def _is_operation(entry: dict[str, Any], name: Any, module: Any) -> bool:
    """Whether an entry of a graph is a function; `.h5` files do not say where its class is."""
    if not isinstance(name, str) or not entry.get("inbound_nodes"):
        return False
    if module is not None:
        return isinstance(module, str) and module.startswith(_OPS_MODULE)
    settings = entry.get("config")
    if name in registry.LAYERS.table and set(settings or ()) - {"name", "dtype"}:
        return False  # some layers do not say whether they are trained
    plain = isinstance(settings, dict) and not {"trainable", "layers"} & set(settings)
    return (
        plain
        and _names_tensors(entry["inbound_nodes"])
        and not registry.get_registered_object(name)
    )


def _operation(entry: dict[str, Any]) -> dict[str, Any]:
    """A call of a function of `keras.ops`, which Keras 3 has as an object of a class of its own."""
    given = dict(entry.get("config") or {})
    name = given.pop("name", entry.get("name"))
    if not isinstance(given.get("dtype"), str):
        given.pop("dtype", None)  # a policy, which is the object's
    function = {"name": name, "operation": entry["class_name"], "arguments": given}
    return {**entry, "class_name": OPERATION, "config": function, "registered_name": None}


def _known_only(name: Any, config: Any) -> dict[str, Any]:
    """A built-in class's settings without those that Keras 2 does not have and that are off."""
    if not isinstance(config, dict) or registry.get_registered_object(name) is not None:
        return {}
    config = dict(config)
    if name == "InputLayer" and "batch_shape" in config:
        config["batch_input_shape"] = config.pop("batch_shape")
        config.pop("optional", None)
    if name in _TAKE_WORDS and isinstance(config.get("dtype"), dict):
        config.pop("dtype")  # Keras 3 says what they compute with, not what they take
    accepted = set().union(*map(_parameters, _classes(name)))
    if accepted:
        off = [k for k, v in config.items() if v is None or v is False or _USUAL.get(k) == v]
        config = {k: v for k, v in config.items() if k in accepted or k not in off}
    return {"config": config}


def _classes(name: Any) -> Iterator[type]:
    for family in registry.FAMILIES.values():
        found = family.table.get(name)
        if isinstance(found, type) and found.__module__.startswith("meshflow."):
            yield found


@functools.cache
def _parameters(cls: type) -> set[str]:
    """Names of the arguments of a class and of those that it passes arguments on to."""
    found = set(KNOWN)
    for base in cls.__mro__:
        own = vars(base).get("__init__")
        found |= set(inspect.signature(own).parameters) if inspect.isfunction(own) else set()
    return found


# ---- calls -------------------------------------------------------------------------------


def _call(call: Any) -> Any:
    """A call of a layer of a graph; those of Keras 2 and ours come back as they are."""
    if not isinstance(call, dict) or not _names_tensors(call):
        return call
    return {
        "args": [_argument(value) for value in call["args"]],
        "kwargs": {key: _argument(value) for key, value in call["kwargs"].items()},
    }


def _names_tensors(value: Any) -> bool:
    """Whether Keras 3's form of a symbolic tensor is somewhere in a value."""
    if isinstance(value, dict):
        return value.get("class_name") == _TENSOR or any(map(_names_tensors, value.values()))
    return isinstance(value, list) and any(map(_names_tensors, value))


def _argument(value: Any) -> Any:
    """An argument of a call in our form."""
    if isinstance(value, list):
        return {"list": [_argument(v) for v in value]}
    if not isinstance(value, dict):
        return value
    name, config = value.get("class_name"), value.get("config", {})
    if name == _TENSOR:
        return {"keras_tensor": list(config["keras_history"])}
    if name == "__tuple__":
        return {"tuple": [_argument(v) for v in value["items"]]}
    if name in ("__tensor__", "__numpy__"):
        return {"constant": config["value"], "of": config["dtype"]}
    if name == "__slice__":
        return {"slice": [config.get(part) for part in ("start", "stop", "step")]}
    if name == "__ellipsis__":
        return {"ellipsis": True}
    if name is None:
        return {"mapping": {key: _argument(v) for key, v in value.items()}}
    return _translated(value)
