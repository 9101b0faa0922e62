"""The gradient of a convolution's kernel together with that of its bias, which reads the same values.

A primitive stands for the two; `passes.bias_gradient_fusion` puts it into programs. Where a handler of our own
has both, the result's gradient is read from memory for one of them; elsewhere it is lowered as the
equations it stands for. Derivatives and vmap are those of these equations.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import descriptors, library, lowerings, sizes
from meshflow.kernels.composite_primitives import register as register_composite

# Operands: image, the result's gradient; results: those of the kernel and the bias; parameters: the convolution's.
kernel_and_bias_p = jex_core.Primitive("kernel_and_bias_gradient")
kernel_and_bias_p.multiple_results = True


def summed_axes(parameters: dict[str, Any]) -> tuple[int, ...]:
    """The dimensions of the result's gradient that the gradient of a bias is summed over, in order."""
    return tuple(sorted(parameters["dimension_numbers"].rhs_spec[1:]))


def composite(image: Any, gradient: Any, **parameters: Any) -> list[Any]:
    """The equations that it stands for."""
    kernel = jax.lax.conv_general_dilated_p.bind(image, gradient, **parameters)
    return [kernel, jax.lax.reduce_sum(gradient, summed_axes(parameters))]


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
    if not sizes.convolution_worth_a_call(lowerings.work(image, gradient, kernel, parameters)):
        return None
    for descriptor in lowerings.placed_descriptors(image, gradient, kernel, parameters):
        if descriptors.kind(descriptor) != descriptors.KERNEL_GRADIENT:
            continue
        full = descriptors.with_bias_gradient(descriptor)
        name = loaded.implementation(full, types)
        if name is not None and name.startswith(library.OWN):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]
            return lambda *arrays: lowerings.run(full, arrays, shapes)
    return None


def _results(image: Any, gradient: Any, **parameters: Any) -> Any:
    kernel = jax.lax.conv_general_dilated_p.abstract_eval(image, gradient, **parameters)[0]
    features = gradient.shape[parameters["dimension_numbers"].rhs_spec[0]]
    return [kernel, gradient.update(shape=(features,))]


def register() -> None:
    """Makes the primitive known to JAX."""
    register_composite(kernel_and_bias_p, composite, _results, fast)
