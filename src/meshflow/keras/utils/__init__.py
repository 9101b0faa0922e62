"""`tf.keras.utils`: utilities for data, files, configurations and drawings."""

import importlib
from typing import Any

from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.keras.engine.training.data_adapter import (
    pack_x_y_sample_weight,
    unpack_x_y_sample_weight,
)
from meshflow.keras.engine.training.dataset_creator import DatasetCreator
from meshflow.keras.engine.training.progress_bar import (
    Progbar,
    disable_interactive_logging,
    enable_interactive_logging,
    is_interactive_logging_enabled,
)
from meshflow.keras.registry import (
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from meshflow.keras.serialization import deserialize_keras_object, serialize_keras_object
from meshflow.keras.utils import experimental, legacy
from meshflow.keras.utils.arrays import (
    Sequence,
    normalize,
    pad_sequences,
    set_random_seed,
    split_dataset,
    to_categorical,
    to_ordinal,
)
from meshflow.keras.utils.directories import (
    audio_dataset_from_directory,
    image_dataset_from_directory,
    text_dataset_from_directory,
)
from meshflow.keras.utils.drawing import model_to_dot, plot_model
from meshflow.keras.utils.embeddings import warmstart_embedding_matrix
from meshflow.keras.utils.enqueuers import (
    GeneratorEnqueuer,
    OrderedEnqueuer,
    SequenceEnqueuer,
    TimedThread,
)
from meshflow.keras.utils.files import get_file
from meshflow.keras.utils.graphs import get_source_inputs
from meshflow.keras.utils.images import (
    array_to_img,
    img_to_array,
    load_img,
    save_img,
    smart_resize,
)
from meshflow.keras.utils.sidecar_evaluator import SidecarEvaluator
from meshflow.keras.utils.timeseries import timeseries_dataset_from_array

CustomObjectScope = custom_object_scope
PyDataset = Sequence

__all__ = [
    "CustomObjectScope",
    "DatasetCreator",
    "FeatureSpace",
    "GeneratorEnqueuer",
    "OrderedEnqueuer",
    "Progbar",
    "PyDataset",
    "Sequence",
    "SequenceEnqueuer",
    "SidecarEvaluator",
    "TimedThread",
    "array_to_img",
    "audio_dataset_from_directory",
    "custom_object_scope",
    "deserialize_keras_object",
    "disable_interactive_logging",
    "enable_interactive_logging",
    "experimental",
    "get_custom_objects",
    "get_file",
    "get_registered_name",
    "get_registered_object",
    "get_source_inputs",
    "image_dataset_from_directory",
    "img_to_array",
    "is_interactive_logging_enabled",
    "legacy",
    "load_img",
    "model_to_dot",
    "normalize",
    "pack_x_y_sample_weight",
    "pad_sequences",
    "plot_model",
    "register_keras_serializable",
    "save_img",
    "serialize_keras_object",
    "set_random_seed",
    "smart_resize",
    "split_dataset",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
    "to_categorical",
    "to_ordinal",
    "unpack_x_y_sample_weight",
    "warmstart_embedding_matrix",
]


def __getattr__(name: str) -> Any:
    # The layers that this class uses import this module.
    if name == "FeatureSpace":
        module = importlib.import_module("meshflow.keras.layers.preprocessing.feature_space")
        return module.FeatureSpace
    raise_if_unavailable(name, "tf.keras.utils")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
