"""Primitives that represent several equations, for which a CPU handler may exist."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax import Array

from meshflow.environment.jax_internals import ad, batching, mlir
from meshflow.environment.types import Primitive
from meshflow.kernels import lowerings
from meshflow.kernels.library import Avals, HandlerCall

# The equations of each primitive, as a function of its operands and parameters.
composites: dict[Primitive, Callable[..., Any]] = {}

# Shapes and dtypes.
ArrayTypes: TypeAlias = "list[tuple[Sequence[Any], Any]]"


def register(
    primitive: Primitive,
    composite: Callable[..., Any],
    abstract: Callable[..., Any] | None,
    choose: Callable[[Avals, Avals, dict[str, Any]], HandlerCall | None] | None,
    export_name: Callable[..., str] | None = None,
    list_types: Callable[[Avals, dict[str, Any]], ArrayTypes | None] | None = None,
) -> None:
    """Register a primitive with JAX; derivatives, vmap and lowering are those of its equations.

    Args:
      primitive: The primitive, with one or several results.
      composite: Its equations, as a function of its operands and parameters.
      abstract: Returns the types of the results, given those of the operands and the parameters;
        None for the types of the equations' results.
      choose: Called with the types of operands and results and the parameters if a handler may run;
        returns a function of the operands that calls the handler, or None. None if there is no
        handler.
      export_name: Returns the name of the function that contains the equations in exported programs, given the
        parameters; None for equations without a function.
      list_types: Returns the shapes and dtypes of the results for the types of operands and the parameters, or None if
        the equations must be traced. It replaces their trace, which takes longer, for arrays without shardings.
    """
    is_multiple = primitive.multiple_results
    composites[primitive] = composite

    def lower(context: mlir.LoweringRuleContext, *operands: Any, **parameters: Any) -> Any:
        call = None
        if choose is not None and lowerings.can_use_handlers(context):
            avals_in, avals_out = cast(tuple[Avals, Avals], (context.avals_in, context.avals_out))
            call = choose(avals_in, avals_out, parameters)
        call = call or functools.partial(composite, **parameters)
        if export_name is not None and lowerings.is_exported(context):
            call = _make_named_function(call, export_name(**parameters))
        return mlir.lower_fun(call, multiple_results=is_multiple)(context, *operands)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> Any:
        full_tangents = tuple(ad.instantiate_zeros(t) for t in tangents)
        return jax.jvp(functools.partial(composite, **parameters), tuple(primals), full_tangents)

    def batch(operands: Sequence[Any], axes: Sequence[int | None], **parameters: Any) -> Any:
        run = jax.vmap(functools.partial(composite, **parameters), in_axes=tuple(axes))
        results = run(*operands)
        return results, [0] * len(results) if is_multiple else 0

    # Eagerly it remains one primitive, which the handler can compute.
    primitive.def_impl(lambda *xs, **ps: jax.jit(functools.partial(primitive.bind, **ps))(*xs))
    abstract = abstract or functools.partial(_infer_results, composite, is_multiple, list_types)
    primitive.def_abstract_eval(abstract)
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(composite, multiple_results=is_multiple))
    mlir.register_lowering(primitive, lower, platform="cpu")


def _make_named_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that is a call of a function with this name in lowered programs."""

    def run(*operands: Any) -> Any:
        return function(*operands)

    run.__name__ = run.__qualname__ = name
    return jax.jit(run)


def _infer_results(
    composite: Callable[..., Any],
    is_multiple: bool,
    list_types: Callable[[Avals, dict[str, Any]], ArrayTypes | None] | None,
    *avals: jax.core.ShapedArray,
    **parameters: Any,
) -> Any:
    """Infer the types of the results from those of the operands or of the equations' results.

    Tracing preserves shardings and other properties.
    """
    results: Sequence[jax.core.AbstractValue]
    plain = tuple([jax.core.ShapedArray(a.shape, a.dtype) for a in avals])
    if list_types and plain == avals and (types := list_types(avals, parameters)) is not None:
        results = [jax.core.ShapedArray(shape, dtype) for shape, dtype in types]
    else:
        results = jax.make_jaxpr(functools.partial(composite, **parameters))(*avals).out_avals
    return results if is_multiple else results[0]


def have_shapes(avals: Avals, shapes: Sequence[Sequence[Any]]) -> bool:
    """Check whether arrays have these shapes, without a decision about symbolic sizes that may be equal."""
    found, expected = [tuple(a.shape) for a in avals], [tuple(shape) for shape in shapes]
    return hash(tuple(found)) == hash(tuple(expected)) and found == expected


def move_batch_axes_first(arrays: Sequence[Array], axes: Sequence[int | None]) -> list[Array]:
    """Move the batch axis of a vmapped primitive's operands to the front.

    Operands without a batch axis (None) are broadcast.
    """
    count = next(a.shape[i] for a, i in zip(arrays, axes, strict=True) if i is not None)
    return [
        jnp.broadcast_to(a, (count, *a.shape)) if i is None else jnp.moveaxis(a, i, 0)
        for a, i in zip(arrays, axes, strict=True)
    ]
