"""Adam's update of a variable, as a primitive with a CPU handler.

XLA compiles three loops for every shape of a variable, which is a third of the time to compile a
network's first step. The handler needs no compilation and one pass over memory instead of three.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import ArrayLike
from meshflow.kernels import library
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Operands: the variable, its gradient, the means of gradients and of their squares, all of one
# shape; scalars: 1 - decay of each mean, and the learning rate. Parameter: `epsilon`. Results: the
# updated variable and means.
update_p = jex_core.Primitive("adam_update")
update_p.multiple_results = True


def _compute_update(*operands: Array, epsilon: float) -> list[Array]:
    var, grad, mean, square, mean_rate, square_rate, rate = operands
    mean = mean + (grad - mean) * mean_rate
    square = square + (grad * grad - square) * square_rate
    return [var - rate * mean / (jnp.sqrt(square) + epsilon), mean, square]


def _infer_results(*avals: jax.core.ShapedArray, epsilon: float) -> list[jax.core.AbstractValue]:
    var, _, mean, square, *_ = avals
    return [a.strip_weak_type() for a in (var, mean, square)]


def _choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function that calls the handler in place, or None to use XLA's code."""
    if any(np.dtype(a.dtype) != np.float32 for a in operands):
        return None
    loaded = library.load()
    if loaded is None or not loaded.has_handler(library.ADAM):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    call = jax.ffi.ffi_call(library.ADAM, shapes, input_output_aliases={0: 0, 2: 1, 3: 2})
    return functools.partial(call, epsilon=np.float32(parameters["epsilon"]))


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(update_p, _compute_update, _infer_results, _choose_handler)


def update_variable(
    var: Array,
    grad: Array,
    mean: Array,
    square: Array,
    mean_rate: ArrayLike,
    square_rate: ArrayLike,
    rate: ArrayLike,
    epsilon: float,
) -> list[Array]:
    """Update a variable and the means of its gradients and of their squares.

    Args:
      var: The variable.
      grad: Its gradient, of the same shape and dtype, like `mean` and `square`.
      mean: Mean of the previous gradients.
      square: Mean of their squares.
      mean_rate: 1 - decay of `mean`, a scalar.
      square_rate: 1 - decay of `square`, a scalar.
      rate: Learning rate, a scalar.
      epsilon: Added to the root of the mean square.

    Returns:
      `var - rate * mean / (sqrt(square) + epsilon)`, `mean + (grad - mean) * mean_rate` and `square
      + (grad^2 - square) * square_rate`; the first is computed with the new means.
    """
    scalars = [jnp.asarray(x, var.dtype) for x in (mean_rate, square_rate, rate)]
    return update_p.bind(var, grad, mean, square, *scalars, epsilon=float(epsilon))
