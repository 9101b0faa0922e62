"""Models and their `compile` arguments as plain data in the layout of Keras 2's JSON."""

from __future__ import annotations

import contextvars
import copy
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.environment.types import Config, Json
from meshflow.keras import registry, serialization
from meshflow.keras.engine.saving.keras2_calls import to_keras2_call
from meshflow.keras.engine.saving.keras3_configuration import from_keras_3, to_common_form
from meshflow.keras.optimizers import legacy
from meshflow.version import KERAS_VERSION

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import Layer

_MODEL_CLASSES = ("Functional", "Model", "Sequential")
# Whether configurations of graphs keep Meshflow's form of calls, which can express more than the
# form of Keras 2.
_keep_own_calls: contextvars.ContextVar[bool] = contextvars.ContextVar("own_calls", default=False)


def encode_object(value: Any) -> Json:
    """Convert an object that the JSON encoder does not know to one that it knows.

    Args:
      value: Object that the encoder met.

    Raises:
      TypeError: if the object has no configuration.
    """
    if hasattr(value, "as_list"):
        return value.as_list()
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if hasattr(value, "get_config"):
        return serialization.serialize(value)
    if hasattr(value, "as_numpy_dtype"):
        return value.name
    if callable(value):
        return registry.get_registered_name(value)
    raise TypeError(
        f"{value!r} of type {type(value).__name__} cannot be written to a model's configuration."
    )


def to_json(value: Json, **kwargs: Any) -> str:
    """Format a configuration as JSON text.

    Args:
      value: Configuration.
      **kwargs: Arguments of `json.dumps`.
    """
    return json.dumps(value, default=encode_object, **kwargs)


def to_plain_config(model: Layer, own_calls: bool = False) -> Json:
    """Return a model's configuration as JSON values, in the form that all versions of Keras 2 read.

    Args:
      model: Model or layer.
      own_calls: Whether calls of layers keep Meshflow's form instead of that of Keras 2.

    Raises:
      NotImplementedError: if the model is subclassed and defines no `get_config`.
    """
    if not getattr(model, "_has_config", True):
        raise NotImplementedError(
            f"Model {type(model).__name__} is subclassed: define `get_config` (and `from_config`) to save it."
        )
    token = _keep_own_calls.set(own_calls)
    try:
        with serialization.mark_objects():
            return serialization.to_legacy_config(json.loads(to_json(model.get_config())))
    finally:
        _keep_own_calls.reset(token)


def make_model_config(model: Layer) -> Config:
    """Return a model's class and configuration, in Keras 2's form wherever that form can express them.

    Args:
      model: Model or layer.
    """
    config = {
        "class_name": type(model).__name__,
        "config": to_common_form(to_plain_config(model)),
    }
    name = registry.get_registered_name(type(model))
    return config | ({"registered_name": name} if name != type(model).__name__ else {})


def model_to_json(model: Any, **kwargs: Any) -> str:
    """Format a model's architecture as JSON text.

    Args:
      model: The model.
      **kwargs: Arguments of `json.dumps`.
    """
    with serialization.mark_objects():
        content = {"class_name": type(model).__name__, "config": model.get_config()}
        return to_json({**content, "keras_version": KERAS_VERSION, "backend": "jax"}, **kwargs)


# ---- graphs ------------------------------------------------------------------------------


def to_keras2_calls(config: Config) -> Config:
    """Convert the calls in a graph's configuration to Keras 2's lists of [layer, call, output, arguments].

    The first call of a nested model has index 1 there, because Keras 2 counts the call on its own
    inputs as call 0. Calls that the lists cannot express keep Meshflow's form.

    Args:
      config: Configuration of a Functional model, in Meshflow's form.
    """
    if _keep_own_calls.get():
        return config
    config = copy.deepcopy(config)
    for entry in config["layers"]:
        calls = [to_keras2_call(call, entry["class_name"]) for call in entry["inbound_nodes"]]
        if None not in calls:
            entry["inbound_nodes"] = calls
    _shift_call_indices(config, dict.fromkeys(_find_nested_models(config), 1))
    return config


def from_keras2_calls(config: Config) -> Config:
    """Convert a graph's configuration so that the calls of nested models are counted from 0.

    Args:
      config: Configuration of a Functional model, from Meshflow or Keras 2.
    """
    calls = {e["name"]: len(e["inbound_nodes"]) for e in config["layers"]}
    shifts: dict[str, int] = {}
    for name in _find_nested_models(config):
        max_call = max(
            (reference[1] for reference in _iterate_references(config) if reference[0] == name),
            default=0,
        )
        shifts[name] = -max(0, max_call - (calls[name] - 1))
    if not any(shifts.values()):
        return config
    config = copy.deepcopy(config)
    _shift_call_indices(config, shifts)
    return config


def _find_nested_models(config: Config) -> list[str]:
    """Return the names of the nested models that have known inputs."""
    names = []
    for entry in config["layers"]:
        inner = entry.get("config", {})
        inner = inner if isinstance(inner, dict) else {}
        first: dict[str, Any] = next(iter(inner.get("layers", [])), {})
        has_inputs = "input_layers" in inner or "batch_input_shape" in first.get("config", {})
        if entry["class_name"] in _MODEL_CLASSES and has_inputs:
            names.append(entry["name"])
    return names


def _iterate_references(config: Config) -> Iterator[list[Any]]:
    """Yield all references [layer, call, output, ...] of a graph, to read or change."""
    for entry in config["layers"]:
        yield from _find_references(entry["inbound_nodes"])
    yield from _find_references(config["input_layers"])
    yield from _find_references(config["output_layers"])


def _find_references(value: Json) -> Iterator[list[Any]]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _find_references(item)
    elif isinstance(value, list):
        if (
            len(value) >= 3
            and isinstance(value[0], str)
            and all(type(x) is int for x in value[1:3])
        ):
            yield value
            value = value[3:]
        for item in value:
            yield from _find_references(item)


def _shift_call_indices(config: Config, shifts: dict[str, int]) -> None:
    for reference in _iterate_references(config):
        reference[1] += shifts.get(reference[0], 0)


# ---- compile -----------------------------------------------------------------------------


def get_compile_arguments(model: Any) -> Config | None:
    """Return the arguments that `compile` was called with, as data.

    Args:
      model: The model.

    Returns:
      Serialized arguments by name, or None if the model is not compiled.
    """
    if not model._is_compiled:
        return None
    return {key: serialization.serialize(v) for key, v in model._compile_arguments.items()}


def get_training_config(model: Any) -> Config | None:
    """Return the arguments that `compile` was called with, in Keras 2's form.

    Args:
      model: The model.

    Returns:
      JSON values. None if the model is not compiled, or if an argument has no configuration.
    """
    if not model._is_compiled:
        return None
    arguments = dict(model._compile_arguments)
    try:
        del arguments["optimizer"], arguments["jit_compile"]
        arguments["optimizer_config"] = serialization.serialize(model.optimizer)
        return dict(serialization.to_legacy_config(json.loads(to_json(arguments))))
    except (NotImplementedError, TypeError):
        # The model is still saved without such an optimizer, and loads uncompiled.
        return None


# Optimizer settings that Keras 3 does not know. Keras 2 uses the defaults of this package if they
# are missing.
_KERAS_2_SETTINGS = ("decay", "jit_compile", "is_legacy_optimizer")
# Optimizer settings that Keras 2 knows since 2.11, with their default values.
_KERAS_2_11_DEFAULTS = {
    **dict.fromkeys(("weight_decay", "ema_overwrite_frequency"), (None,)),
    **{"use_ema": (False,), "ema_momentum": (0.99,)},
    **dict.fromkeys(("jit_compile", "is_legacy_optimizer"), (True, False)),
}
# Optimizers that Keras 2 stores in `.h5` files under the name of a registered custom class.
_OPTIMIZERS_NAMED_AS_CUSTOM = ("Adafactor", "Lion")
_SCHEDULE_MODULE = "keras.optimizers.schedules"
_LOSS_SCALE_MODULE = "tf_keras.src.mixed_precision.loss_scale_optimizer"


def to_compile_config(
    training: Config, arguments: Config, is_new_optimizer: bool = False
) -> Config:
    """Convert a training configuration to the form of `.keras` files, which name the module of each class.

    Args:
      training: Result of `get_training_config`.
      arguments: The arguments that `compile` was called with. Functions among them are marked as such, so that they
        are loaded as functions, whereas names remain names.
      is_new_optimizer: Whether the optimizer computes like those of Keras 2.11 and later.
    """
    # Keras 3 does not accept None as the number of steps.
    config = {k: v for k, v in training.items() if (k, v) != ("steps_per_execution", None)}
    config["jit_compile"] = arguments.get("jit_compile")
    config["optimizer"] = _convert_optimizer(config.pop("optimizer_config"), is_new_optimizer)
    for key, module in (
        ("loss", "losses"),
        ("metrics", "metrics"),
        ("weighted_metrics", "metrics"),
    ):
        config[key] = _add_module(
            _mark_functions(config.get(key), arguments.get(key)), f"keras.{module}"
        )
    return config


def _mark_functions(value: Json, argument: object) -> Json:
    """Replace the name of each function in a structure by an entry that declares a function."""
    if isinstance(value, list) and isinstance(argument, (list, tuple)):
        return [_mark_functions(v, a) for v, a in zip(value, argument, strict=True)]
    if isinstance(value, dict) and isinstance(argument, Mapping):
        return {k: _mark_functions(v, argument[k]) for k, v in value.items()}
    if isinstance(value, str) and isinstance(argument, types.FunctionType):
        identifiers = {"module": "builtins", "class_name": "function"}
        return {**identifiers, "config": value, "registered_name": "function"}
    return value


def to_hdf5_training_config(training: Config, is_new_optimizer: bool) -> Config:
    """Convert a training configuration to the form of `.h5` files.

    In these files only an optimizer inside a loss-scaling optimizer is named with its module.

    Args:
      training: Result of `get_training_config`.
      is_new_optimizer: Whether the optimizer computes like those of Keras 2.11 and later.
    """
    entry = training["optimizer_config"]
    if "inner_optimizer" in entry["config"]:
        converted = _convert_optimizer(entry, is_new_optimizer)
        entry = {k: v for k, v in converted.items() if k in ("class_name", "config")}
    elif entry["class_name"] in _OPTIMIZERS_NAMED_AS_CUSTOM:
        entry = {**entry, "class_name": f"Custom>{entry['class_name']}"}
    return {**training, "optimizer_config": entry}


def _convert_optimizer(entry: Config, is_new: bool) -> Config:
    """Return an optimizer's entry with its module and with the settings that its version of Keras knows."""
    settings, name = dict(entry["config"]), entry["class_name"].removesuffix("V3")
    if name == "LossScaleOptimizer":
        name += "V3" if is_new else ""
        inner = _add_optimizer_modules(settings["inner_optimizer"], is_new)
        identifiers = {"module": _LOSS_SCALE_MODULE, "class_name": name, "registered_name": name}
        return {**identifiers, "config": {**settings, "inner_optimizer": inner}}
    if is_new:  # Keras 3 rejects unknown settings.
        settings = {k: v for k, v in settings.items() if k not in _KERAS_2_SETTINGS}
    return _add_optimizer_modules({**entry, "config": settings}, is_new)


def _add_optimizer_modules(entry: Config, is_new: bool) -> Config:
    """Add the modules of an optimizer and of its learning-rate schedule to its entry."""
    settings, name = dict(entry["config"]), entry["class_name"]
    is_legacy = name in legacy.__all__ and not is_new
    if is_legacy:
        settings = {k: v for k, v in settings.items() if v not in _KERAS_2_11_DEFAULTS.get(k, ())}
    rate = settings.get("learning_rate")
    if isinstance(rate, dict) and rate.get("class_name") in registry.REGISTRIES["decay"].table:
        schedule = {k: v for k, v in rate["config"].items() if (k, v) != ("name", None)}
        settings["learning_rate"] = _add_module({**rate, "config": schedule}, _SCHEDULE_MODULE)
    module = f"keras.optimizers{'.legacy' if is_legacy else ''}"
    return _add_module({**entry, "config": settings}, module)


def _add_module(value: Json, module: str) -> Json:
    """Add a module to every serialized object in a structure."""
    if isinstance(value, list):
        return [_add_module(v, module) for v in value]
    if not isinstance(value, dict):
        return value
    if "class_name" in value:
        return {"module": module, "registered_name": None, **value}
    return {k: _add_module(v, module) for k, v in value.items()}


def compile_from_config(
    model: Any, config: Config, custom_objects: dict[str, Any] | None = None
) -> None:
    """Compile a model with serialized arguments.

    Args:
      model: The model.
      config: Result of `get_training_config` (of Meshflow or Keras 2), or of `to_compile_config`.
      custom_objects: Classes and functions by name.
    """
    losses, metrics = registry.REGISTRIES["loss function"], registry.REGISTRIES["metric function"]
    config = from_keras_3(config)

    def decode(value: Json, family: registry.ObjectRegistry) -> Any:
        if isinstance(value, dict) and "class_name" in value:
            # tf-keras also stores the function that the class wraps.
            config = value.get("config")
            if isinstance(config, dict) and value["class_name"] in family.table:
                settings = {k: v for k, v in config.items() if k != "fn"}
                if "fn" in inspect.signature(family.table[value["class_name"]]).parameters:
                    settings["fn"] = decode(config.get("fn"), family)
                    if isinstance(settings["fn"], str):
                        settings["fn"] = family.get(settings["fn"], custom_objects)
                value = {**value, "config": settings}
            if "module" not in value:
                # In `.h5` files, the configuration of a class without `from_config` holds arguments.
                target = family.find(value["class_name"], custom_objects)
                if isinstance(target, type) and not hasattr(target, "from_config"):
                    return target(**value["config"])
            return family.deserialize(value, custom_objects)
        if isinstance(value, dict):
            return {k: decode(v, family) for k, v in value.items()}
        if isinstance(value, str):
            # Names are resolved here, because `custom_objects` is not available when training
            # matches losses to outputs.
            registered = registry.get_registered_object(value, custom_objects)
            return value if registered is None else family.get(registered)
        return [decode(v, family) for v in value] if isinstance(value, list) else value

    # Keras 3 drops the optimizer of a model that it saved as .h5 before.
    optimizer = config.get("optimizer_config", config.get("optimizer", "rmsprop"))
    if isinstance(optimizer, dict):
        optimizer = registry.OPTIMIZERS.deserialize(optimizer, custom_objects)
    direct_keys = ("loss_weights", "steps_per_execution", "run_eagerly", "jit_compile")
    model.compile(
        optimizer,
        loss=decode(config.get("loss"), losses),
        metrics=decode(_unwrap_metrics(config.get("metrics"), model), metrics),
        weighted_metrics=decode(_unwrap_metrics(config.get("weighted_metrics"), model), metrics),
        **{key: config.get(key) for key in direct_keys},
    )


def _unwrap_metrics(value: Json, model: Any) -> Json:
    """Remove the outer list that Keras 2 writes around the metrics of a model with one output."""
    is_wrapped = isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)
    return value[0] if is_wrapped and len(getattr(model, "outputs", None) or [1]) == 1 else value
