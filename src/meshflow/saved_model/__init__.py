"""`tf.saved_model`: objects with their variables and functions in a folder, to be used without their code.

Functions are stored as StableHLO by `jax.export`, so they run on CPUs, GPUs and TPUs and have gradients. TensorFlow
loads what is saved here, and what it saved is read by `graph/`.
"""

from __future__ import annotations

from meshflow.saved_model import experimental
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.loading import contains_saved_model, load
from meshflow.saved_model.options import LoadOptions, SaveOptions
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
# What signatures of TensorFlow Serving's kinds call their method, inputs and outputs.
CLASSIFY_METHOD_NAME = "tensorflow/serving/classify"
CLASSIFY_INPUTS = "inputs"
CLASSIFY_OUTPUT_CLASSES, CLASSIFY_OUTPUT_SCORES = "classes", "scores"
PREDICT_METHOD_NAME = "tensorflow/serving/predict"
PREDICT_INPUTS, PREDICT_OUTPUTS = "inputs", "outputs"
REGRESS_METHOD_NAME = "tensorflow/serving/regress"
REGRESS_INPUTS, REGRESS_OUTPUTS = "inputs", "outputs"
