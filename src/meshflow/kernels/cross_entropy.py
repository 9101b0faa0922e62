"""The cross entropy of logits and class numbers and its gradient, as primitives with handlers on CPUs.

XLA writes the shifted logits to memory between the maximum, the sum of exponentials and the
gradient; the handler reads the logits once for the loss and once for their gradient. Logits may be
given in bfloat16 where float32 is computed with, and the gradient written so:
`passes.convert_folding` makes it so where a program converts them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import ad, batching, jex_core
from meshflow.kernels import library, lowerings
from meshflow.kernels.composite_primitives import in_front
from meshflow.kernels.composite_primitives import register as register_composite

# Smaller logits cost less than the call: elements.
LEAST_SIZE = 1 << 15

# Operands: logits [..., classes], index [...]; parameter `dtype`, of what is computed. Results: the loss, and
# the maximum and the logarithm of the sum of exponentials relative to it, all [...].
loss_p = jex_core.Primitive("cross_entropy")
loss_p.multiple_results = True
# Operands: logits, index, maximum, logarithm, a gradient of the loss; parameters `dtype`, and `result`, of the
# gradient of the logits.
gradient_p = jex_core.Primitive("cross_entropy_gradient")
# Operands: logits, index, maximum, logarithm, a tangent of the logits. What the gradient is transposed.
tangent_p = jex_core.Primitive("cross_entropy_tangent")


def _loss(logits: Any, index: Any, *, dtype: Any) -> list[Any]:
    logits = logits.astype(dtype)
    high = jax.lax.stop_gradient(logits.max(-1))
    shifted = logits - high[..., None]
    total = jnp.log(jnp.exp(shifted).sum(-1))
    chosen = jnp.take_along_axis(shifted, index[..., None], axis=-1)[..., 0]
    return [total - chosen, high, total]


def _slope(logits: Any, index: Any, high: Any, total: Any, dtype: Any) -> Any:
    # The softmax without the label's 1, written so that XLA makes one loop of it.
    classes = jax.lax.broadcasted_iota(index.dtype, logits.shape, logits.ndim - 1)
    probabilities = jnp.exp((logits.astype(dtype) - high[..., None]) - total[..., None])
    return probabilities - (classes == index[..., None]).astype(dtype)


def _gradient(
    logits: Any, index: Any, high: Any, total: Any, g: Any, *, dtype: Any, result: Any
) -> Any:
    return (_slope(logits, index, high, total, dtype) * g[..., None]).astype(result)


def _tangent(logits: Any, index: Any, high: Any, total: Any, t: Any, *, dtype: Any) -> Any:
    return (_slope(logits, index, high, total, dtype) * t).sum(-1)


def _choose(operands: Any, results: Any, parameters: Any) -> Any:
    """A function that calls the handler with result types, or None where XLA's code is taken."""
    logits, dtype = operands[0], np.dtype(parameters["dtype"])
    types = {np.dtype(a.dtype).name for a in (logits, *results)}
    known = types <= {"float32", "bfloat16"} and dtype == np.float32
    loaded = library.load() if known and logits.size >= LEAST_SIZE else None
    if loaded is None or not loaded.has_handler(library.CROSS_ENTROPY):
        return None
    descriptor = [math.prod(logits.shape[:-1]), logits.shape[-1]]
    found = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results]

    def call(x: Any, index: Any, *rest: Any) -> Any:
        arrays = [x, index.astype(np.int32), *rest]
        # The gradient is the only result of its primitive.
        shapes = found if len(found) > 1 else found[0]
        return lowerings.run(descriptor, arrays, shapes, library.CROSS_ENTROPY)

    return call


def _batched(primitive: Any, arrays: Any, axes: Any, **parameters: Any) -> Any:
    found = primitive.bind(*in_front(arrays, axes), **parameters)
    return found, [0] * len(found) if primitive.multiple_results else 0


def _abstract(composite: Any, many: bool, *avals: Any, **parameters: Any) -> Any:
    # Traced, so that shardings and the like are those of the function.
    found = jax.make_jaxpr(functools.partial(composite, **parameters))(*avals).out_avals
    return found if many else found[0]


def _transposed(ct: Any, *operands: Any, dtype: Any) -> Any:
    *known, t = operands
    if type(ct) is ad.Zero:
        return [None] * len(known) + [ad.Zero(t.aval)]
    found = gradient_p.bind(*known, ct, dtype=dtype, result=t.aval.dtype)
    return [*[None] * len(known), found]


def register() -> None:
    """Makes the primitives known to JAX."""
    for primitive, composite in ((loss_p, _loss), (gradient_p, _gradient), (tangent_p, _tangent)):
        abstract = functools.partial(_abstract, composite, primitive.multiple_results)
        choose = _choose if primitive is not tangent_p else lambda *_: None
        register_composite(primitive, composite, abstract, choose)

        def run(*arrays: Any, primitive: Any = primitive, **parameters: Any) -> Any:
            return jax.jit(functools.partial(primitive.bind, **parameters))(*arrays)

        # Eagerly, and under vmap, it stays one primitive, which there is code for.
        primitive.def_impl(run)
        batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)
    ad.primitive_transposes[tangent_p] = _transposed


def losses(logits: Any, index: Any) -> list[Any]:
    """Losses of rows, and what their gradient needs: `-log(softmax(logits)[index])` along the last dimension.

    Args:
      logits: floating numbers [..., classes].
      index: integers in [0, classes), [...].
    """
    return loss_p.bind(logits, index, dtype=logits.dtype)


def tangents(logits: Any, index: Any, high: Any, total: Any, tangent: Any) -> Any:
    """The tangents of the losses, linear in a tangent of the logits.

    Args:
      logits: as given to `losses`.
      index: as given to `losses`.
      high: the second that it gave.
      total: the third.
      tangent: of the logits.
    """
    return tangent_p.bind(logits, index, high, total, tangent, dtype=logits.dtype)
