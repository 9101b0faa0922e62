"""Lowering of `jax.export` programs without importing SciPy, if they do not call LAPACK.

JAX takes the addresses of LAPACK functions from SciPy for each exported program that may run on a
CPU, whether or not the program calls them. The import of SciPy takes as long as the compilation of
many programs.
"""

from __future__ import annotations

from typing import Any

from meshflow.environment.jax_internals import export_lowering, mlir

_REQUIRED_NAMES = "call_exported_p", "_call_exported_lowering", "_ensure_backends_initialized"
# Prefix of the names of LAPACK functions in programs.
_LAPACK_PREFIX = b"lapack_"


def calls_lapack(program: bytes) -> bool:
    """Check whether a serialized program, compiled or not, calls LAPACK."""
    return _LAPACK_PREFIX in program


def register_lowering() -> None:
    """Make JAX import SciPy only for exported programs that call LAPACK."""
    if not all(hasattr(export_lowering, name) for name in _REQUIRED_NAMES):
        return
    primitive, lower, initialize = (getattr(export_lowering, name) for name in _REQUIRED_NAMES)

    def lower_call(ctx: Any, *operands: Any, exported: Any) -> Any:
        # A program from a file checks the sizes of its calls before it is compiled.
        if (specialize := getattr(exported, "specialize", None)) is not None:
            exported = specialize(ctx.avals_in, ctx.avals_out)
        if calls_lapack(exported.mlir_module_serialized):
            initialize(exported.platforms)
        return lower(ctx, *operands, exported=exported)

    export_lowering._ensure_backends_initialized = lambda platforms: None
    mlir.register_lowering(primitive, lower_call)
