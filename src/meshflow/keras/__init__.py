"""`tf.keras`: layers, models, training."""

from meshflow.keras import (
    activations,
    applications,
    backend,
    callbacks,
    config,
    constraints,
    datasets,
    dtensor,
    experimental,
    initializers,
    layers,
    losses,
    metrics,
    mixed_precision,
    models,
    optimizers,
    preprocessing,
    regularizers,
    saving,
    utils,
    wrappers,
)
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.sequential import Sequential
from meshflow.version import KERAS_VERSION as __version__

__all__ = [
    "Input",
    "Model",
    "Sequential",
    "__version__",
    "activations",
    "applications",
    "backend",
    "callbacks",
    "config",
    "constraints",
    "datasets",
    "dtensor",
    "experimental",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "mixed_precision",
    "models",
    "optimizers",
    "preprocessing",
    "regularizers",
    "saving",
    "utils",
    "wrappers",
]
