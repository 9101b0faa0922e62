"""Detection of processes that were forked after their parent had used its devices.

XLA and the kernels compute with threads. A forked process has none of its parent's threads, so it
would wait for them forever. Such a process raises an error at its first computation. A process that
was forked before its parent used a device can compute.
"""

from __future__ import annotations

import os

from meshflow.core.runtime.devices import is_backend_started


class ForkState:
    """State of this process.

    Attributes:
      forked_late: Whether the process was forked from one that had used its devices.
    """

    forked_late = False


def make_fork_error() -> RuntimeError:
    """Return the error for a computation in a process that was forked too late."""
    return RuntimeError(
        f"Process {os.getpid()} was forked from a process that had already used Meshflow's devices. A fork does not "
        "have the threads of its parent and would wait for them forever. Start processes with "
        "multiprocessing.get_context('spawn') or 'forkserver' (multiprocessing.set_start_method('spawn')), or fork "
        "before the first computation."
    )


def _mark_child() -> None:
    ForkState.forked_late = ForkState.forked_late or is_backend_started()


def register_fork_handler() -> None:
    """Mark every process that is forked from now on if it must not compute."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_mark_child)
