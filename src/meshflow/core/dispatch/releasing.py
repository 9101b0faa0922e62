"""Memory given back by a process that is done with its models and goes on to others."""

from __future__ import annotations

import gc

import jax

from meshflow.core.dispatch.operation import forget_forms
from meshflow.core.runtime.forks import Fork
from meshflow.kernels import library

__all__ = ["free_memory"]


def free_memory() -> None:
    """Frees what nothing but later speed needs: compiled programs and the memory kept for their next step.

    Models, variables and traced functions that are still referred to keep working; what they run is
    compiled again at its next call.
    """
    forget_forms()
    jax.clear_caches()
    # Models and traced functions refer to themselves in circles.
    gc.collect()
    # The thread that owns the kernels' memory does not live in a fork.
    if not Fork.late:
        library.release_memory()
