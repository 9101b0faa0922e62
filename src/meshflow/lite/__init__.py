"""`tf.lite`: conversion of models for LiteRT (TensorFlow Lite), and LiteRT's interpreter.

The runtime is the package ai-edge-litert, which the extra `lite` installs.
"""

from meshflow.lite import experimental
from meshflow.lite.converter import TFLiteConverter
from meshflow.lite.interpreter import Interpreter
from meshflow.lite.options import OpsSet, Optimize, RepresentativeDataset, TargetSpec

__all__ = [
    "Interpreter",
    "OpsSet",
    "Optimize",
    "RepresentativeDataset",
    "TFLiteConverter",
    "TargetSpec",
    "experimental",
]
