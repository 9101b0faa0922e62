"""`tf.keras.utils`."""

from meshflow.keras.engine.data_adapter import pack_x_y_sample_weight, unpack_x_y_sample_weight
from meshflow.keras.identify import (
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from meshflow.keras.utils.arrays import (
    Sequence,
    normalize,
    pad_sequences,
    set_random_seed,
    to_categorical,
)
from meshflow.keras.utils.files import get_file
from meshflow.keras.utils.progbar import Progbar

CustomObjectScope = custom_object_scope
PyDataset = Sequence

__all__ = [
    "CustomObjectScope",
    "Progbar",
    "PyDataset",
    "Sequence",
    "custom_object_scope",
    "get_custom_objects",
    "get_file",
    "get_registered_name",
    "get_registered_object",
    "normalize",
    "pack_x_y_sample_weight",
    "pad_sequences",
    "register_keras_serializable",
    "set_random_seed",
    "to_categorical",
    "unpack_x_y_sample_weight",
]
