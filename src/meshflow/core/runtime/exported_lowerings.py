"""Programs of `jax.export` lowered without SciPy, where they call no linear algebra.

JAX takes the addresses of LAPACK's functions from SciPy for each exported program that may run on a CPU, whatever it
calls: that import takes as long as many programs to compile.
"""

from __future__ import annotations

from typing import Any

from meshflow.environment.jax_internals import export_lowering, mlir

__all__ = ["calls_lapack", "register"]

_NAMES = "call_exported_p", "_call_exported_lowering", "_ensure_backends_initialized"
# What names of LAPACK's functions begin with in programs.
_LAPACK = b"lapack_"


def calls_lapack(program: bytes) -> bool:
    """Whether a program calls linear algebra of the host's library, by its serialized form, compiled or not."""
    return _LAPACK in program


def register() -> None:
    """Has JAX import SciPy for the exported programs alone that call LAPACK, from now on."""
    if not all(hasattr(export_lowering, name) for name in _NAMES):
        return
    primitive, lower, initialize = (getattr(export_lowering, name) for name in _NAMES)

    def lower_call(ctx: Any, *operands: Any, exported: Any) -> Any:
        if calls_lapack(exported.mlir_module_serialized):
            initialize(exported.platforms)
        return lower(ctx, *operands, exported=exported)

    export_lowering._ensure_backends_initialized = lambda platforms: None
    mlir.register_lowering(primitive, lower_call)
