"""Primitives of newer versions of JAX in terms of older ones, so that every converter knows one set of primitives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from jax import lax

from meshflow.environment.jax_internals import expand_high_level

_EXPANSIONS: dict[str, Callable[..., Any]] = {}


def find_expansion(equation: Any) -> Callable[..., Any] | None:
    """Return a function of an equation's operands that computes it with older primitives; None for an older primitive.

    Args:
      equation: an equation of a jaxpr.
    """
    expansion = _EXPANSIONS.get(equation.primitive.name)
    if expansion is not None:
        return functools.partial(expansion, **equation.params)
    return expand_high_level(equation)


def _expands(function: Callable[..., Any]) -> Callable[..., Any]:
    _EXPANSIONS[function.__name__] = function
    return function


@_expands
def log2(x: Any, **_: Any) -> Any:
    """Compute the base-2 logarithm from the natural one."""
    return lax.log(x) * (1 / math.log(2))


@_expands
def one_minus_square(x: Any, **_: Any) -> Any:
    """Compute 1 - x**2 as a product, which is accurate near |x| = 1."""
    return (1 - x) * (1 + x)


@_expands
def polynomial(x: Any, *coefficients: Any, **_: Any) -> Any:
    """Evaluate a polynomial by Horner's method; coefficients start with the constant term."""
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients))


@_expands
def unstack(x: Any, *, axis: int) -> list[Any]:
    """Split an array along an axis into its slices, without that axis."""
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]
