"""Rewriting of StableHLO for older versions of TensorFlow."""

from __future__ import annotations

import functools
from typing import Any

from meshflow.environment.jax_internals import (
    mlir_hlo,
    mlir_ir,
    mlir_lowering,
    mlir_passes,
    read_portable_artifact,
    write_older_artifact,
    write_portable_artifact,
)

# Versions of StableHLO that programs are written in, if they can be expressed: TensorFlow 2.14 and 2.15 read 0.14,
# and 1.1 introduced gathers with batch dimensions. Later versions of TensorFlow read all earlier ones.
_VERSIONS = ("0.14.0", "1.1.0")
# Version of the op's calling convention. Version 9 added side effects, which programs here do not have.
_CONVENTION = 8


@functools.cache
def _get_pipeline() -> str:
    """Return the pass pipeline that replaces composite operations by calls of their definitions."""
    mlir_hlo.register_stablehlo_passes()
    return "builtin.module(func.func(stablehlo-legalize-composite-to-call),symbol-dce)"


def make_portable(content: bytes, convention: int) -> tuple[bytes, int]:
    """Write a program in the oldest version of StableHLO that expresses it.

    Composite operations (`erf`, `asin`, `top_k`, ...) become calls of their definitions, because TensorFlow up to 2.21
    cannot read those that JAX writes.

    Args:
      content: A portable artifact.
      convention: Version of its calling convention.

    Returns:
      The artifact, and the version of its calling convention.
    """
    with mlir_lowering.make_ir_context(), mlir_ir.Location.unknown():
        module = read_portable_artifact(content)
        if (b"composite" in content or b"chlo." in content) and "stablehlo.composite" in str(
            module
        ):
            mlir_passes.PassManager.parse(_get_pipeline()).run(module.operation)
            content = bytes(write_portable_artifact(module))
        if b"sdy" in content:
            # Older versions of TensorFlow do not know shardings of this kind.
            return content, convention
        _narrow_platform_index(module)
        for version in _VERSIONS:
            try:
                return bytes(write_older_artifact(module, version, False)), _CONVENTION
            except Exception:
                # MLIR raises several types of exceptions for operations of later versions.
                continue
    return content, convention


def _narrow_platform_index(module: Any) -> None:
    """Make the index of the platform, the first argument of programs for several platforms, an int32.

    TensorFlow up to 2.15 does not accept an int64.
    """
    main = next(f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    attributes = main.attributes.get("arg_attrs", [])
    if not len(attributes) or "_platform_index" not in str(attributes[0]):
        return
    block = main.regions[0].blocks[0]
    index = block.arguments[0]
    wide, narrow = (
        index.type,
        mlir_ir.RankedTensorType.get([], mlir_ir.IntegerType.get_signless(32)),
    )
    if wide == narrow:
        return
    index.set_type(narrow)
    with mlir_ir.InsertionPoint.at_block_begin(block):
        converted = mlir_hlo.ConvertOp(wide, index)
    index.replace_all_uses_except(converted.result, converted.operation)
    signature = mlir_ir.FunctionType(mlir_ir.TypeAttr(main.attributes["function_type"]).value)
    inputs = [narrow, *list(signature.inputs)[1:]]
    main.attributes["function_type"] = mlir_ir.TypeAttr.get(
        mlir_ir.FunctionType.get(inputs, list(signature.results))
    )
