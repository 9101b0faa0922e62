"""Primitives that stand for a few equations, which CPUs may have code of our own for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.environment.jax_internals import ad, batching, mlir
from meshflow.kernels import lowerings

# What primitives stand for: functions of the operands and the primitive's parameters.
composites: dict[Any, Callable[..., Any]] = {}


def register(
    primitive: Any,
    composite: Callable[..., Any],
    abstract: Callable[..., Any],
    choose: Callable[[Any, Any, Any], Any],
) -> None:
    """Makes a primitive known to JAX, with derivatives, vmap and lowering of the equations it stands for.

    Args:
      primitive: the primitive, with one result or several.
      composite: the equations: a function of the operands and the primitive's parameters.
      abstract: shapes and dtypes of the results, from those of the operands and the parameters.
      choose: called with shapes and dtypes of operands and of results, and the parameters, where a CPU's own
        code can run: gives a function of the operands that calls it, or None.
    """
    many = primitive.multiple_results
    composites[primitive] = composite

    def lowered(context: Any, *operands: Any, **parameters: Any) -> Any:
        own = lowerings.is_ours(context)
        made = choose(context.avals_in, context.avals_out, parameters) if own else None
        call = functools.partial(composite, **parameters) if made is None else made
        return mlir.lower_fun(call, multiple_results=many)(context, *operands)

    def jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
        moves = tuple(ad.instantiate_zeros(t) for t in tangents)
        return jax.jvp(functools.partial(composite, **parameters), tuple(primals), moves)

    def batched(operands: Any, axes: Any, **parameters: Any) -> Any:
        run = jax.vmap(functools.partial(composite, **parameters), in_axes=tuple(axes))
        found = run(*operands)
        return found, [0] * len(found) if many else 0

    primitive.def_impl(lambda *xs, **ps: jax.jit(functools.partial(composite, **ps))(*xs))
    primitive.def_abstract_eval(abstract)
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(composite, multiple_results=many))
    mlir.register_lowering(primitive, lowered, platform="cpu")


def in_front(arrays: Any, axes: Any) -> list[Any]:
    """Operands of a vmapped primitive with the dimension that is mapped first in each.

    Args:
      arrays: the operands.
      axes: where the dimension is, None for those without.
    """
    count = next(a.shape[i] for a, i in zip(arrays, axes, strict=True) if i is not None)
    return [
        jnp.broadcast_to(a, (count, *a.shape)) if i is None else jnp.moveaxis(a, i, 0)
        for a, i in zip(arrays, axes, strict=True)
    ]
