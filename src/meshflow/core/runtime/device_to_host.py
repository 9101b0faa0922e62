"""Values of arrays on the host, also of arrays that lie on the devices of several processes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import UnavailableError
from meshflow.core.runtime.exhaustion import exhausted

__all__ = ["lost_worker", "to_host"]

# What the libraries of collectives say when a process is gone.
_LOST = ("Gloo", "gloo", "NCCL operation", "Connection closed by peer", "Connection reset by peer")


def to_host(value: Any) -> np.ndarray:
    """An array's value.

    An array of which other processes hold parts is first gathered, so all processes must ask for it.
    """
    try:
        return np.asarray(value)
    except (RuntimeError, MemoryError, ValueError) as error:
        known = exhausted(error, f"a tensor of shape {tuple(value.shape)}") or lost_worker(error)
        if known is not None:
            raise known from error
        if not isinstance(value, jax.Array) or value.is_fully_addressable:
            raise
        return np.asarray(replicated(value))


def lost_worker(error: Exception) -> UnavailableError | None:
    """What to raise when an error says that another process is gone; None for other errors."""
    text = str(error)
    if jax.process_count() == 1 or not any(word in text for word in _LOST):
        return None
    first = text.strip().splitlines()[0]
    return UnavailableError(
        f"Worker {jax.process_index()} of {jax.process_count()} has lost another worker during a collective: "
        f"that process has ended, or the network failed ({first}). Its own output says why. `meshflow "
        "launch --max-restarts` starts such a job again."
    )


def replicated(value: Any) -> Any:
    """A global array with its whole value on every device of its mesh."""
    spec = jax.sharding.PartitionSpec()
    return _copy_everywhere(jax.sharding.NamedSharding(value.sharding.mesh, spec))(value)


@functools.cache
def _copy_everywhere(sharding: Any) -> Any:
    def replicate(array: Any) -> Any:
        return array

    return jax.jit(replicate, out_shardings=sharding)
