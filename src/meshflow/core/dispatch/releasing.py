"""Release of memory in a process that continues with other models."""

from __future__ import annotations

import gc

import jax

from meshflow.core.dispatch.operation import forget_forms
from meshflow.core.runtime.forks import Fork
from meshflow.kernels import library

__all__ = ["free_memory"]


def free_memory() -> None:
    """Free memory that is only kept to make later calls faster: compiled programs and their buffers.

    Models, variables and traced functions that are still referenced remain usable. Their programs
    are compiled again at the next call.
    """
    forget_forms()
    jax.clear_caches()
    # Models and traced functions contain reference cycles.
    gc.collect()
    # The thread that owns the kernels' memory does not exist in a forked process.
    if not Fork.late:
        library.release_memory()
