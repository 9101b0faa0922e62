"""Adam's update of a variable as a primitive with a handler on CPUs.

XLA compiles three loops for every shape of a variable, a third of what a network's first step takes to
compile; the handler compiles nothing, and takes one pass over memory where XLA's loops take three.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import library
from meshflow.kernels.composite_primitives import register as register_composite

# Operands: the variable, its gradient, the means of gradients and of their squares, all of one shape, and scalars:
# one less each decay, and the rate. Parameter `epsilon`. Results: the variable and the means, moved.
update_p = jex_core.Primitive("adam_update")
update_p.multiple_results = True


def _update(
    var: Any, grad: Any, mean: Any, square: Any, first: Any, second: Any, rate: Any, *, epsilon: Any
) -> list[Any]:
    mean = mean + (grad - mean) * first
    square = square + (grad * grad - square) * second
    return [var - rate * mean / (jnp.sqrt(square) + epsilon), mean, square]


def _abstract(var: Any, grad: Any, mean: Any, square: Any, *_: Any, **__: Any) -> list[Any]:
    return [var.strip_weak_type(), mean.strip_weak_type(), square.strip_weak_type()]


def _choose(operands: Any, results: Any, parameters: Any) -> Any:
    """A function that calls the handler in place, or None where XLA's code is taken."""
    if any(np.dtype(a.dtype) != np.float32 for a in operands):
        return None
    loaded = library.load()
    if loaded is None or not loaded.has_handler(library.ADAM):
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
    call = jax.ffi.ffi_call(library.ADAM, shapes, input_output_aliases={0: 0, 2: 1, 3: 2})
    return functools.partial(call, epsilon=np.float32(parameters["epsilon"]))


def register() -> None:
    """Makes the primitive known to JAX."""
    register_composite(update_p, _update, _abstract, _choose)


def updated(
    var: Any, grad: Any, mean: Any, square: Any, first: Any, second: Any, rate: Any, epsilon: float
) -> list[Any]:
    """`mean + (grad - mean) * first`, `square + (grad^2 - square) * second`, and the variable that these move.

    Args:
      var: an array.
      grad: its gradient, of the same shape and dtype, as `mean` and `square`.
      mean: the mean of gradients so far.
      square: the mean of their squares.
      first: 1 less the decay of `mean`, a scalar of that dtype, as `second` and `rate`.
      second: the same of `square`.
      rate: what the step is multiplied by.
      epsilon: what is added to the root of `square`.

    Returns:
      `var - rate * mean / (sqrt(square) + epsilon)`, and the new `mean` and `square`.
    """
    scalars = [jnp.asarray(x, var.dtype) for x in (first, second, rate)]
    return update_p.bind(var, grad, mean, square, *scalars, epsilon=float(epsilon))
