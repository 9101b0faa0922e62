"""Rules by which JAX linearizes the most common primitives.

`jax.vjp` linearizes an equation by a partial evaluation of its derivative, which takes about a millisecond. The derivatives of
linear and bilinear primitives compute no values that the gradient has to keep, so these rules return them directly. The
resulting equations are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from meshflow.environment.jax_internals import (
    ad,
    has_structured_residuals,
    jex_primitives,
    linearization_rules,
    make_zero_tangent,
)
from meshflow.environment.types import Array, Primitive

# A primitive, its operands, their tangents, and its parameters. The result is a tangent.
_Derive: TypeAlias = Callable[[Primitive, Sequence[Array], Sequence[Any], dict[str, Any]], Array]

_LINEAR = (
    "broadcast_in_dim",
    "convert_element_type",
    "neg",
    "reduce_sum",
    "reshape",
    "squeeze",
    "transpose",
)
_BILINEAR = ("conv_general_dilated", "dot_general", "mul")
# JAX's derivatives of these are linear in the tangents, and broadcast them or fill missing ones with zeros.
_OTHER = ("add", "concatenate", "pad", "select_n", "slice", "sub")


def install_rules() -> None:
    """Register the rules for primitives for which JAX has none."""
    for names, make in (
        (_LINEAR, _derive_linear),
        (_BILINEAR, _derive_bilinear),
        (_OTHER, _derive),
    ):
        for name in names:
            primitive = getattr(jex_primitives, f"{name}_p")
            linearization_rules.setdefault(primitive, _make_rule(primitive, make))


def _make_rule(primitive: Primitive, derive: _Derive) -> Callable[..., tuple[object, ...]]:
    def linearize(
        _: bool, has_tangents: Sequence[bool], *operands: Array, **params: object
    ) -> tuple[object, ...]:
        result = primitive.bind(*operands, **params)
        has_tangent = any(has_tangents) and jax.numpy.issubdtype(result.dtype, np.inexact)

        def compute_tangent(*arguments: Array) -> Array:
            tangents = arguments[-len(operands) :]
            if not has_tangent:
                return make_zero_tangent(result)
            return derive(primitive, operands, tangents, params)

        if has_structured_residuals:
            return result, has_tangent, (), None, compute_tangent
        return result, has_tangent, (), compute_tangent

    return linearize


def _derive_linear(
    primitive: Primitive, operands: Sequence[Array], tangents: Sequence[Any], params: dict[str, Any]
) -> Array:
    return primitive.bind(*tangents, **params)


def _derive_bilinear(
    primitive: Primitive, operands: Sequence[Array], tangents: Sequence[Any], params: dict[str, Any]
) -> Array:
    (x, y), (first, second) = operands, tangents
    if type(second) is ad.Zero:
        return primitive.bind(first, y, **params)
    if type(first) is ad.Zero:
        return primitive.bind(x, second, **params)
    return ad.add_tangents(primitive.bind(first, y, **params), primitive.bind(x, second, **params))


def _derive(
    primitive: Primitive, operands: Sequence[Array], tangents: Sequence[Any], params: dict[str, Any]
) -> Array:
    # The result of the primitive is no part of the linear program, because nothing reads it.
    return ad.primitive_jvps[primitive](tuple(operands), tuple(tangents), **params)[1]
