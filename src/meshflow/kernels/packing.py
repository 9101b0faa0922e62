"""Packing of convolution kernels to the layout that their computation reads.

If a kernel is constant, `passes.constant_hoisting` introduces this primitive and keeps its result.
The result is zero if no handler is available; the convolution also has the original kernel as an
operand.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import descriptors, epilogues, library, lowerings
from meshflow.kernels.composite_primitives import register as register_composite
from meshflow.kernels.library import Aval, Avals, HandlerCall

# Packs a kernel to bytes. Parameters: the `ConvolutionCall` that reads them, and their number.
packed_p = jex_core.Primitive("packed_kernel")


def plan_packing(operands: Avals, out: Aval, parameters: dict[str, Any]) -> dict[str, Any] | None:
    """Return the packing parameters of a fused convolution, or None if its kernel is not packed."""
    loaded = library.load() if jax.default_backend() == "cpu" else None
    code = None if loaded is None else epilogues.plan_convolution(operands, out, parameters)
    if loaded is None or code is None:
        return None
    size = loaded.count_packed_bytes(code.descriptor, [t.name for t in (*code.types, code.out)])
    return {"code": code, "size": size} if size else None


def _make_zeros(kernel: jax.Array, code: epilogues.ConvolutionCall, size: int) -> jax.Array:
    return jnp.zeros(size, np.uint8)


def _choose_handler(operands: Avals, outs: Avals, parameters: dict[str, Any]) -> HandlerCall | None:
    code, out = parameters["code"], jax.ShapeDtypeStruct(outs[0].shape, np.uint8)
    codes = "".join(library.TYPE_CODES[t.name] for t in (*code.types, code.out))
    if library.load() is None:
        return None
    return lambda w: lowerings.call_handler(
        descriptors.describe_packing(code.descriptor, codes), [code.prepare_kernel(w)], out
    )


def _infer_result(
    kernel: jax.core.ShapedArray, code: epilogues.ConvolutionCall, size: int
) -> jax.core.ShapedArray:
    return kernel.update(shape=(size,), dtype=np.dtype(np.uint8), weak_type=False)


def register() -> None:
    """Register the primitive with JAX."""
    register_composite(packed_p, _make_zeros, _infer_result, _choose_handler)
