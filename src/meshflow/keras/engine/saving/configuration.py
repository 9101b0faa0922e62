"""Models as plain data: the layout of Keras 2's JSON, and what `compile` was called with."""

from __future__ import annotations

import contextvars
import copy
import inspect
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.keras import registry, serialization
from meshflow.keras.engine.saving.keras2_calls import listed_call
from meshflow.keras.engine.saving.keras3_configuration import for_all_versions, from_keras_3
from meshflow.keras.optimizers import legacy
from meshflow.version import KERAS_VERSION

_NESTED = ("Functional", "Model", "Sequential")
# Whether configurations of graphs keep our form of calls, which says more than Keras 2's.
_own_calls: contextvars.ContextVar[bool] = contextvars.ContextVar("own_calls", default=False)


def plain(value: Any) -> Any:
    """What JSON cannot hold, as something it can.

    Args:
      value: an object met while writing JSON.

    Raises:
      TypeError: for an object without a configuration.
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


def to_json(value: Any, **kwargs: Any) -> str:
    """JSON text of a configuration.

    Args:
      value: the configuration.
      **kwargs: arguments of `json.dumps`.
    """
    return json.dumps(value, default=plain, **kwargs)


def data_of(model: Any, own_calls: bool = False) -> Any:
    """A model's configuration as JSON holds it, in the form of Keras 2 in all its versions.

    Args:
      model: the model.
      own_calls: whether calls of layers are in our form.

    Raises:
      NotImplementedError: for a subclass that says not how it is made again.
    """
    if not getattr(model, "_has_config", True):
        raise NotImplementedError(
            f"Model {type(model).__name__} is subclassed: define `get_config` (and `from_config`) to save it."
        )
    token = _own_calls.set(own_calls)
    try:
        return serialization.without_modules(json.loads(to_json(model.get_config())))
    finally:
        _own_calls.reset(token)


def model_config(model: Any) -> dict[str, Any]:
    """A model's class and configuration, in Keras 2's form wherever that can say it.

    Args:
      model: the model.
    """
    config = {
        "class_name": type(model).__name__,
        "config": for_all_versions(data_of(model)),
    }
    name = registry.get_registered_name(type(model))
    return config | ({"registered_name": name} if name != type(model).__name__ else {})


def model_to_json(model: Any, **kwargs: Any) -> str:
    """A model's architecture as JSON text.

    Args:
      model: the model.
      **kwargs: arguments of `json.dumps`.
    """
    content = {"class_name": type(model).__name__, "config": model.get_config()}
    return to_json({**content, "keras_version": KERAS_VERSION, "backend": "jax"}, **kwargs)


# ---- graphs ------------------------------------------------------------------------------


def to_keras(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a graph with its calls as lists of [layer, call, output, arguments], as Keras 2 has them.

    The first call of a nested model is number 1 there, since it was called on its own inputs before. What that form
    cannot say stays as it is.

    Args:
      config: the configuration of a Functional model, in our form.
    """
    if _own_calls.get():
        return config
    config = copy.deepcopy(config)
    for entry in config["layers"]:
        calls = [listed_call(call, entry["class_name"]) for call in entry["inbound_nodes"]]
        if None not in calls:
            entry["inbound_nodes"] = calls
    _shift(config, dict.fromkeys(_nested_with_inputs(config), 1))
    return config


def from_keras(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a graph in which nested models' calls are numbered from 0.

    Args:
      config: that of a Functional model, ours or Keras 2's.
    """
    calls = {e["name"]: len(e["inbound_nodes"]) for e in config["layers"]}
    shifts: dict[str, int] = {}
    for name in _nested_with_inputs(config):
        last = max((place[1] for place in _places(config) if place[0] == name), default=0)
        shifts[name] = -max(0, last - (calls[name] - 1))
    if not any(shifts.values()):
        return config
    config = copy.deepcopy(config)
    _shift(config, shifts)
    return config


def _nested_with_inputs(config: dict[str, Any]) -> list[str]:
    found = []
    for entry in config["layers"]:
        inner = entry.get("config", {})
        inner = inner if isinstance(inner, dict) else {}
        first: dict[str, Any] = next(iter(inner.get("layers", [])), {})
        known = "input_layers" in inner or "batch_input_shape" in first.get("config", {})
        if entry["class_name"] in _NESTED and known:
            found.append(entry["name"])
    return found


def _places(config: dict[str, Any]) -> Iterator[list[Any]]:
    """All references [layer, call, output, ...] of a graph, to read or change."""
    for entry in config["layers"]:
        yield from _references(entry["inbound_nodes"])
    yield from _references(config["input_layers"])
    yield from _references(config["output_layers"])


def _references(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        if (
            len(value) >= 3
            and isinstance(value[0], str)
            and all(type(x) is int for x in value[1:3])
        ):
            yield value
            value = value[3:]
        for item in value:
            yield from _references(item)


def _shift(config: dict[str, Any], shifts: dict[str, int]) -> None:
    for place in _places(config):
        place[1] += shifts.get(place[0], 0)


# ---- compile -----------------------------------------------------------------------------


def compile_arguments(model: Any) -> dict[str, Any] | None:
    """What `compile` was called with, as data.

    Args:
      model: the model.

    Returns:
      Arguments by name; None for a model that is not compiled.
    """
    if not model._is_compiled:
        return None
    return {key: serialization.serialize(v) for key, v in model._compile_arguments.items()}


def training_config(model: Any) -> dict[str, Any] | None:
    """What `compile` was called with, in Keras 2's form.

    Args:
      model: the model.

    Returns:
      Plain values; None for a model that is not compiled, or whose optimizer has no configuration.
    """
    if not model._is_compiled:
        return None
    arguments = dict(model._compile_arguments)
    try:
        del arguments["optimizer"], arguments["jit_compile"]
        arguments["optimizer_config"] = serialization.serialize(model.optimizer)
        return dict(serialization.without_modules(json.loads(to_json(arguments))))
    except (NotImplementedError, TypeError):
        # An optimizer without a configuration is left out; the model still loads, uncompiled.
        return None


# Settings of optimizers that Keras 3 does not know, and Keras 2 has as here when they are not given.
_OF_KERAS_2 = ("decay", "jit_compile", "is_legacy_optimizer")
# Settings that Keras 2 has since 2.11, as they are when nobody set them.
_SINCE_2_11 = {
    **dict.fromkeys(("weight_decay", "ema_overwrite_frequency"), (None,)),
    **{"use_ema": (False,), "ema_momentum": (0.99,)},
    **dict.fromkeys(("jit_compile", "is_legacy_optimizer"), (True, False)),
}
# Optimizers that `.h5` files of Keras 2 name like classes that were registered.
_NAMED_AS_CUSTOM = ("Adafactor", "Lion")
_SCHEDULES = "keras.optimizers.schedules"
_LOSS_SCALING = "tf_keras.src.mixed_precision.loss_scale_optimizer"


def compile_config(training: dict[str, Any], new: bool = False) -> dict[str, Any]:
    """A `training_config` in the form of `.keras` files, which name the module of each class.

    Args:
      training: what `training_config` gave.
      new: whether the optimizer computes as those of Keras 2.11 and later.
    """
    # Keras 3 does not take None for the number of steps.
    config = {k: v for k, v in training.items() if (k, v) != ("steps_per_execution", None)}
    config["optimizer"] = _optimizer(config.pop("optimizer_config"), new)
    for key, module in (
        ("loss", "losses"),
        ("metrics", "metrics"),
        ("weighted_metrics", "metrics"),
    ):
        config[key] = _with_module(config.get(key), f"keras.{module}")
    return config


def hdf5_config(training: dict[str, Any], new: bool) -> dict[str, Any]:
    """A `training_config` in the form of `.h5` files, in which optimizers alone have modules, inside of others.

    Args:
      training: what `training_config` gave.
      new: whether the optimizer computes as those of Keras 2.11 and later.
    """
    entry = training["optimizer_config"]
    if "inner_optimizer" in entry["config"]:
        entry = {k: v for k, v in _optimizer(entry, new).items() if k in ("class_name", "config")}
    elif entry["class_name"] in _NAMED_AS_CUSTOM:
        entry = {**entry, "class_name": f"Custom>{entry['class_name']}"}
    return {**training, "optimizer_config": entry}


def _optimizer(entry: dict[str, Any], new: bool) -> dict[str, Any]:
    """An optimizer with its module, in settings of its version of Keras."""
    settings, name = dict(entry["config"]), entry["class_name"].removesuffix("V3")
    if name == "LossScaleOptimizer":
        name += "V3" if new else ""
        inner = _with_rate(settings["inner_optimizer"], new)
        about = {"module": _LOSS_SCALING, "class_name": name, "registered_name": name}
        return {**about, "config": {**settings, "inner_optimizer": inner}}
    if new:  # Keras 3 asks for that
        settings = {k: v for k, v in settings.items() if k not in _OF_KERAS_2}
    return _with_rate({**entry, "config": settings}, new)


def _with_rate(entry: dict[str, Any], new: bool) -> dict[str, Any]:
    """An optimizer with its module and that of its schedule."""
    kept, name = dict(entry["config"]), entry["class_name"]
    old = name in legacy.__all__ and not new
    if old:
        kept = {k: v for k, v in kept.items() if v not in _SINCE_2_11.get(k, ())}
    rate = kept.get("learning_rate")
    if isinstance(rate, dict) and rate.get("class_name") in registry.FAMILIES["decay"].table:
        named = {k: v for k, v in rate["config"].items() if (k, v) != ("name", None)}
        kept["learning_rate"] = _with_module({**rate, "config": named}, _SCHEDULES)
    return _with_module({**entry, "config": kept}, f"keras.optimizers{'.legacy' if old else ''}")


def _with_module(value: Any, module: str) -> Any:
    if isinstance(value, list):
        return [_with_module(v, module) for v in value]
    if not isinstance(value, dict):
        return value
    if "class_name" in value:
        return {"module": module, "registered_name": None, **value}
    return {k: _with_module(v, module) for k, v in value.items()}


def compile_from_config(model: Any, config: dict[str, Any], custom_objects: Any = None) -> None:
    """Compiles a model as it was.

    Args:
      model: the model.
      config: what `training_config` gave, here or in Keras 2, or a `compile_config` of `.keras` files.
      custom_objects: classes and functions by name.
    """
    losses, metrics = registry.FAMILIES["loss function"], registry.FAMILIES["metric function"]
    config = from_keras_3(config)

    def decode(value: Any, family: registry.Family) -> Any:
        if isinstance(value, dict) and "class_name" in value:
            # tf-keras also names the function that the class wraps.
            config = value.get("config")
            if isinstance(config, dict) and value["class_name"] in family.table:
                settings = {k: v for k, v in config.items() if k != "fn"}
                if "fn" in inspect.signature(family.table[value["class_name"]]).parameters:
                    settings["fn"] = decode(config.get("fn"), family)
                    if isinstance(settings["fn"], str):
                        settings["fn"] = family.get(settings["fn"], custom_objects)
                value = {**value, "config": settings}
            return family.deserialize(value, custom_objects)
        if isinstance(value, dict):
            return {k: decode(v, family) for k, v in value.items()}
        if isinstance(value, str):
            # Later, when training matches losses to outputs, `custom_objects` is no longer known.
            found = registry.get_registered_object(value, custom_objects)
            return value if found is None else family.get(found)
        return [decode(v, family) for v in value] if isinstance(value, list) else value

    # Keras 3 forgets the optimizer of a model that it has saved as .h5 before.
    optimizer = config.get("optimizer_config", config.get("optimizer", "rmsprop"))
    if isinstance(optimizer, dict):
        optimizer = registry.OPTIMIZERS.deserialize(optimizer, custom_objects)
    kept = ("loss_weights", "steps_per_execution", "run_eagerly")
    model.compile(
        optimizer,
        loss=decode(config.get("loss"), losses),
        metrics=decode(_unwrapped(config.get("metrics"), model), metrics),
        weighted_metrics=decode(_unwrapped(config.get("weighted_metrics"), model), metrics),
        **{key: config.get(key) for key in kept},
    )


def _unwrapped(value: Any, model: Any) -> Any:
    """Keras 2 writes the metrics of a model with one output as a list in a list."""
    one = isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)
    return value[0] if one and len(getattr(model, "outputs", None) or [1]) == 1 else value
