"""`tf.keras.models`."""

from __future__ import annotations

from typing import Any

from meshflow.keras import registry
from meshflow.keras.engine.models.functional import Functional
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.sequential import Sequential
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
      model: a Sequential or Functional model.
      input_tensors: not supported.
      clone_function: called with each layer, returns the layer to put in its place.

    Returns:
      A model.

    Raises:
      ValueError: for a subclassed model.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
      >>> clone = tf.keras.models.clone_model(model)
      >>> clone.layers[0].units, clone.layers[0].kernel is model.layers[0].kernel
      (2, False)
    """
    if input_tensors is not None:
        raise NotImplementedError(
            "clone_model(input_tensors=...) is not supported: call the clone on the tensors instead."
        )
    if not isinstance(model, (Sequential, Functional)):
        raise ValueError(
            f"Expected `model` argument to be a functional `Model` instance, but got a subclassed model instead: {model}"
        )
    if clone_function is None:
        return type(model).from_config(model.get_config())
    made: dict[Any, Any] = {
        layer.name: clone_function(layer)
        for layer in model.layers
        if type(layer).__name__ != "InputLayer"
    }
    with registry.LAYERS.replaced(made):
        return type(model).from_config(model.get_config())
