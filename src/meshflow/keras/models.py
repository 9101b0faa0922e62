"""`tf.keras.models`."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.keras import registry
from meshflow.keras.engine.graph.input_layer import Input, InputLayer
from meshflow.keras.engine.layer.made_with import is_default
from meshflow.keras.engine.models.functional import Functional
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.sequential import Sequential
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
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


def model_from_yaml(yaml_string: str, custom_objects: Any = None) -> Model:
    """Is no more: YAML can name any function of Python.

    Args:
      yaml_string: an architecture.
      custom_objects: classes and functions by name.

    Raises:
      RuntimeError: always, naming `model_from_json`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.models.model_from_yaml("")
      Traceback (most recent call last):
      RuntimeError: model_from_yaml is not there any more, as YAML may run code: use to_json and model_from_json.
    """
    raise RuntimeError(
        "model_from_yaml is not there any more, as YAML may run code: use to_json and model_from_json."
    )


def clone_model(model: Any, input_tensors: Any = None, clone_function: Any = None) -> Model:
    """A model of the same structure with new weights.

    Args:
      model: a model; one of a class of its own is made again by its configuration, without what follows.
      input_tensors: what the clone begins with instead of inputs of its own: symbolic tensors, or others, of which
        shape and dtype count.
      clone_function: called with each layer, returns the layer to put in its place.

    Returns:
      A model.

    Raises:
      ValueError: for something else than a model, another number of tensors than the model has inputs, a
        `clone_function` that is none, and either for a model of a class of its own.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> clone = tf.keras.models.clone_model(model)
      >>> clone.layers[0].units, clone.layers[0].kernel is model.layers[0].kernel
      (2, False)
      >>> x = tf.keras.Input([3])
      >>> tf.keras.models.clone_model(model, x).inputs[0] is x
      True
    """
    if not isinstance(model, (Sequential, Functional)):
        return _of_own_class(model, input_tensors, clone_function)
    if clone_function is not None and not callable(clone_function):
        raise ValueError(
            f"Expected `clone_function` argument to be a callable. Received: clone_function={clone_function}"
        )
    config = model.get_config()
    made: dict[Any, Any] = {}
    if clone_function is not None:
        own = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
        made = {layer.name: clone_function(layer) for layer in own}
    if input_tensors is not None:
        given = [_symbolic(tensor) for tensor in nest.flatten(input_tensors)]
        # A sequence has one input, also before it is known.
        inputs: list[Any] = [None] if isinstance(model, Sequential) else nest.flatten(model.inputs)
        if len(inputs) != len(given):
            raise ValueError(
                f"clone_model: model {model.name!r} has {len(inputs)} input(s), got {len(given)} `input_tensors`."
            )
        if isinstance(model, Sequential):
            return _begun_with(given[0], model, config, made)
        names = [tensor._keras_history.layer.name for tensor in inputs]
        made |= {name: _Begun(tensor) for name, tensor in zip(names, given, strict=True)}
    with registry.LAYERS.replaced(made):
        return type(model).from_config(config)


def _of_own_class(model: Any, input_tensors: Any, clone_function: Any) -> Model:
    """A clone of a model that is of neither class of Keras'."""
    if not isinstance(model, Model):
        raise ValueError(
            f"Expected `model` argument to be a `Model` instance. Received: model={model!r}"
        )
    if model.outputs is not None and is_default(type(model).get_config):
        graph = Functional(model.input, model.output, name=model.name)
        return clone_model(graph, input_tensors, clone_function)
    if input_tensors is not None or clone_function is not None:
        raise ValueError(
            "Arguments `clone_function` and `input_tensors` are only supported for Sequential models or Functional "
            f"models. Received model of type {type(model).__name__!r}, with clone_function={clone_function!r} and "
            f"input_tensors={input_tensors!r}"
        )
    made: Model = type(model).from_config(model.get_config())
    return made


class _Begun:
    """Stands for an input layer whose output is a tensor that there is."""

    def __init__(self, tensor: Any) -> None:
        self.flat_outputs = [tensor]
        self._inbound_nodes = [self]


def _symbolic(tensor: Any) -> Any:
    """A symbolic tensor; for others an input of their shape."""
    if isinstance(tensor, KerasTensor):
        return tensor
    tensor = convert_to_tensor(tensor)
    return Input(batch_shape=tuple(tensor.shape.as_list()), dtype=tensor.dtype)


def _begun_with(tensor: Any, model: Any, config: Any, made: dict[Any, Any]) -> Model:
    """A clone of a sequence that begins with a symbolic tensor's input layer."""
    first = tensor._keras_history.layer
    if not isinstance(first, InputLayer):
        raise ValueError(
            f"Cannot clone a `Sequential` on a tensor that layer {first.name!r} makes: begin with a `keras.Input`, or call "
            "the clone on the tensor."
        )
    own = [entry for entry in config["layers"] if entry["class_name"] != "InputLayer"]
    with registry.LAYERS.replaced(made):
        layers = [registry.LAYERS.deserialize(entry) for entry in own]
    return type(model)([first, *layers], name=model.name)
