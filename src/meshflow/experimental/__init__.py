"""`tf.experimental`: the NumPy API, DTensor, optional values, DLPack, and TensorRT."""

import importlib
from typing import TYPE_CHECKING, Any

from meshflow import numpy
from meshflow.data.optional import Optional
from meshflow.experimental import dlpack, dtensor

if TYPE_CHECKING:
    from meshflow.experimental import tensorrt

__all__ = ["Optional", "dlpack", "dtensor", "numpy", "tensorrt"]


def __getattr__(name: str) -> Any:
    """Load the TensorRT module on first use, because it imports the model packages."""
    if name == "tensorrt":
        return importlib.import_module("meshflow.experimental.tensorrt")
    raise AttributeError(f"module 'meshflow.experimental' has no attribute {name!r}")
