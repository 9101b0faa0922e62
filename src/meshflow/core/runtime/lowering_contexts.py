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


class _Latest(threading.local):
    """The context of this thread, which loads dialects without a lock, and how many more programs it takes."""

    context: Any = None
    left = 0


def sharing(make: Callable[[], Any], programs: int = PROGRAMS) -> Callable[[], Any]:
    """A function that gives a context of `make`, the same one in a thread for so many programs."""
    latest = _Latest()

    def context() -> Any:
        if not latest.left:
            latest.context, latest.left = make(), programs
        latest.left -= 1
        return latest.context

    return context


def share() -> None:
    """Has JAX lower programs in shared contexts from now on."""
    module = jax_internals.mlir_lowering
    make = getattr(module, "make_ir_context", None)
    if make is not None:
        module.make_ir_context = sharing(make)
