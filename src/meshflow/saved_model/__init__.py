"""`tf.saved_model`: objects with their variables and functions in a folder, to be used without their code.

Functions are stored as StableHLO by `jax.export`, so they run on CPUs, GPUs and TPUs and have gradients. TensorFlow
loads what is saved here, and what it saved is read by `graph/`.
"""

from __future__ import annotations

from typing import Any

from meshflow.saved_model.assets import Asset
from meshflow.saved_model.loading import contains_saved_model, load
from meshflow.saved_model.saving import SERVING as DEFAULT_SERVING_SIGNATURE_DEF_KEY
from meshflow.saved_model.saving import save

__all__ = [
    "ASSETS_DIRECTORY",
    "ASSETS_KEY",
    "CLASSIFY_INPUTS",
    "CLASSIFY_METHOD_NAME",
    "CLASSIFY_OUTPUT_CLASSES",
    "CLASSIFY_OUTPUT_SCORES",
    "DEBUG_DIRECTORY",
    "DEBUG_INFO_FILENAME_PB",
    "DEFAULT_SERVING_SIGNATURE_DEF_KEY",
    "GPU",
    "PREDICT_INPUTS",
    "PREDICT_METHOD_NAME",
    "PREDICT_OUTPUTS",
    "REGRESS_INPUTS",
    "REGRESS_METHOD_NAME",
    "REGRESS_OUTPUTS",
    "SAVED_MODEL_FILENAME_PB",
    "SAVED_MODEL_FILENAME_PBTXT",
    "SAVED_MODEL_SCHEMA_VERSION",
    "SERVING",
    "TPU",
    "TRAINING",
    "VARIABLES_DIRECTORY",
    "VARIABLES_FILENAME",
    "Asset",
    "LoadOptions",
    "SaveOptions",
    "contains_saved_model",
    "load",
    "save",
]

ASSETS_DIRECTORY = "assets"
ASSETS_KEY = "saved_model_assets"
VARIABLES_DIRECTORY = "variables"
VARIABLES_FILENAME = "variables"
SERVING = "serve"
TRAINING = "train"
GPU = "gpu"
TPU = "tpu"
SAVED_MODEL_SCHEMA_VERSION = 1
SAVED_MODEL_FILENAME_PB = "saved_model.pb"
SAVED_MODEL_FILENAME_PBTXT = "saved_model.pbtxt"
DEBUG_DIRECTORY = "debug"
DEBUG_INFO_FILENAME_PB = "saved_model_debug_info.pb"
# What signatures of TensorFlow Serving's kinds call their method, inputs and outputs.
CLASSIFY_METHOD_NAME = "tensorflow/serving/classify"
CLASSIFY_INPUTS = "inputs"
CLASSIFY_OUTPUT_CLASSES, CLASSIFY_OUTPUT_SCORES = "classes", "scores"
PREDICT_METHOD_NAME = "tensorflow/serving/predict"
PREDICT_INPUTS, PREDICT_OUTPUTS = "inputs", "outputs"
REGRESS_METHOD_NAME = "tensorflow/serving/regress"
REGRESS_INPUTS, REGRESS_OUTPUTS = "inputs", "outputs"


class SaveOptions:
    """How a SavedModel is written. What is not said to do something is accepted and changes nothing.

    Args:
      namespace_whitelist: of ops; there are none but TensorFlow's own.
      save_debug_info: lines of the source are not written.
      function_aliases: functions by further names.
      experimental_debug_stripper: nodes for debugging are not written.
      experimental_io_device: files are written by this process.
      experimental_variable_policy: None, "save_variable_devices" or "expand_distributed_variables".
      experimental_custom_gradients: whether functions have gradients in TensorFlow.
      experimental_image_format: one file is written.
      experimental_skip_saver: the graph's own nodes that save it are written.
      experimental_sharding_callback: variables lie in one file.
      extra_tags: tags of the graph besides the one for serving.

    Raises:
      ValueError: for another policy.
    """

    def __init__(
        self,
        namespace_whitelist: Any = None,
        save_debug_info: bool = False,
        function_aliases: Any = None,
        experimental_debug_stripper: bool = False,
        experimental_io_device: str | None = None,
        experimental_variable_policy: Any = None,
        experimental_custom_gradients: bool = True,
        experimental_image_format: bool = False,
        experimental_skip_saver: bool = False,
        experimental_sharding_callback: Any = None,
        extra_tags: Any = None,
    ) -> None:
        self.namespace_whitelist = list(namespace_whitelist or [])
        self.save_debug_info = save_debug_info
        self.function_aliases = dict(function_aliases or {})
        self.experimental_debug_stripper = experimental_debug_stripper
        self.experimental_io_device = experimental_io_device
        self.experimental_variable_policy = _policy(experimental_variable_policy)
        self.experimental_custom_gradients = experimental_custom_gradients
        self.experimental_image_format = experimental_image_format
        self.experimental_skip_saver = experimental_skip_saver
        self.experimental_sharding_callback = experimental_sharding_callback
        self.extra_tags = extra_tags


class LoadOptions:
    """How a SavedModel is read. What is not said to do something is accepted and changes nothing.

    Args:
      allow_partial_checkpoint: a folder without all values is damaged.
      experimental_io_device: files are read by this process.
      experimental_skip_checkpoint: variables have their values.
      experimental_variable_policy: as of `SaveOptions`; variables are where the present strategy or device says.
      experimental_load_function_aliases: further names of functions are not kept.

    Raises:
      ValueError: for another policy.
    """

    def __init__(
        self,
        allow_partial_checkpoint: bool = False,
        experimental_io_device: str | None = None,
        experimental_skip_checkpoint: bool = False,
        experimental_variable_policy: Any = None,
        experimental_load_function_aliases: bool = False,
    ) -> None:
        self.allow_partial_checkpoint = allow_partial_checkpoint
        self.experimental_io_device = experimental_io_device
        self.experimental_skip_checkpoint = experimental_skip_checkpoint
        self.experimental_variable_policy = _policy(experimental_variable_policy)
        self.experimental_load_function_aliases = experimental_load_function_aliases


def _policy(given: Any) -> Any:
    name = getattr(given, "value", given)
    known = (None, "save_variable_devices", "expand_distributed_variables")
    if (name.lower() if isinstance(name, str) else name) not in known:
        raise ValueError(f"experimental_variable_policy must be one of {known}, got {given!r}.")
    return given
