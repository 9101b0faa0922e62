"""Interpreter of jaxprs with NumPy and oneDNN, which needs no compilation."""

from meshflow.interpreter import (
    control,
    convolutions,
    elementwise,
    indexing,
    linear_algebra,
    products,
    random_keys,
    reductions,
    shapes,
    special,
    windows,
)
from meshflow.interpreter.plan import Plan, build_plan
from meshflow.interpreter.table import UnsupportedPrimitive

__all__ = ["Plan", "UnsupportedPrimitive", "build_plan"]
