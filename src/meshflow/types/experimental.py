"""`tf.types.experimental`: types of tensors and functions for annotations."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor

__all__ = [
    "Callable",
    "ConcreteFunction",
    "GenericFunction",
    "PolymorphicFunction",
    "TensorLike",
    "TraceType",
]

TensorLike = (
    Tensor | int | float | bool | str | bytes | complex | tuple | list | np.ndarray | np.generic
)
GenericFunction = Function
PolymorphicFunction = Function
Callable = Any
TraceType = TypeSpec
