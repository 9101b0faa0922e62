"""`tf.config.threading`: numbers of threads. XLA sizes its pool when the first op runs."""

from __future__ import annotations

import os

from meshflow.core.runtime.devices import start_anew

__all__ = [
    "get_inter_op_parallelism_threads",
    "get_intra_op_parallelism_threads",
    "set_inter_op_parallelism_threads",
    "set_intra_op_parallelism_threads",
]

_threads = {"inter": 0, "intra": 0}


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Sets the size of XLA's CPU thread pool; before the first op, also after devices were listed. 0 leaves it to XLA.

    Args:
      num_threads: number of threads.

    Raises:
      RuntimeError: when the pool exists already.
    """
    if num_threads != _threads["intra"] and not start_anew():
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")
    _threads["intra"] = int(num_threads)
    if num_threads:
        os.environ["NPROC"] = str(int(num_threads))


def get_intra_op_parallelism_threads() -> int:
    """What `set_intra_op_parallelism_threads` set."""
    return _threads["intra"]


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Accepted: XLA schedules ops itself."""
    _threads["inter"] = int(num_threads)


def get_inter_op_parallelism_threads() -> int:
    """What `set_inter_op_parallelism_threads` set."""
    return _threads["inter"]
