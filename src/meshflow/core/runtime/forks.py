"""Processes that were forked from one that had used its devices.

XLA and the kernels compute with threads, of which a fork has none: what waits for them waits for ever. Such a
process is told so at its first computation. One forked before that computes like any other.
"""

from __future__ import annotations

import os

from meshflow.core.runtime.devices import backend_started

__all__ = ["Fork", "after_fork", "watch"]


class Fork:
    """What is known of this process.

    Attributes:
      late: whether it was forked from a process that had used its devices.
    """

    late = False


def after_fork() -> RuntimeError:
    """The error for computing in a process that was forked too late."""
    return RuntimeError(
        f"Process {os.getpid()} was forked from one that had used Meshflow's devices already, whose threads a fork "
        "does not have: it would wait for them for ever. Start processes with "
        "multiprocessing.get_context('spawn') or 'forkserver' (multiprocessing.set_start_method('spawn')), or fork "
        "before the first computation."
    )


def _in_child() -> None:
    Fork.late = Fork.late or backend_started()


def watch() -> None:
    """Has every process that is forked from now on know whether it may compute."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
