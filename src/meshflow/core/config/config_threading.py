"""`tf.config.threading`: numbers of threads. XLA creates its thread pool when the first op runs."""

from __future__ import annotations

import os

from meshflow.core.runtime.devices import restart_backend

__all__ = [
    "get_inter_op_parallelism_threads",
    "get_intra_op_parallelism_threads",
    "set_inter_op_parallelism_threads",
    "set_intra_op_parallelism_threads",
]

_threads = {"inter": 0, "intra": 0}


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Set the size of XLA's CPU thread pool.

    Call this before the first op on a device. Devices may already have been listed.

    Args:
      num_threads: Number of threads; 0 selects XLA's default.

    Raises:
      RuntimeError: If the thread pool already exists.
    """
    if num_threads != _threads["intra"] and not restart_backend():
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")
    _threads["intra"] = int(num_threads)
    if num_threads:
        os.environ["NPROC"] = str(int(num_threads))


def get_intra_op_parallelism_threads() -> int:
    """Return the value that `set_intra_op_parallelism_threads` set."""
    return _threads["intra"]


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Store the setting; it has no effect, because XLA schedules ops."""
    _threads["inter"] = int(num_threads)


def get_inter_op_parallelism_threads() -> int:
    """Return the value that `set_inter_op_parallelism_threads` set."""
    return _threads["inter"]
