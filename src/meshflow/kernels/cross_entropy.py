"""Cross entropy of logits and class indices, and its gradient, as primitives with CPU handlers.

XLA writes the shifted logits to memory between the maximum, the sum of exponentials and the
gradient; the handler reads the logits once for the loss and once for their gradient. Logits and
their gradient may be bfloat16 although the computation is in float32: `passes.convert_folding`
removes the conversions of a program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.jax_internals import ad, batching, jex_core
from meshflow.environment.types import Primitive
from meshflow.kernels import library, lowerings
from meshflow.kernels.composite_primitives import ArrayTypes, have_shapes, move_batch_axes_first
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Avals, HandlerCall

# Elements of the logits below which XLA's code is faster than the call.
MIN_ELEMENTS = 1 << 15

# Operands: logits [..., classes], index [...]. Parameter: `dtype` of the computation. Results: the
# loss, the maximum, and the logarithm of the sum of exponentials relative to it, all [...].
loss_p = jex_core.Primitive("cross_entropy")
loss_p.multiple_results = True
# Operands: logits, index, maximum, logarithm, a gradient of the loss. Parameters: `dtype`, and
# `result`, the dtype of the gradient of the logits.
gradient_p = jex_core.Primitive("cross_entropy_gradient")
# Operands: logits, index, maximum, logarithm, a tangent of the logits. Its transpose is the
# gradient.
tangent_p = jex_core.Primitive("cross_entropy_tangent")


def _compute_loss(logits: Array, index: Array, *, dtype: np.dtype) -> list[Array]:
    logits = logits.astype(dtype)
    high = jax.lax.stop_gradient(logits.max(-1))
    shifted = logits - high[..., None]
    total = jnp.log(jnp.exp(shifted).sum(-1))
    chosen = jnp.take_along_axis(shifted, index[..., None], axis=-1)[..., 0]
    return [total - chosen, high, total]


def _compute_slope(
    logits: Array, index: Array, high: Array, total: Array, *, dtype: np.dtype
) -> Array:
    # The softmax minus the one-hot label, written so that XLA compiles it to one loop.
    classes = jax.lax.broadcasted_iota(index.dtype, logits.shape, logits.ndim - 1)
    probabilities = jnp.exp((logits.astype(dtype) - high[..., None]) - total[..., None])
    return probabilities - (classes == index[..., None]).astype(dtype)


def _compute_gradient(*operands: Array, dtype: np.dtype, result: np.dtype) -> Array:
    *residuals, g = operands
    return (_compute_slope(*residuals, dtype=dtype) * g[..., None]).astype(result)


def _compute_tangent(*operands: Array, dtype: np.dtype) -> Array:
    *residuals, t = operands
    return (_compute_slope(*residuals, dtype=dtype) * t).sum(-1)


def _list_types(
    primitive: Primitive, operands: Avals, parameters: dict[str, Any]
) -> ArrayTypes | None:
    """Return the shapes and dtypes of the results; None if operands are broadcast."""
    logits = operands[0].shape
    examples, dtype = logits[:-1], parameters["dtype"]
    last = {gradient_p: [examples], tangent_p: [logits]}.get(primitive)
    # After logits and index, gradient and tangent have the residuals.
    rest = [] if last is None else [examples, examples, *last]
    if not have_shapes(operands, [logits, examples, *rest]):
        return None
    if primitive is gradient_p:
        return [(logits, parameters["result"])]
    return [(examples, dtype)] * (3 if primitive is loss_p else 1)


def _choose_handler(
    operands: Avals, results: Avals, parameters: dict[str, Any]
) -> HandlerCall | None:
    """Return a function that calls the handler, or None to use XLA's code."""
    logits, dtype = operands[0], np.dtype(parameters["dtype"])
    dtypes = {np.dtype(a.dtype).name for a in (logits, *results)}
    is_supported = dtypes <= {"float32", "bfloat16"} and dtype == np.float32
    loaded = library.load() if is_supported and logits.size >= MIN_ELEMENTS else None
    if loaded is None or not loaded.has_handler(library.CROSS_ENTROPY):
        return None
    descriptor = [math.prod(logits.shape[:-1]), logits.shape[-1]]
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]

    def call(x: Array, index: Array, *rest: Array) -> Any:
        arrays = [x, index.astype(np.int32), *rest]
        # The loss has several results, the gradient one.
        shapes = specs if len(specs) > 1 else specs[0]
        return lowerings.call_handler(descriptor, arrays, shapes, library.CROSS_ENTROPY)

    return call


def _batch(
    primitive: Primitive, arrays: Sequence[Any], axes: Sequence[int | None], **parameters: Any
) -> tuple[Any, Any]:
    results = primitive.bind(*move_batch_axes_first(arrays, axes), **parameters)
    return results, [0] * len(results) if primitive.multiple_results else 0


def _transpose_tangent(ct: Any, *operands: Any, dtype: np.dtype) -> list[Any]:
    *residuals, t = operands
    if type(ct) is ad.Zero:
        return [None] * len(residuals) + [ad.Zero(t.aval)]
    gradient = gradient_p.bind(*residuals, ct, dtype=dtype, result=t.aval.dtype)
    return [*[None] * len(residuals), gradient]


def register() -> None:
    """Register the primitives with JAX."""
    for primitive, composite, choose in (
        (loss_p, _compute_loss, _choose_handler),
        (gradient_p, _compute_gradient, _choose_handler),
        (tangent_p, _compute_tangent, None),
    ):
        list_types = functools.partial(_list_types, primitive)
        register_composite(primitive, composite, None, choose, list_types=list_types)
        # Under vmap it remains one primitive, which the handler can compute.
        batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    ad.primitive_transposes[tangent_p] = _transpose_tangent


def compute_losses(logits: Array, index: Array) -> list[Array]:
    """Compute `-log(softmax(logits)[index])` and the residuals of its gradient.

    Returns:
      The losses, the maximum logits, and the logarithms of the sums of exponentials relative to
      these.
    """
    return loss_p.bind(logits, index, dtype=logits.dtype)


def compute_tangents(
    logits: Array, index: Array, high: Array, total: Array, tangent: Array
) -> Array:
    """Compute the tangents of the losses, linear in a tangent of the logits.

    The arguments are those of `compute_losses`, its last two results, and a tangent of the logits.
    """
    return tangent_p.bind(logits, index, high, total, tangent, dtype=logits.dtype)
