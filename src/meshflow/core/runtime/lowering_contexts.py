"""MLIR contexts that many lowerings share.

JAX makes a context for each program that it lowers, has it load every dialect (2.5 ms, a fifth of what an op costs
that is compiled for the first time) and keeps it, over 1 MB, as long as the program. Modules may share one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from meshflow.environment import jax_internals

__all__ = ["share"]

# What programs leave in a context lives as long as any of them.
PROGRAMS = 64


def sharing(make: Callable[[], Any], programs: int = PROGRAMS) -> Callable[[], Any]:
    """A function that gives the main thread one context of `make` for so many programs, and other threads new ones.

    A context loads dialects without a lock. XLA's threads, which lower parts of divided programs, cannot keep one:
    no object of theirs may end with the thread.
    """
    latest, left = None, 0

    def context() -> Any:
        nonlocal latest, left
        if threading.get_ident() != threading.main_thread().ident:
            return make()
        if not left:
            latest, left = make(), programs
        left -= 1
        return latest

    return context


def share() -> None:
    """Has JAX lower programs in shared contexts from now on."""
    module = jax_internals.mlir_lowering
    make = getattr(module, "make_ir_context", None)
    if make is not None:
        module.make_ir_context = sharing(make)
