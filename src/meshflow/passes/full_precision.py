"""Ask for full float32 in products and convolutions that were traced while TensorFloat-32 was allowed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import everywhere

__all__ = ["compute_in_full_float32"]

_PRODUCTS = ("dot_general", "conv_general_dilated")
_HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


def compute_in_full_float32(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """Return the program without rounded factors; the same object when there are no such products.

    Args:
      closed: a `ClosedJaxpr`.
    """
    return everywhere(closed, _asked, _PRODUCTS)


def _asked(jaxpr: Any, eqns: list[Any]) -> list[Any]:
    return [
        eqn.replace(params={**eqn.params, "precision": _HIGHEST}) if _may_round(eqn) else eqn
        for eqn in eqns
    ]


def _may_round(eqn: Any) -> bool:
    """Return whether an equation is a product of float32 arrays that asks for no precision."""
    if eqn.primitive.name not in _PRODUCTS or eqn.params["precision"] is not None:
        return False
    return any(v.aval.dtype == np.float32 for v in eqn.invars)
