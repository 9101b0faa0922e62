"""Reading and writing of StableHLO modules by MLIR, which trusts the bytes; for processes that may crash."""

from __future__ import annotations

import struct
from typing import IO, Any

import jax.export

from meshflow.environment import jax_internals

BYTECODE_PREFIX = b"ML\xefR"
# First characters of the names of functions that compute a primitive of Meshflow.
OWN_PREFIX = "meshflow_"


def rewrite_modules(source: IO[bytes], target: IO[bytes], max_derivatives: int) -> None:
    """Read programs, and write their modules and those of their derivatives.

    Args:
      source: Programs of `jax.export` or portable artifacts, each after its length in eight bytes.
      target: File for the result: for each program the number of its modules, and the length and
        bytes of each.
      max_derivatives: Maximum number of derivatives of a program.
    """
    while header := source.read(8):
        data = source.read(*struct.unpack("<q", header))
        modules = [_rewrite(module) for module in _read_modules(data, max_derivatives)]
        target.write(struct.pack("<q", len(modules)))
        for module in modules:
            target.write(struct.pack("<q", len(module)) + module)


def _read_modules(data: bytes, max_derivatives: int) -> list[bytes]:
    if data.startswith(BYTECODE_PREFIX):
        return [data]
    return [p.mlir_module_serialized for p in read_programs(data, max_derivatives)]


def read_programs(data: bytes, max_derivatives: int) -> list[jax.export.Exported]:
    """Read a program and its derivatives.

    Args:
      data: Program of `jax.export`.
      max_derivatives: Maximum number of derivatives; further ones are not read.
    """
    programs = [jax.export.deserialize(bytearray(data))]
    while programs[-1].has_vjp() and len(programs) <= max_derivatives:
        programs.append(programs[-1].vjp())
    return programs


def _rewrite(data: bytes) -> bytes:
    with jax_internals.mlir.make_ir_context():
        module = jax_internals.read_portable_artifact(data)
        _rename_functions(module.operation)
        return bytes(jax_internals.write_portable_artifact(module))


def _rename_functions(module: Any) -> None:
    """Rename the functions of a module that have names with `OWN_PREFIX`.

    Readers run a kernel in place of a function with such a name, but nothing proves that a function of another author
    computes the same.
    """
    symbols = jax_internals.mlir_ir.SymbolTable
    functions = list(module.regions[0].blocks[0])
    names = {symbols.get_symbol_name(f.operation).value for f in functions}
    for function in functions:
        name = symbols.get_symbol_name(function.operation).value
        if name.startswith(OWN_PREFIX):
            new = f"other_{name}"
            while new in names:
                new = f"other_{new}"
            names.add(new)
            symbols.replace_all_symbol_uses(name, new, module)
            symbols.set_symbol_name(function.operation, new)
