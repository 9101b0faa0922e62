"""`tf.keras.models`: model classes, and functions that save, load and clone models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras import registry, serialization
from meshflow.keras.engine.graph.graph import get_graph
from meshflow.keras.engine.graph.input_layer import Input, InputLayer
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.default_config import is_default
from meshflow.keras.engine.models.functional import Functional
from meshflow.keras.engine.models.model import Model, takes_graph
from meshflow.keras.engine.models.sequential import Sequential, attach_layers
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.registry import CustomObjects
from meshflow.keras.saving import (
    load_model,
    model_from_config,
    model_from_json,
    save_model,
)

__all__ = [
    "Functional",
    "Model",
    "Sequential",
    "clone_model",
    "load_model",
    "model_from_config",
    "model_from_json",
    "model_from_yaml",
    "save_model",
]


registry.LAYERS.add(Functional, Model, Sequential)


def model_from_yaml(yaml_string: str, custom_objects: CustomObjects = None) -> Model:
    """Raise an error: `model_from_yaml` was removed because YAML can call any Python function.

    Args:
      yaml_string: Ignored.
      custom_objects: Ignored.

    Raises:
      RuntimeError: Always; the message names `model_from_json`.

    Example:
      >>> tf.keras.models.model_from_yaml("")
      Traceback (most recent call last):
      RuntimeError: model_from_yaml was removed because YAML can run code: use model_from_json.
    """
    raise RuntimeError(
        "model_from_yaml was removed because YAML can run code: use model_from_json."
    )


def clone_model(
    model: object,
    input_tensors: PyTree = None,
    clone_function: Callable[[Layer], Layer] | None = None,
) -> Model:
    """Create a model of the same structure with new weights.

    Args:
      model: The model. A model of a custom class is created from its configuration, without the
        other arguments.
      input_tensors: Inputs of the clone: symbolic tensors, or other tensors, of which only shape
        and dtype are used. By default the clone has its own inputs.
      clone_function: Function that is called with each layer and returns the layer of the clone.

    Raises:
      ValueError: If `model` is not a model, if the number of tensors differs from the number of
        inputs, if `clone_function` is not callable, or if one of them is passed for a model of a
        custom class.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> clone = tf.keras.models.clone_model(model)
      >>> clone.layers[0].units, clone.layers[0].kernel is model.layers[0].kernel
      (2, False)
      >>> x = tf.keras.Input([3])
      >>> tf.keras.models.clone_model(model, x).inputs[0] is x
      True
    """
    if not isinstance(model, (Sequential, Functional)):
        return _clone_custom_model(model, input_tensors, clone_function)
    if clone_function is not None and not callable(clone_function):
        raise ValueError(
            f"Expected `clone_function` argument to be a callable. Received: clone_function={clone_function}"
        )
    with serialization.mark_objects():
        config = model.get_config()
    originals = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
    if clone_function is None:
        # A class that is not registered cannot be found by its name in the configuration.
        originals = [layer for layer in originals if _find_unregistered(layer, *layer.submodules)]
    layers: dict[str, Any] = {
        layer.name: (clone_function or _clone_layer)(layer) for layer in originals
    }
    if input_tensors is not None:
        tensors = [_to_symbolic(tensor) for tensor in nest.flatten(input_tensors)]
        # A Sequential model has one input even before it is built.
        inputs: list[Any] = [None] if isinstance(model, Sequential) else nest.flatten(model.inputs)
        if len(inputs) != len(tensors):
            raise ValueError(
                f"clone_model: model {model.name!r} has {len(inputs)} input(s), got {len(tensors)} `input_tensors`."
            )
        if isinstance(model, Sequential):
            return _clone_sequential(cast(KerasTensor, tensors[0]), model, config, layers)
        names = [tensor.node.layer.name for tensor in inputs]
        layers |= {name: _TensorInput(tensor) for name, tensor in zip(names, tensors, strict=True)}
    if isinstance(model, Sequential):
        # Configurations of layers may lack the name.
        entries = [e for e in config["layers"] if e["class_name"] != "InputLayer"]
        for entry, layer in zip(entries, model.layers, strict=False):
            entry["name"] = layer.name
    with registry.LAYERS.replace_layers(layers):
        return type(model).from_config(config)


def _find_unregistered(*parts: object) -> dict[str, type]:
    """Return the classes of layers that a configuration does not find by their names."""
    classes = {type(part) for part in parts if isinstance(part, Layer)}
    return {
        c.__name__: c
        for c in classes
        if registry.LAYERS.find(registry.get_registered_name(c)) is not c
    }


def _clone_layer(layer: Layer) -> Layer:
    """Clone a layer of a class that is not registered, or with sublayers of such classes."""
    if isinstance(layer, (Sequential, Functional)):
        return clone_model(layer)
    with registry.custom_object_scope(_find_unregistered(*layer.submodules)):
        clone: Layer = type(layer).from_config(layer.get_config())
    return clone


def _clone_custom_model(
    model: object, input_tensors: PyTree, clone_function: Callable[[Layer], Layer] | None
) -> Model:
    """Clone a model that is neither Sequential nor Functional."""
    if not isinstance(model, Model):
        raise ValueError(
            f"Expected `model` argument to be a `Model` instance. Received: model={model!r}"
        )
    if model.outputs is not None and is_default(type(model).get_config):
        graph = Functional(model.input, model.output, name=model.name)
        _copy_attached(model, graph)
        clone = clone_model(graph, input_tensors, clone_function)
        if not takes_graph(type(model)):
            return clone
        result = type(model)(inputs=clone.input, outputs=clone.output, name=model.name)
        _copy_attached(clone, result)
        return result
    if input_tensors is not None or clone_function is not None:
        raise ValueError(
            "Arguments `clone_function` and `input_tensors` are only supported for Sequential models or Functional "
            f"models. Received model of type {type(model).__name__!r}, with clone_function={clone_function!r} and "
            f"input_tensors={input_tensors!r}"
        )
    return cast(Model, type(model).from_config(model.get_config()))


def _copy_attached(model: Model, target: Model) -> None:
    """Attach a model's losses and metrics between layers to another model of the same tensors."""
    source, graph = get_graph(model), get_graph(target)
    if source is not None and graph is not None:
        graph.attach(source.attached)


class _TensorInput:
    """Replacement of an input layer with an existing tensor as its output."""

    def __init__(self, tensor: Tensor) -> None:
        self.flat_outputs = [tensor]
        self.inbound_nodes = [self]


def _to_symbolic(tensor: TensorLike) -> Tensor:
    """Return a symbolic tensor, or an input with the shape and dtype of another tensor."""
    if isinstance(tensor, KerasTensor):
        return tensor
    tensor = convert_to_tensor(tensor)
    return Input(batch_shape=tuple(tensor.shape.as_list()), dtype=tensor.dtype)


def _clone_sequential(
    tensor: KerasTensor, model: Sequential, config: Config, replacements: dict[str, Any]
) -> Model:
    """Clone a Sequential model on the output of an input layer."""
    first = tensor._keras_history.layer
    if not isinstance(first, InputLayer):
        raise ValueError(
            f"Cannot clone a `Sequential` on the output of layer {first.name!r}: pass a `keras.Input`, or call the clone on "
            "the tensor."
        )
    entries = [entry for entry in config["layers"] if entry["class_name"] != "InputLayer"]
    with registry.LAYERS.replace_layers(replacements):
        layers = [registry.LAYERS.deserialize(entry) for entry in entries]
    clone = type(model)([first, *layers], name=model.name)
    attach_layers(clone, config)
    return clone


_hide_frames(globals())

__getattr__ = _explain_names(
    "tf.keras.models", {"experimental": "meshflow.keras.models_experimental"}
)
