"""`tf.experimental`: the NumPy front end, DTensor, optional values, shared memory, and TensorRT."""

import importlib
from typing import TYPE_CHECKING, Any

from meshflow import numpy
from meshflow.data.optional import Optional
from meshflow.experimental import dlpack, dtensor

if TYPE_CHECKING:
    from meshflow.experimental import tensorrt

__all__ = ["Optional", "dlpack", "dtensor", "numpy", "tensorrt"]


def __getattr__(name: str) -> Any:
    """TensorRT's module, which knows models, is loaded when it is first used."""
    if name == "tensorrt":
        return importlib.import_module("meshflow.experimental.tensorrt")
    raise AttributeError(f"module 'meshflow.experimental' has no attribute {name!r}")
