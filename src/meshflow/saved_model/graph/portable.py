"""StableHLO in the words that TensorFlow's readers have known for longest."""

from __future__ import annotations

import functools

from meshflow.environment.jax_internals import (
    mlir_hlo,
    mlir_lowering,
    mlir_passes,
    read_portable_artifact,
    write_portable_artifact,
)

__all__ = ["without_composites"]


@functools.cache
def _pipeline() -> str:
    """What replaces an operation that names its own definition by a call of that."""
    mlir_hlo.register_stablehlo_passes()
    return "builtin.module(func.func(stablehlo-legalize-composite-to-call),symbol-dce)"


def without_composites(content: bytes) -> bytes:
    """A program whose composite operations (`erf`, `asin`, `top_k`, ...) are calls of what they are made of.

    TensorFlow 2.21 and what comes before do not read the form in which JAX writes composites.

    Args:
      content: a portable artifact; one without composites comes back as it is.
    """
    if b"composite" not in content and b"chlo." not in content:
        return content
    pipeline = _pipeline()
    with mlir_lowering.make_ir_context():
        module = read_portable_artifact(content)
        if "stablehlo.composite" not in str(module):
            return content
        mlir_passes.PassManager.parse(pipeline).run(module.operation)
        return bytes(write_portable_artifact(module))
