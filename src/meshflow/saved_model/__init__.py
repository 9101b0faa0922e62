"""`tf.saved_model`: save objects with their variables and functions, and load them without their code.

`jax.export` stores functions as StableHLO, so they run on CPUs, GPUs and TPUs and have gradients.
TensorFlow can load the
folders, and `graph` reads SavedModels of TensorFlow.

The sub-packages, from the bottom up: `manifest` (objects as the manifest describes them),
`programs` (functions as StableHLO),
`host_steps` (functions of strings and tables, which partly run on the host), `graph` (TensorFlow's
graphs), and on top of
them `saving` and `loader`.
"""

from __future__ import annotations

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.saved_model import experimental
from meshflow.saved_model.loader import contains_saved_model, load
from meshflow.saved_model.manifest.assets import Asset
from meshflow.saved_model.options import LoadOptions, SaveOptions
from meshflow.saved_model.saving.model_writer import save
from meshflow.saved_model.saving.signature_saver import (
    DEFAULT_SIGNATURE as DEFAULT_SERVING_SIGNATURE_DEF_KEY,
)

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
    "experimental",
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
# Method, input and output names in the signatures of TensorFlow Serving's standard types.
CLASSIFY_METHOD_NAME = "tensorflow/serving/classify"
CLASSIFY_INPUTS = "inputs"
CLASSIFY_OUTPUT_CLASSES, CLASSIFY_OUTPUT_SCORES = "classes", "scores"
PREDICT_METHOD_NAME = "tensorflow/serving/predict"
PREDICT_INPUTS, PREDICT_OUTPUTS = "inputs", "outputs"
REGRESS_METHOD_NAME = "tensorflow/serving/regress"
REGRESS_INPUTS, REGRESS_OUTPUTS = "inputs", "outputs"

_hide_frames(globals())
