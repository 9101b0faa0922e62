"""Release of memory in a process that continues with other models."""

from __future__ import annotations

import jax

from meshflow.core.dispatch.operation import clear_op_caches
from meshflow.core.runtime.forks import ForkState
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.kernels import library


def free_memory() -> None:
    """Free memory that is only kept to make later calls faster: compiled programs and their buffers.

    Models, variables and traced functions that are still referenced remain usable. Their programs
    are compiled again at the next call.
    """
    clear_op_caches()
    jax.clear_caches()
    # Models and traced functions contain reference cycles.
    collect_garbage()
    # The thread that owns the kernels' memory does not exist in a forked process.
    if not ForkState.forked_late:
        library.release_memory()
