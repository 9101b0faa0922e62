"""`tf.experimental`: extension types, the NumPy API, DTensor, optional values, DLPack, and TensorRT."""

import importlib
from typing import TYPE_CHECKING, Any

from meshflow import numpy
from meshflow.core.dispatch.api_dispatch import (
    dispatch_for_api,
    dispatch_for_binary_elementwise_apis,
    dispatch_for_binary_elementwise_assert_apis,
    dispatch_for_unary_elementwise_apis,
    unregister_dispatch_for,
)
from meshflow.data.optional import Optional
from meshflow.experimental import dlpack, dtensor
from meshflow.experimental.extension_types import (
    BatchableExtensionType,
    ExtensionType,
    ExtensionTypeBatchEncoder,
    ExtensionTypeSpec,
)
from meshflow.experimental.structured_tensor import StructuredTensor
from meshflow.ops.ragged import DynamicRaggedShape, RowPartition

if TYPE_CHECKING:
    from meshflow.experimental import tensorrt

__all__ = [
    "BatchableExtensionType",
    "DynamicRaggedShape",
    "ExtensionType",
    "ExtensionTypeBatchEncoder",
    "ExtensionTypeSpec",
    "Optional",
    "RowPartition",
    "StructuredTensor",
    "dispatch_for_api",
    "dispatch_for_binary_elementwise_apis",
    "dispatch_for_binary_elementwise_assert_apis",
    "dispatch_for_unary_elementwise_apis",
    "dlpack",
    "dtensor",
    "numpy",
    "tensorrt",
    "unregister_dispatch_for",
]


def __getattr__(name: str) -> Any:
    """Load the TensorRT module on first use, because it imports the model packages."""
    if name == "tensorrt":
        return importlib.import_module("meshflow.experimental.tensorrt")
    raise AttributeError(f"module 'meshflow.experimental' has no attribute {name!r}")
