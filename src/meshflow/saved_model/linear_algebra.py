"""Linear algebra in words of StableHLO that every XLA knows, in place of JAX's calls of LAPACK and its kin."""

from __future__ import annotations

import functools
from typing import Any

from meshflow.environment.jax_internals import common_lowerings, platform_lowerings

__all__ = ["portable_lowerings"]

_NAMES = (
    *("cholesky", "triangular_solve", "lu", "geqrf", "householder_product", "qr"),
    *("eigh", "svd", "tridiagonal_solve"),
)


@functools.cache
def portable_lowerings() -> tuple[tuple[Any, Any], ...]:
    """Primitives, each with a lowering for all kinds of devices: JAX's common one, or that for TPUs.

    What they end in are operations, and calls that XLA itself takes apart.
    """
    known = {**platform_lowerings["tpu"], **common_lowerings}
    chosen = [(primitive, rule) for primitive, rule in known.items() if primitive.name in _NAMES]
    return tuple((primitive, getattr(rule, "rule", rule)) for primitive, rule in chosen)
