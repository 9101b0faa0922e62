"""Full float32 for products and convolutions that were traced while TensorFloat-32 was allowed."""

from __future__ import annotations

import jax
import numpy as np

from meshflow.environment.types import ClosedJaxpr, Jaxpr, JaxprEqn
from meshflow.passes.jaxprs import get_aval, rewrite_equations

_PRODUCTS = ("dot_general", "conv_general_dilated")
_HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


def compute_in_full_float32(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Forbid rounded factors in products and convolutions; return the same object if none."""
    return rewrite_equations(closed, _request_full_precision, _PRODUCTS)


def _request_full_precision(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    return [
        eqn.replace(params={**eqn.params, "precision": _HIGHEST}) if _may_round(eqn) else eqn
        for eqn in eqns
    ]


def _may_round(eqn: JaxprEqn) -> bool:
    """Check whether an equation is a product of float32 arrays without an explicit precision."""
    if eqn.primitive.name not in _PRODUCTS or eqn.params["precision"] is not None:
        return False
    return any(get_aval(v).dtype == np.float32 for v in eqn.invars)
