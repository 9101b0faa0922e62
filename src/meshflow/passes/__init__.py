"""Rewrites of jaxprs. They know JAX only, and work on any JAX function."""

from meshflow.passes.explain import Explanation, explain, explain_jaxpr
from meshflow.passes.mixed_precision import mixed_precision, rewrite
from meshflow.passes.precision_lists import PrecisionLists, default_lists

__all__ = [
    "Explanation",
    "PrecisionLists",
    "default_lists",
    "explain",
    "explain_jaxpr",
    "mixed_precision",
    "rewrite",
]
