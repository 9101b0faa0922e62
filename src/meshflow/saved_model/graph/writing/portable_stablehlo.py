"""Rewriting of StableHLO for older versions of TensorFlow."""

from __future__ import annotations

import functools

from meshflow.environment.jax_internals import (
    mlir_hlo,
    mlir_lowering,
    mlir_passes,
    read_portable_artifact,
    write_portable_artifact,
)

__all__ = ["replace_composites"]


@functools.cache
def _get_pipeline() -> str:
    """Return the pass pipeline that replaces composite operations by calls of their definitions."""
    mlir_hlo.register_stablehlo_passes()
    return "builtin.module(func.func(stablehlo-legalize-composite-to-call),symbol-dce)"


def replace_composites(content: bytes) -> bytes:
    """Replace composite operations (`erf`, `asin`, `top_k`, ...) by calls of their definitions.

    TensorFlow up to 2.21 cannot read the composite operations that JAX writes.

    Args:
      content: A portable artifact. It is returned unchanged if it has no composites.
    """
    if b"composite" not in content and b"chlo." not in content:
        return content
    pipeline = _get_pipeline()
    with mlir_lowering.make_ir_context():
        module = read_portable_artifact(content)
        if "stablehlo.composite" not in str(module):
            return content
        mlir_passes.PassManager.parse(pipeline).run(module.operation)
        return bytes(write_portable_artifact(module))
