"""Layers that preprocess images, numbers and text."""

from __future__ import annotations

from meshflow.keras.layers.preprocessing import (
    category_encoding,
    discretization,
    hashing,
    images,
    lookups,
    normalization,
    random_colors,
    random_positions,
    random_sizes,
    text_vectorization,
)
from meshflow.keras.layers.preprocessing.category_encoding import *
from meshflow.keras.layers.preprocessing.discretization import *
from meshflow.keras.layers.preprocessing.hashing import *
from meshflow.keras.layers.preprocessing.images import *
from meshflow.keras.layers.preprocessing.lookups import *
from meshflow.keras.layers.preprocessing.normalization import *
from meshflow.keras.layers.preprocessing.random_colors import *
from meshflow.keras.layers.preprocessing.random_positions import *
from meshflow.keras.layers.preprocessing.random_sizes import *
from meshflow.keras.layers.preprocessing.text_vectorization import *

PUBLIC_MODULES = (
    category_encoding,
    discretization,
    hashing,
    images,
    lookups,
    normalization,
    random_colors,
    random_positions,
    random_sizes,
    text_vectorization,
)
__all__ = sorted(name for module in PUBLIC_MODULES for name in module.__all__)
