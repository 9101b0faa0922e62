"""Preprocessing layers under their earlier names: `tf.keras.layers.experimental.preprocessing`."""

from meshflow.keras.layers.preprocessing import (
    CategoryEncoding,
    CenterCrop,
    Discretization,
    HashedCrossing,
    Hashing,
    IntegerLookup,
    Normalization,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomHeight,
    RandomRotation,
    RandomTranslation,
    RandomWidth,
    RandomZoom,
    Resizing,
    StringLookup,
    TextVectorization,
)
from meshflow.keras.layers.preprocessing.preprocessing_layer import PreprocessingLayer
from meshflow.keras.layers.wrappers import Rescaling

__all__ = [
    "CategoryEncoding",
    "CenterCrop",
    "Discretization",
    "HashedCrossing",
    "Hashing",
    "IntegerLookup",
    "Normalization",
    "PreprocessingLayer",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomHeight",
    "RandomRotation",
    "RandomTranslation",
    "RandomWidth",
    "RandomZoom",
    "Rescaling",
    "Resizing",
    "StringLookup",
    "TextVectorization",
]
