"""Kernels of convolutions in the layout that their computation reads, made apart from it.

Where a kernel stays what it is from call to call, `passes.constant_hoisting` puts this primitive into programs and keeps
what it gives. It is empty where no handler of ours reads it: the convolution takes the kernel itself, too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels import descriptors, epilogues, library, lowerings
from meshflow.kernels.composite_primitives import register as register_composite

# A kernel to bytes; parameters: the `epilogues.Code` that reads them, and how many there are.
packed_p = jex_core.Primitive("packed_kernel")


def packing(operands: Any, out: Any, parameters: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of the primitive for a fused convolution's kernel; None where it is read as it lies.

    Args:
      operands: shapes and dtypes of image, kernel, bias and ReLU mask, as many as there are.
      out: those of the result.
      parameters: of the convolution.
    """
    loaded = library.load() if jax.default_backend() == "cpu" else None
    code = None if loaded is None else epilogues.code(operands, out, parameters)
    if loaded is None or code is None:
        return None
    size = loaded.packed_bytes(code.descriptor, [t.name for t in (*code.types, code.out)])
    return {"code": code, "size": size} if size else None


def _nothing(kernel: Any, code: Any, size: int) -> Any:
    return jnp.zeros(size, np.uint8)


def _packed(operands: Any, outs: Any, parameters: dict[str, Any]) -> Any:
    code, out = parameters["code"], jax.ShapeDtypeStruct(outs[0].shape, np.uint8)
    codes = "".join(library.TYPES[t.name] for t in (*code.types, code.out))
    if library.load() is None:
        return None
    return lambda w: lowerings.run(
        descriptors.packing(code.descriptor, codes), [code.kernel(w)], out
    )


def _result(kernel: Any, code: Any, size: int) -> Any:
    return kernel.update(shape=(size,), dtype=np.dtype(np.uint8), weak_type=False)


def register() -> None:
    """Makes the primitive known to JAX."""
    register_composite(packed_p, _nothing, _result, _packed)
