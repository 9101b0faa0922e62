"""`tf.keras.models`."""

from __future__ import annotations

from typing import Any

from meshflow.keras.engine.functional import Functional
from meshflow.keras.engine.model import Model
from meshflow.keras.engine.sequential import Sequential
from meshflow.keras.saving import load_model, model_from_json, save_model

__all__ = [
    "Functional",
    "Model",
    "Sequential",
    "clone_model",
    "load_model",
    "model_from_config",
    "model_from_json",
    "save_model",
]


def model_from_config(config: dict[str, Any], custom_objects: Any = None) -> Any:
    """A model from `{'class_name': ..., 'config': ...}`.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.layers.serialize(tf.keras.Sequential([tf.keras.layers.Dense(2)]))
      >>> type(tf.keras.models.model_from_config(config)).__name__
      'Sequential'
    """
    from meshflow.keras import layers

    return layers.deserialize(config, custom_objects)


def clone_model(model: Any, input_tensors: Any = None, clone_function: Any = None) -> Any:
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
    from meshflow.keras import layers

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
    original = layers.deserialize

    def replace(config: Any, custom_objects: Any = None) -> Any:
        name = config.get("config", {}).get("name") if isinstance(config, dict) else None
        return made.get(name) or original(config, custom_objects)

    layers.deserialize = replace
    try:
        return type(model).from_config(model.get_config())
    finally:
        layers.deserialize = original
