"""`tf.keras.saving`: saving and loading of models and weights."""

from meshflow.keras.engine.saving.configuration import model_to_json
from meshflow.keras.engine.saving.models import save_model
from meshflow.keras.engine.saving.weights import load_weights, save_weights
from meshflow.keras.registry import (
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from meshflow.keras.saving.loading import load_model, model_from_config, model_from_json
from meshflow.keras.serialization import deserialize_keras_object, serialize_keras_object

__all__ = [
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "load_model",
    "load_weights",
    "model_from_config",
    "model_from_json",
    "model_to_json",
    "register_keras_serializable",
    "save_model",
    "save_weights",
    "serialize_keras_object",
]
