"""Gradients of a convolution's kernel and bias, which read the same array, as one primitive.

`passes.bias_gradient_fusion` introduces the primitive. A handler reads the gradient of the result
from memory only once; without a handler the primitive is lowered as the equations it represents.
Derivatives and vmap are those of the equations.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import descriptors, library, lowerings, sizes
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Operands: image, gradient of the result. Results: gradients of kernel and bias. Parameters: those
# of the convolution.
kernel_and_bias_p = jex_core.Primitive("kernel_and_bias_gradient")
kernel_and_bias_p.multiple_results = True


def find_summed_axes(parameters: dict[str, Any]) -> tuple[int, ...]:
    """Return the axes over which the gradient of a bias is summed, in ascending order."""
    return tuple(sorted(parameters["dimension_numbers"].rhs_spec[1:]))


def compute_gradients(image: jax.Array, gradient: jax.Array, **parameters: Any) -> list[jax.Array]:
    """Compute both gradients by JAX's operations."""
    kernel = jax.lax.conv_general_dilated_p.bind(image, gradient, **parameters)
    return [kernel, jax.lax.reduce_sum(gradient, find_summed_axes(parameters))]


def choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function that computes both gradients by one handler, or None."""
    (image, gradient), kernel = operands, results[0]
    loaded = library.load()
    types = [np.dtype(a.dtype).name for a in (*operands, *results)]
    if loaded is None or set(types) != {"bfloat16"} or lowerings.is_dilated(parameters):
        return None
    if not sizes.is_convolution_worth_call(
        lowerings.count_multiply_adds(image, gradient, kernel, parameters)
    ):
        return None
    for descriptor in lowerings.list_descriptors(image, gradient, kernel, parameters):
        if descriptors.get_computation(descriptor) != descriptors.KERNEL_GRADIENT:
            continue
        extended = descriptors.with_bias_gradient(descriptor)
        name = loaded.find_implementation(extended, types)
        if name is not None and name.startswith(library.OWN_PREFIX):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
            return lambda *arrays: lowerings.call_handler(extended, arrays, shapes)
    return None


def _infer_results(
    image: jax.core.ShapedArray, gradient: jax.core.ShapedArray, **parameters: Any
) -> list[jax.core.ShapedArray]:
    kernel = jax.lax.conv_general_dilated_p.abstract_eval(image, gradient, **parameters)[0]
    features = gradient.shape[parameters["dimension_numbers"].rhs_spec[0]]
    return [kernel, gradient.update(shape=(features,))]


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(kernel_and_bias_p, compute_gradients, _infer_results, choose_handler)
