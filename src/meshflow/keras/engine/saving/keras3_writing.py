"""Whole models in the form of Keras 3's files, where no other form says what Keras 2 and 3 both read.

Every class is named with its module, calls of layers name tensors by objects of their own, and settings that Keras 3
does not know are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshflow.keras import registry
from meshflow.keras.engine.saving.configuration import data_of
from meshflow.keras.engine.saving.keras3_configuration import OTHERWISE_IN_KERAS_3, for_all_versions
from meshflow.keras.engine.saving.keras3_operations import operation

__all__ = ["VERSION", "compile_config", "model_config", "training_config"]

# What files say that they are of.
VERSION = "3.0.0"

_MODULES = {
    "layer": "keras.layers",
    "initializer": "keras.initializers",
    "regularizer": "keras.regularizers",
    "constraint": "keras.constraints",
    "loss function": "keras.losses",
    "metric function": "keras.metrics",
    "optimizer": "keras.optimizers",
    "decay": "keras.optimizers.schedules",
}
_MODELS = {"Functional": "Model", "Model": "Model", "Sequential": "Sequential"}
# What Keras 3 has no class for.
_NOT_THERE = frozenset(
    [
        *("AbstractRNNCell", "DenseFeatures", "LocallyConnected1D", "LocallyConnected2D"),
        *("MixtureOfExperts", "RandomFourierFeatures", "RandomHeight", "RandomWidth", "Stage"),
        *("SyncBatchNormalization", "ThresholdedReLU", "MeanRelativeError", "MeanTensor"),
        *("RadialConstraint", "AdaScale", "OneBitAdam", "LearningRateRangeTest", "OneCycle"),
        *("WarmupSchedule", "LossFunctionWrapper", "JaxLayer", "FlaxLayer"),
    ]
)
# Settings that Keras 3's class of the name does not take.
_DROPPED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D"), ("groups",)),
    **dict.fromkeys(("GRU", "LSTM", "GRUCell", "LSTMCell"), ("implementation",)),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), ("unroll",)),
    **dict.fromkeys(
        ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"), ("noise_shape", "trainable")
    ),
    "Discretization": ("trainable",),
    "Lambda": ("function_type", "module", "output_shape_type", "output_shape_module"),
    "BinaryCrossentropy": ("axis",),
    "Embedding": ("batch_input_shape", "input_length"),
    "MultiHeadAttention": ("query_shape", "key_shape", "value_shape"),
    "TextVectorization": ("vocabulary_size",),
}
_RENAMED = {
    "InputLayer": {"batch_input_shape": "batch_shape"},
    "LeakyReLU": {"alpha": "negative_slope"},
}
_OF_OPTIMIZERS_BEFORE = ("decay", "jit_compile", "is_legacy_optimizer")


def model_config(model: Any) -> dict[str, Any]:
    """A model's class and configuration.

    Args:
      model: the model.

    Raises:
      ValueError: for a layer, or an op between layers, that Keras 3 does not have.
    """
    config = for_all_versions(data_of(model, own_calls=True))
    entry = {"class_name": type(model).__name__, "config": config}
    name = registry.get_registered_name(type(model))
    if name != type(model).__name__:
        entry["registered_name"] = name
    graphs = {m.name: m._current_graph() for m in _models(model)}
    return _Writer(graphs).written(entry, ("layer",))


def _models(model: Any) -> Iterator[Any]:
    for part in (model, *model.submodules):
        if hasattr(part, "_current_graph"):
            yield part


class _Writer:
    """Writes objects of a model.

    Args:
      graphs: of the model and those inside, by their names; they tell the shapes of tensors.
    """

    def __init__(self, graphs: dict[str, Any]) -> None:
        self._graphs = graphs

    def written(self, value: Any, families: tuple[str, ...]) -> Any:
        """A part of a configuration.

        Args:
          value: as Keras 2 has it.
          families: kinds of things that a class may be of, the likeliest first.
        """
        if isinstance(value, list):
            return [self.written(item, families) for item in value]
        if not isinstance(value, dict):
            return value
        if not isinstance(value.get("class_name"), str) or "config" not in value:
            return {key: self.written(item, families) for key, item in value.items()}
        return self._object(value, families)

    def _object(self, value: dict[str, Any], families: tuple[str, ...]) -> dict[str, Any]:
        name, config = value["class_name"], value["config"]
        if name.startswith("__"):
            return value
        if value.get("registered_name") or (home := _home(name, families)) is None:
            registered = value.get("registered_name") or name
            known = registry.get_registered_object(registered)
            home = getattr(known, "__module__", None)
        else:
            registered = None
            config = _settings(name, config)
        if isinstance(config, dict):
            config = self._graph(config) if "input_layers" in config else self._inside(config)
        found = {key: v for key, v in value.items() if key != "inbound_nodes"}
        public = _MODELS.get(name, name) if home == "keras" else name
        return {
            **found,
            "module": home,
            "class_name": public,
            "config": config,
            "registered_name": registered,
        }

    def _inside(self, config: dict[str, Any]) -> dict[str, Any]:
        return {key: self.written(value, tuple(_MODULES)) for key, value in config.items()}

    def _graph(self, config: dict[str, Any]) -> dict[str, Any]:
        graph = self._graphs.get(config["name"])
        tensors = {} if graph is None else graph.tensors_by_place()
        layers = []
        for entry in config["layers"]:
            calls = [_call(call, tensors) for call in entry["inbound_nodes"]]
            made = operation(entry, calls) or {
                **self._object(entry, ("layer",)),
                "inbound_nodes": calls,
            }
            layers.append(made)
        return {**config, "layers": layers}


def _home(name: str, families: tuple[str, ...]) -> str | None:
    """The module of a class of Keras', or None for another."""
    if name in _MODELS:
        return "keras"
    for family in families:
        known = registry.FAMILIES[family].table.get(name)
        module = getattr(known, "module", None) or getattr(known, "__module__", "")
        if str(module).startswith("meshflow."):
            if name in _NOT_THERE:
                raise ValueError(
                    f"Keras 3 has no {family} {name}: save the model without keras_version=3, or without that part."
                )
            return _MODULES[family]
    return None


def _settings(name: str, config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    names = _RENAMED.get(name, {})
    dropped = _DROPPED.get(name, ())
    if config.get("time_major") or (name.startswith("ConvLSTM") and config.get("unroll")):
        raise ValueError(
            f"Layer {config.get('name')!r}: Keras 3's {name} has neither time_major nor unroll here; make it without."
        )
    found = {names.get(key, key): value for key, value in config.items() if key not in dropped}
    if found.get("name", "") is None:  # of schedules; Keras 3 has names of its own
        del found["name"]
    for key in ("activation", "recurrent_activation"):
        if found.get(key) == "hard_sigmoid":
            raise ValueError(
                f"Layer {config.get('name')!r}: hard_sigmoid is another function in Keras 3. Use "
                "tf.keras.ops.hard_sigmoid, which is that one, or save the model without keras_version=3."
            )
        if key in found:
            found[key] = OTHERWISE_IN_KERAS_3.get(found[key], found[key])
    if name == "Lambda" and isinstance(found["function"], list):
        code = dict(zip(("code", "defaults", "closure"), found["function"], strict=True))
        found["function"] = {"class_name": "__lambda__", "config": code}
    return found


# ---- calls -------------------------------------------------------------------------------


def _call(call: dict[str, Any], tensors: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    """A call of a layer, in which tensors are objects with shape and dtype."""

    def written(value: Any) -> Any:
        if isinstance(value, list):
            return [written(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner), *more) = value.items()
        if kind == "keras_tensor":
            tensor = tensors[tuple(inner)]
            about = {"shape": tensor.shape.as_list(), "dtype": tensor.dtype.name}
            return {"class_name": "__keras_tensor__", "config": {**about, "keras_history": inner}}
        if kind in ("list", "tuple"):
            return [written(item) for item in inner]
        if kind == "mapping":
            return {key: written(item) for key, item in inner.items()}
        if kind == "constant":
            return {
                "class_name": "__tensor__",
                "config": {"value": inner, "dtype": dict(more)["of"]},
            }
        if kind == "slice":
            ends = dict(zip(("start", "stop", "step"), inner, strict=True))
            return {"class_name": "__slice__", "config": ends}
        if kind == "ellipsis":
            return {"class_name": "__ellipsis__", "config": {}}
        return inner if kind == "dtype" else value

    return {
        "args": [written(value) for value in call["args"]],
        "kwargs": {key: written(value) for key, value in call["kwargs"].items()},
    }


# ---- compile -----------------------------------------------------------------------------


def compile_config(training: dict[str, Any]) -> dict[str, Any]:
    """What `compile` was called with, as `.keras` files of Keras 3 have it.

    Args:
      training: what `configuration.training_config` gave.

    Raises:
      ValueError: for an optimizer, loss or metric that Keras 3 does not have.
    """
    config = {k: v for k, v in training.items() if (k, v) != ("steps_per_execution", None)}
    config["optimizer"] = _optimizer(config.pop("optimizer_config"))
    for key, family in _OF_TRAINING.items():
        config[key] = _Writer({}).written(_reduced(config.get(key)), (family,))
    return config


_OF_TRAINING = {
    "loss": "loss function",
    "metrics": "metric function",
    "weighted_metrics": "metric function",
}


def training_config(training: dict[str, Any]) -> dict[str, Any]:
    """The same as `.h5` files have it; Keras 3 does not find short names such as 'mse' in these.

    Args:
      training: what `configuration.training_config` gave.
    """
    config = compile_config(training)
    config["optimizer_config"] = config.pop("optimizer")
    for key, family in _OF_TRAINING.items():
        config[key] = _classes_of_names(config[key], family)
    return config


def _classes_of_names(value: Any, family: str) -> Any:
    if isinstance(value, list):
        return [_classes_of_names(item, family) for item in value]
    if isinstance(value, dict) and "class_name" not in value:
        return {key: _classes_of_names(item, family) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    table = registry.FAMILIES[family].table
    function = table.get(value)
    plain = getattr(function, "__name__", "").replace("_", "").lower()
    named = [
        k for k, v in table.items() if isinstance(v, type) and k.lower() == plain and k[0].isupper()
    ]
    if not named:
        return value
    settings = {} if family == "loss function" else {"name": value}
    about = {"module": _MODULES[family], "class_name": named[0]}
    return {**about, "config": settings, "registered_name": None}


def _reduced(value: Any) -> Any:
    """Losses with the reduction that 'auto' means."""
    if isinstance(value, list):
        return [_reduced(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _reduced(item) for key, item in value.items()}
    return found | (
        {"reduction": "sum_over_batch_size"} if found.get("reduction") == "auto" else {}
    )


def _optimizer(entry: dict[str, Any]) -> dict[str, Any]:
    """An optimizer; what `decay` meant is a schedule.

    Raises:
      ValueError: for a loss scale that does not move.
    """
    config = entry["config"]
    settings = {k: v for k, v in config.items() if k not in _OF_OPTIMIZERS_BEFORE}
    if "inner_optimizer" in config:
        settings["inner_optimizer"] = _optimizer(config["inner_optimizer"])
        if not settings.pop("dynamic", True):
            raise ValueError(
                "Keras 3's LossScaleOptimizer has no dynamic=False: save the model without keras_version=3, or with "
                "a loss scale that moves."
            )
    if config.get("decay"):
        rate = {"initial_learning_rate": settings["learning_rate"], "decay_steps": 1}
        rate |= {"decay_rate": config["decay"], "staircase": False, "name": "InverseTimeDecay"}
        settings["learning_rate"] = {"class_name": "InverseTimeDecay", "config": rate}
    name = entry["class_name"].removeprefix("Custom>").removeprefix("legacy.").removesuffix("V3")
    return _Writer({}).written({**entry, "class_name": name, "config": settings}, ("optimizer",))
