"""The gradient of a convolution's kernel together with that of its bias, which reads the same values.

A primitive stands for the two; `passes.totalling` puts it into programs. Where a handler of our own
has both, the result's gradient is read from memory for one of them; elsewhere it is lowered as the
equations it stands for. Derivatives and vmap are those of these equations.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from meshflow.kernels import library, lowerings, plans

# Operands: image, the result's gradient; results: those of the kernel and the bias; parameters: the convolution's.
totalled_p = jex_core.Primitive("totalled_convolution")
totalled_p.multiple_results = True


def summed_axes(parameters: dict[str, Any]) -> tuple[int, ...]:
    """The dimensions of the result's gradient that the gradient of a bias is summed over, in order."""
    return tuple(sorted(parameters["dimension_numbers"].rhs_spec[1:]))


def composed(image: Any, gradient: Any, **parameters: Any) -> list[Any]:
    """The equations that it stands for."""
    kernel = jax.lax.conv_general_dilated_p.bind(image, gradient, **parameters)
    return [kernel, jax.lax.reduce_sum(gradient, summed_axes(parameters))]


def _lowered(context: Any, *operands: Any, **parameters: Any) -> Any:
    """A call of our own code where there is some for the CPU."""

    def call(*arrays: Any) -> Any:
        made = None
        if lowerings.is_ours(context):
            made = fast(context.avals_in, context.avals_out, parameters)
        return composed(*arrays, **parameters) if made is None else made(*arrays)

    return mlir.lower_fun(call, multiple_results=True)(context, *operands)


def fast(operands: Any, results: Any, parameters: dict[str, Any]) -> Any:
    """A function that computes both by one handler, or None.

    Args:
      operands: shapes and dtypes of image and the result's gradient.
      results: those of the gradients of kernel and bias.
      parameters: of the primitive.
    """
    (image, gradient), kernel = operands, results[0]
    loaded = library.load()
    types = [np.dtype(a.dtype).name for a in (*operands, *results)]
    if loaded is None or set(types) != {"bfloat16"}:
        return None
    if lowerings.work(image, gradient, kernel, parameters) < lowerings.LEAST_WORK:
        return None
    geometry = lowerings.geometry(parameters)
    for plan in lowerings.convolution_plans(image, gradient, kernel, **geometry):
        if plan[0] != plans.KERNEL_GRADIENT:
            continue
        full = plans.totalled(plan)
        name = loaded.implementation(full, types)
        if name is not None and name.startswith("meshflow"):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
            return lambda *arrays: lowerings.run(full, arrays, shapes)
    return None


def _jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
    tangents = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(functools.partial(composed, **parameters), tuple(primals), tuple(tangents))


def _batched(operands: Any, axes: Any, **parameters: Any) -> Any:
    found = jax.vmap(functools.partial(composed, **parameters), in_axes=tuple(axes))(*operands)
    return found, [0, 0]


def _results(image: Any, gradient: Any, **parameters: Any) -> Any:
    kernel = jax.lax.conv_general_dilated_p.abstract_eval(image, gradient, **parameters)[0]
    features = gradient.shape[parameters["dimension_numbers"].rhs_spec[0]]
    return [kernel, gradient.update(shape=(features,))]


def register() -> None:
    """Makes the primitive known to JAX."""
    totalled_p.def_impl(lambda *xs, **ps: jax.jit(functools.partial(composed, **ps))(*xs))
    totalled_p.def_abstract_eval(_results)
    ad.primitive_jvps[totalled_p] = _jvp
    batching.primitive_batchers[totalled_p] = _batched
    mlir.register_lowering(totalled_p, mlir.lower_fun(composed, multiple_results=True))
    mlir.register_lowering(totalled_p, _lowered, platform="cpu")
