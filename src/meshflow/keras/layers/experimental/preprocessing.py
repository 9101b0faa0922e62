"""Preprocessing layers under their earlier names: `tf.keras.layers.experimental.preprocessing`."""

from meshflow.keras.layers.preprocessing import *  # noqa: F403
from meshflow.keras.layers.preprocessing import __all__ as _layers
from meshflow.keras.layers.preprocessing.preprocessing_layer import PreprocessingLayer
from meshflow.keras.layers.wrappers import Rescaling

__all__ = [*_layers, "PreprocessingLayer", "Rescaling"]
