"""Lowerings of linear algebra to StableHLO ops that every XLA supports.

JAX's default lowerings call LAPACK or cuSOLVER by custom calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshflow.environment.jax_internals import common_lowerings, platform_lowerings
from meshflow.environment.types import Primitive

_PRIMITIVE_NAMES = (
    *("cholesky", "triangular_solve", "lu", "geqrf", "householder_product", "qr"),
    *("eigh", "svd", "tridiagonal_solve"),
)


@functools.cache
def get_portable_lowerings() -> tuple[tuple[Primitive, Callable[..., Any]], ...]:
    """Return primitives with a lowering for all platforms: JAX's common one, or the one for TPUs.

    The lowerings emit ops and custom calls that XLA itself expands.
    """
    rules = {**platform_lowerings["tpu"], **common_lowerings}
    selected = [
        (primitive, rule) for primitive, rule in rules.items() if primitive.name in _PRIMITIVE_NAMES
    ]
    return tuple((primitive, getattr(rule, "rule", rule)) for primitive, rule in selected)
