"""`tf.keras`: layers, models and training."""

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.core.dispatch import op_names
from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.keras import (
    activations,
    callbacks,
    config,
    constraints,
    datasets,
    dtensor,
    experimental,
    export,
    initializers,
    layers,
    losses,
    metrics,
    mixed_precision,
    models,
    ops,
    optimizers,
    random,
    regularizers,
    saving,
    utils,
)
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.sequential import Sequential
from meshflow.version import KERAS_VERSION as __version__

if TYPE_CHECKING:
    from meshflow.keras import applications
    from meshflow.legacy import backend, preprocessing, wrappers

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
    "export",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "mixed_precision",
    "models",
    "ops",
    "optimizers",
    "preprocessing",
    "random",
    "regularizers",
    "saving",
    "utils",
    "wrappers",
]


# Files may refer to functions of `keras.backend` by name, too.
op_names.register_lazy_module("keras.backend.", "meshflow.legacy.backend")


def __getattr__(name: str) -> Any:
    # Rarely used and legacy modules are imported on first use, which makes `import meshflow` fast.
    if name == "applications":
        return importlib.import_module("meshflow.keras.applications")
    if name == "__internal__":
        return importlib.import_module("meshflow.legacy.internal").keras_names
    if name in ("backend", "preprocessing", "wrappers"):
        return importlib.import_module(f"meshflow.legacy.{name}")
    raise_if_unavailable(name, "tf.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
