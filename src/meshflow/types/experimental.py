"""`tf.types.experimental`: types of tensors and functions for annotations."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.functions.signatures import FunctionType
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.types import distributed

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = [
    "AtomicFunction",
    "Callable",
    "ConcreteFunction",
    "FunctionType",
    "GenericFunction",
    "PolymorphicFunction",
    "SupportsTracingProtocol",
    "TensorLike",
    "TraceType",
    "distributed",
]

TensorLike = (
    Tensor
    | Variable
    | int
    | float
    | bool
    | str
    | bytes
    | complex
    | tuple
    | list
    | np.ndarray
    | np.generic
)
GenericFunction = Function
PolymorphicFunction = Function
Callable = Any
TraceType = TypeSpec
AtomicFunction = ConcreteFunction


@runtime_checkable
class SupportsTracingProtocol(Protocol):
    """Objects that define how a function distinguishes its traces."""

    def __tf_tracing_type__(self, context: Any) -> Any:
        """Return the type of the object."""
