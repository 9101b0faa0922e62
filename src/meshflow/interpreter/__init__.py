"""Interpreter of jaxprs with NumPy and oneDNN, which needs no compilation."""

from meshflow.interpreter import (
    control,
    convolutions,
    elementwise,
    indexing,
    linear_algebra,
    own,
    products,
    random_keys,
    reductions,
    shapes,
    special,
    windows,
)
from meshflow.interpreter.costs import CostEstimate, Costs, estimate_costs
from meshflow.interpreter.plan import Plan, build_plan
from meshflow.interpreter.table import UnsupportedPrimitive

__all__ = ["CostEstimate", "Costs", "Plan", "UnsupportedPrimitive", "build_plan", "estimate_costs"]
