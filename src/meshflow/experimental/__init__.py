"""`tf.experimental`: extension types, the NumPy API, DTensor, optional values, DLPack, and TensorRT."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshflow import numpy
from meshflow.core.dispatch.api_dispatch import (
    dispatch_for_api,
    dispatch_for_binary_elementwise_apis,
    dispatch_for_binary_elementwise_assert_apis,
    dispatch_for_unary_elementwise_apis,
    unregister_dispatch_for,
)
from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.core.values.dtypes import float8_e4m3fn, float8_e5m2, int4, uint4
from meshflow.data.optional import Optional
from meshflow.experimental import dlpack, dtensor, extension_type
from meshflow.experimental.extension_types import (
    BatchableExtensionType,
    ExtensionType,
    ExtensionTypeBatchEncoder,
    ExtensionTypeSpec,
)
from meshflow.experimental.structured_ops import StructuredTensor
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
    "async_clear_error",
    "async_scope",
    "dispatch_for_api",
    "dispatch_for_binary_elementwise_apis",
    "dispatch_for_binary_elementwise_assert_apis",
    "dispatch_for_unary_elementwise_apis",
    "dlpack",
    "dtensor",
    "enable_strict_mode",
    "extension_type",
    "float8_e4m3fn",
    "float8_e5m2",
    "function_executor_type",
    "int4",
    "numpy",
    "tensorrt",
    "uint4",
    "unregister_dispatch_for",
]


@contextlib.contextmanager
def async_scope() -> Iterator[None]:
    """Run a block; JAX always executes asynchronously, and errors are raised where they occur."""
    yield


def async_clear_error() -> None:
    """Do nothing: errors of asynchronous ops are not kept."""


@contextlib.contextmanager
def function_executor_type(executor_type: str | None) -> Iterator[None]:
    """Run a block; XLA executes functions, so the type is ignored."""
    yield


def enable_strict_mode() -> None:
    """Do nothing: deprecated behavior is not available."""


def __getattr__(name: str) -> Any:
    """Load the TensorRT module on first use, because it imports the model packages."""
    if name == "tensorrt":
        return importlib.import_module("meshflow.experimental.tensorrt")
    raise_if_unavailable(name, "tf.experimental")
    raise AttributeError(f"module 'meshflow.experimental' has no attribute {name!r}")
