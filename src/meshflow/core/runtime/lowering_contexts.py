"""MLIR contexts that several lowerings share.

JAX creates a context for each program that it lowers, loads every dialect into it (2.5 ms, a fifth
of the cost of the first call of an op), and keeps it (more than 1 MB) as long as the program.
Several modules can share a context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from meshflow.environment import jax_internals

__all__ = ["install_shared_contexts"]

# A shared context, with everything that its programs leave in it, lives as long as any of them.
# This bounds their number.
PROGRAMS_PER_CONTEXT = 64


def make_shared_factory(
    make: Callable[[], Any], programs: int = PROGRAMS_PER_CONTEXT
) -> Callable[[], Any]:
    """Return a factory that returns the same context for several programs in a row.

    Only the main thread shares contexts. A context loads dialects without a lock, and XLA's
    threads, which lower parts of partitioned programs, cannot keep one: no Python object may be
    destroyed at the exit of such a thread.

    Args:
      make: Creates a context.
      programs: Number of programs that share a context.
    """
    latest, num_free = None, 0

    def context() -> Any:
        nonlocal latest, num_free
        if threading.get_ident() != threading.main_thread().ident:
            return make()
        if not num_free:
            latest, num_free = make(), programs
        num_free -= 1
        return latest

    return context


def install_shared_contexts() -> None:
    """Make JAX lower programs in shared contexts."""
    module = jax_internals.mlir_lowering
    make = getattr(module, "make_ir_context", None)
    if make is not None:
        module.make_ir_context = make_shared_factory(make)
