"""Models in the form of Keras 3's files, where no form exists that both Keras 2 and Keras 3 read.

Every class is named with its module, calls of layers describe tensors by objects, and settings that
Keras 3 does not know are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshflow.environment.types import Config, Json
from meshflow.keras import registry
from meshflow.keras.engine.graph.graph import get_graph
from meshflow.keras.engine.saving.keras3_configuration import (
    KERAS_3_ACTIVATION_NAMES,
    to_common_form,
)
from meshflow.keras.engine.saving.keras3_operations import make_operation_entry
from meshflow.keras.engine.saving.model_configuration import to_plain_config

if TYPE_CHECKING:
    from meshflow.keras.engine.graph.graph import LayerGraph
    from meshflow.keras.engine.layer.base_layer import Layer
    from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor

# Version of Keras that the files declare.
FILE_VERSION = "3.0.0"

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
_MODEL_CLASSES = {"Functional": "Model", "Model": "Model", "Sequential": "Sequential"}
# Classes that Keras 3 does not have.
_MISSING_CLASSES = frozenset(
    [
        *(
            "AbstractRNNCell",
            "AddLoss",
            "AddMetric",
            "DenseFeatures",
            "LocallyConnected1D",
            "LocallyConnected2D",
        ),
        *("MixtureOfExperts", "RandomFourierFeatures", "RandomHeight", "RandomWidth", "Stage"),
        *("SyncBatchNormalization", "ThresholdedReLU", "MeanRelativeError", "MeanTensor"),
        *("RadialConstraint", "AdaScale", "OneBitAdam", "LearningRateRangeTest", "OneCycle"),
        *("WarmupSchedule", "LossFunctionWrapper", "JaxLayer", "FlaxLayer"),
    ]
)
# Settings that Keras 3's class of the same name does not accept.
_DROPPED_SETTINGS: dict[str, tuple[str, ...]] = {
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
_RENAMED_SETTINGS = {
    "InputLayer": {"batch_input_shape": "batch_shape"},
    "LeakyReLU": {"alpha": "negative_slope"},
}
_KERAS_2_OPTIMIZER_SETTINGS = ("decay", "jit_compile", "is_legacy_optimizer")


def make_model_config(model: Layer) -> Config:
    """Return a model's class and configuration in Keras 3's form.

    Args:
      model: The model.

    Raises:
      ValueError: if Keras 3 does not have a layer, or an op between layers.
    """
    config = to_common_form(to_plain_config(model, own_calls=True))
    entry = {"class_name": type(model).__name__, "config": config}
    name = registry.get_registered_name(type(model))
    if name != type(model).__name__:
        entry["registered_name"] = name
    graphs = {m.name: get_graph(m) for m in _iterate_models(model)}
    return _Keras3Serializer(graphs).serialize(entry, ("layer",))


def _iterate_models(model: Layer) -> Iterator[Any]:
    for part in (model, *model.submodules):
        if hasattr(part, "_get_graph"):
            yield part


class _Keras3Serializer:
    """Converter of a model's configuration to Keras 3's form.

    Args:
      graphs: Graphs of the model and of its nested models by name, which hold the shapes of
        tensors.
    """

    def __init__(self, graphs: dict[str, LayerGraph | None]) -> None:
        self._graphs = graphs

    def serialize(self, value: Json, families: tuple[str, ...]) -> Json:
        """Convert a part of a configuration.

        Args:
          value: The part in Keras 2's form.
          families: Families of classes (such as "layer") that may occur in it, the most likely one
            first.
        """
        if isinstance(value, list):
            return [self.serialize(item, families) for item in value]
        if not isinstance(value, dict):
            return value
        if not isinstance(value.get("class_name"), str) or "config" not in value:
            return {key: self.serialize(item, families) for key, item in value.items()}
        return self._serialize_object(value, families)

    def _serialize_object(self, value: Config, families: tuple[str, ...]) -> Config:
        name, config = value["class_name"], value["config"]
        if name.startswith("__"):
            return value
        if value.get("registered_name") or (module := _find_module(name, families)) is None:
            registered = value.get("registered_name") or name
            cls = registry.get_registered_object(registered)
            module = getattr(cls, "__module__", None)
        else:
            registered = None
            config = _convert_settings(name, config)
        if isinstance(config, dict):
            config = (
                self._serialize_graph(config)
                if "input_layers" in config
                else self._serialize_settings(config)
            )
        rest = {key: v for key, v in value.items() if key != "inbound_nodes"}
        class_name = _MODEL_CLASSES.get(name, name) if module == "keras" else name
        return {
            **rest,
            "module": module,
            "class_name": class_name,
            "config": config,
            "registered_name": registered,
        }

    def _serialize_settings(self, config: Config) -> Config:
        return {key: self.serialize(value, tuple(_MODULES)) for key, value in config.items()}

    def _serialize_graph(self, config: Config) -> Config:
        graph = self._graphs.get(config["name"])
        tensors = {} if graph is None else graph.get_tensors_by_key()
        layers = []
        for entry in config["layers"]:
            calls = [_serialize_call(call, tensors) for call in entry["inbound_nodes"]]
            layers.append(
                make_operation_entry(entry, calls)
                or {**self._serialize_object(entry, ("layer",)), "inbound_nodes": calls}
            )
        return {**config, "layers": layers}


def _find_module(name: str, families: tuple[str, ...]) -> str | None:
    """Return the module of a built-in class in Keras 3, or None for another class."""
    if name in _MODEL_CLASSES:
        return "keras"
    for family in families:
        cls = registry.REGISTRIES[family].table.get(name)
        module = getattr(cls, "module", None) or getattr(cls, "__module__", "")
        if str(module).startswith("meshflow."):
            if name in _MISSING_CLASSES:
                raise ValueError(
                    f"Keras 3 has no {family} {name}: save the model without keras_version=3, or replace that part."
                )
            return _MODULES[family]
    return None


def _convert_settings(name: str, config: Json) -> Json:
    if not isinstance(config, dict):
        return config
    names = _RENAMED_SETTINGS.get(name, {})
    dropped = _DROPPED_SETTINGS.get(name, ())
    if config.get("time_major") or (name.startswith("ConvLSTM") and config.get("unroll")):
        raise ValueError(
            f"Layer {config.get('name')!r}: Keras 3's {name} supports neither time_major nor unroll here. Create the "
            "layer without them."
        )
    settings = {names.get(key, key): value for key, value in config.items() if key not in dropped}
    if settings.get("name", "") is None:  # Keras 3 gives schedules default names of its own.
        del settings["name"]
    for key in ("activation", "recurrent_activation"):
        if settings.get(key) == "hard_sigmoid":
            raise ValueError(
                f"Layer {config.get('name')!r}: hard_sigmoid is another function in Keras 3. Use "
                "tf.keras.ops.hard_sigmoid, which equals that function, or save the model without keras_version=3."
            )
        if key in settings:
            settings[key] = KERAS_3_ACTIVATION_NAMES.get(settings[key], settings[key])
    if name == "Lambda" and isinstance(settings["function"], list):
        code = dict(zip(("code", "defaults", "closure"), settings["function"], strict=True))
        settings["function"] = {"class_name": "__lambda__", "config": code}
    return settings


# ---- calls -------------------------------------------------------------------------------


def _serialize_call(
    call: dict[str, Any], tensors: dict[tuple[Any, ...], KerasTensor]
) -> dict[str, Any]:
    """Convert a call of a layer; tensors become objects with shape and dtype."""

    def serialize(value: Json) -> Json:
        if isinstance(value, list):
            return [serialize(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner), *more) = value.items()
        if kind == "keras_tensor":
            tensor = tensors[tuple(inner)]
            about = {"shape": tensor.shape.as_list(), "dtype": tensor.dtype.name}
            return {"class_name": "__keras_tensor__", "config": {**about, "keras_history": inner}}
        if kind in ("list", "tuple"):
            return [serialize(item) for item in inner]
        if kind == "mapping":
            return {key: serialize(item) for key, item in inner.items()}
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
        "args": [serialize(value) for value in call["args"]],
        "kwargs": {key: serialize(value) for key, value in call["kwargs"].items()},
    }


# ---- compile -----------------------------------------------------------------------------


def to_compile_config(training: Config) -> Config:
    """Convert a training configuration to the form of Keras 3's `.keras` files.

    Args:
      training: Result of `model_configuration.get_training_config`.

    Raises:
      ValueError: if Keras 3 does not have the optimizer, a loss or a metric.
    """
    config = {k: v for k, v in training.items() if (k, v) != ("steps_per_execution", None)}
    config["optimizer"] = _serialize_optimizer(config.pop("optimizer_config"))
    for key, family in _TRAINING_FAMILIES.items():
        config[key] = _Keras3Serializer({}).serialize(
            _replace_auto_reduction(config.get(key)), (family,)
        )
    return config


_TRAINING_FAMILIES = {
    "loss": "loss function",
    "metrics": "metric function",
    "weighted_metrics": "metric function",
}


def to_training_config(training: Config) -> Config:
    """Convert a training configuration to the form of Keras 3's `.h5` files.

    Keras 3 cannot find short names such as 'mse' in these files, so they are replaced by classes.

    Args:
      training: Result of `model_configuration.get_training_config`.
    """
    config = to_compile_config(training)
    config["optimizer_config"] = config.pop("optimizer")
    for key, family in _TRAINING_FAMILIES.items():
        config[key] = _resolve_class_names(config[key], family)
    return config


def _resolve_class_names(value: Json, family: str) -> Json:
    """Replace the short names of functions, such as 'mse', by their classes."""
    if isinstance(value, list):
        return [_resolve_class_names(item, family) for item in value]
    if isinstance(value, dict) and "class_name" not in value:
        return {key: _resolve_class_names(item, family) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    table = registry.REGISTRIES[family].table
    function = table.get(value)
    function_name = getattr(function, "__name__", "").replace("_", "").lower()
    class_names = [
        k
        for k, v in table.items()
        if isinstance(v, type) and k.lower() == function_name and k[0].isupper()
    ]
    if not class_names:
        return value
    settings = {} if family == "loss function" else {"name": value}
    identifiers = {"module": _MODULES[family], "class_name": class_names[0]}
    return {**identifiers, "config": settings, "registered_name": None}


def _replace_auto_reduction(value: Json) -> Json:
    """Replace the reduction 'auto' of losses by the one that it means."""
    if isinstance(value, list):
        return [_replace_auto_reduction(item) for item in value]
    if not isinstance(value, dict):
        return value
    converted = {key: _replace_auto_reduction(item) for key, item in value.items()}
    return converted | (
        {"reduction": "sum_over_batch_size"} if converted.get("reduction") == "auto" else {}
    )


def _serialize_optimizer(entry: Config) -> Config:
    """Convert the entry of an optimizer; the setting `decay` becomes a learning-rate schedule.

    Raises:
      ValueError: if the optimizer has a fixed loss scale.
    """
    config = entry["config"]
    settings = {k: v for k, v in config.items() if k not in _KERAS_2_OPTIMIZER_SETTINGS}
    if "inner_optimizer" in config:
        settings["inner_optimizer"] = _serialize_optimizer(config["inner_optimizer"])
        if not settings.pop("dynamic", True):
            raise ValueError(
                "Keras 3's LossScaleOptimizer has no dynamic=False: save the model without keras_version=3, or use a "
                "dynamic loss scale."
            )
    if config.get("decay"):
        rate = {"initial_learning_rate": settings["learning_rate"], "decay_steps": 1}
        rate |= {"decay_rate": config["decay"], "staircase": False, "name": "InverseTimeDecay"}
        settings["learning_rate"] = {"class_name": "InverseTimeDecay", "config": rate}
    name = entry["class_name"].removeprefix("Custom>").removeprefix("legacy.").removesuffix("V3")
    return _Keras3Serializer({}).serialize(
        {**entry, "class_name": name, "config": settings}, ("optimizer",)
    )
